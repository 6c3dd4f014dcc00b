"""Probes of all projections of a model at once, one after the other.

What `geom.train.probing` does for one stack, for each of `q`, `k`, `up` and so
on, with names such as `q/weights/cos_input_mean`. The projections take turns,
since a compiled program must not have two LAPACK calls at the same time.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom import roles
from geom.linalg import Triplets, after, leading_triplets
from geom.models.base import Params
from geom.optim import observe
from geom.probes import heads as of_heads
from geom.train import probing
from geom.train.probing import Gradients, Probe
from geom.train.state import State

# `folded`: weights with the gain of the norm before them, `geom.roles.folded`.
STACKS = (*probing.STACKS, "folded")
Stacks = Mapping[str, Float[Array, "layer m n"]]


def reference_of(
  params: Params, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
  """What probes of every projection compare with, at step 0.

  Args:
    params: at step 0.
    sections: see `geom.train.probing.reference_of`.
  """
  return _in_groups(
    lambda weights: probing.reference_of_stack(weights, sections),
    roles.projections(params),
  )


def make_probe(
  gradients: Gradients,
  *,
  names: Sequence[str],
  stacks: Sequence[str],
  method: str,
  k: int | None,
  name: str = "probe",
  heads: Mapping[str, int] | None = None,
) -> Probe:
  """Like `geom.train.probing.make_probe`, of every projection.

  `state.reference` is that of `reference_of`, by projection.

  Args:
    gradients, names, stacks, method, k, name: see there. `gradient_sum` and
      `optimizer_updates` are read from links of `geom.optim.observe` that
      select `geom.roles.projections`. There is a stack `folded` besides.
    heads: how many heads, all of one width, a projection has, by its name; of
      the slices of each
      are taken `q/heads/weights/best_input` and so on, see
      `geom.probes.heads.head_cosines`, and their means over pairs of layers.
      None: of none.

  Raises:
    ValueError: see `geom.train.probing.require`.
  """
  probing.require(names=names, stacks=stacks, method=method, k=k)

  def probe(state: State) -> tuple[Mapping[str, Any], Any]:
    numbers: dict[str, Any] = {}
    weights = roles.projections(state.params)
    found: dict[str, Stacks] = {
      "weights": weights,
      "updates": {
        p: w - state.reference[p]["weights"] for p, w in weights.items()
      },
      **observe.seen(state.opt_state),
    }
    if "folded" in stacks:
      found["folded"] = roles.folded(state.params)
    if "gradients" in stacks:
      grads, beside = gradients(state.params)
      found["gradients"] = roles.projections(grads)
      numbers |= beside

    def found_of(projection: str) -> Stacks:
      return {s: found[s][projection] for s in stacks}

    taken = _in_groups(
      lambda of: probing.of_stacks(
        of["stacks"],
        of["reference"],
        names=names,
        method=method,
        k=k,
        name=name,
      ),
      {
        p: {
          "stacks": found_of(p),
          "reference": state.reference[p],
        }
        for p in weights
      },
    )
    for p, (of, _) in taken.items():
      numbers |= {f"{p}/{key}": value for key, value in of.items()}
    if heads:
      wanted = {p: found_of(p) for p in heads}
      numbers |= _of_heads(wanted, heads, done=taken)
    return numbers, {p: reference for p, (_, reference) in taken.items()}

  return probe


def _of_heads(
  stacks: Mapping[str, Stacks], heads: Mapping[str, int], done: Any
) -> dict[str, Array]:
  """The numbers of the heads of all projections, once all of `done` is there.

  By one decomposition: the slices of O are turned over, so that all are
  `(width, head_width)`.
  """
  slices = []
  for p, of in stacks.items():
    axis = "in" if p in INTO else "out"
    for stack in of.values():
      apart = of_heads.split(stack.astype(jnp.float32), heads[p], axis)
      slices.append(jnp.swapaxes(apart, 2, 3) if p in INTO else apart)
  together = _after(jax.tree.leaves(done), jnp.concatenate(slices, axis=1))
  triplets = leading_triplets(together, 2)
  numbers = {}
  at = 0
  for p, of in stacks.items():
    for name in of:
      part = Triplets(*(x[:, at : at + heads[p]] for x in triplets))
      at += heads[p]
      if p in INTO:
        part = Triplets(part.right, part.values, part.left)
      for side in ("input", "output"):
        for way, cos in of_heads.head_cosines(part, side).items():
          numbers[f"{p}/heads/{name}/{way}_{side}"] = cos
          numbers[f"{p}/heads/{name}/{way}_{side}_mean"] = jnp.nanmean(cos)
  return numbers


# Whose heads lie side by side along `in`; of others along `out`.
INTO = ("o",)


def _in_groups(
  f: Callable[[Any], Any], trees: Mapping[str, Any]
) -> dict[str, Any]:
  """`f` of every tree: those of equal shapes by one program, one by one.

  The groups take turns too.
  """
  groups: dict[Any, list[str]] = {}
  for name, tree in trees.items():
    shapes = tuple(x.shape for x in jax.tree.leaves(tree))
    groups.setdefault(shapes, []).append(name)
  out: dict[str, Any] = {}
  done: list[Array] = []
  for names in groups.values():
    together = jax.tree.map(
      lambda *x: jnp.stack(x), *(trees[name] for name in names)
    )
    together = jax.tree.map(partial(_after, done), together)
    found = jax.lax.map(f, together)
    done = jax.tree.leaves(found)
    out |= {
      name: jax.tree.map(lambda x, i=i: x[i], found)
      for i, name in enumerate(names)
    }
  return {name: out[name] for name in trees}


def _after(before: list[Array], x: Array) -> Array:
  return after(x, *before)

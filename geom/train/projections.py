"""Probes of all projections of a model at once, one after the other.

What `geom.train.probing` does for one stack, for each of `q`, `k`, `up` and so
on, with names such as `q/weights/cos_input_mean`. The projections take turns,
since a compiled program must not have two LAPACK calls at the same time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Array, Float

from geom import roles
from geom.linalg import after
from geom.models.base import Params
from geom.optim import observe
from geom.train import probing
from geom.train.probing import Gradients, Probe
from geom.train.state import State

Stacks = Mapping[str, Float[Array, "layer m n"]]


def reference_of(
  params: Params, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
  """What probes of every projection compare with, at step 0.

  Args:
    params: at step 0.
    sections: see `geom.train.probing.reference_of`.
  """
  found: dict[str, Any] = {}
  done: list[Array] = []
  for projection, weights in roles.projections(params).items():
    found[projection] = probing.reference_of_stack(
      after(weights, *done), sections
    )
    done.append(found[projection]["sigma_1"])
  return found


def make_probe(
  gradients: Gradients,
  *,
  names: Sequence[str],
  stacks: Sequence[str],
  method: str,
  k: int | None,
  name: str = "probe",
) -> Probe:
  """Like `geom.train.probing.make_probe`, of every projection.

  `state.reference` is that of `reference_of`, by projection.

  Args:
    gradients, names, stacks, method, k, name: see there. `gradient_sum` and
      `optimizer_updates` are read from links of `geom.optim.observe` that
      select `geom.roles.projections`.

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
    if "gradients" in stacks:
      grads, beside = gradients(state.params)
      found["gradients"] = roles.projections(grads)
      numbers |= beside
    reference = {}
    done: list[Array] = []
    for projection in weights:
      taken, reference[projection] = probing.of_stacks(
        {s: after(found[s][projection], *done) for s in stacks},
        state.reference[projection],
        names=names,
        method=method,
        k=k,
        name=name,
      )
      done += taken.values()
      numbers |= {f"{projection}/{key}": v for key, v in taken.items()}
    return numbers, reference

  return probe

"""The probes by name, over one set of decompositions.

A user with a stack of kernels:

    parts = decompose({"weights": kernels})
    numbers = take(("cosines", "effective_rank"), parts)

Every probe is a pure function of `Parts`, which hold the stacks of one
projection and their singular triplets, taken once for all probes: on a CPU a
program should call LAPACK once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from geom import linalg, refine
from geom.linalg import Triplets
from geom.probes import alignment, change, continuity
from geom.refine import Warm

SIDES = ("input", "output")
OVERLAPS = (1, 2, 5, 10)
INDICES = 10  # Of same-index cosines.
Numbers = dict[str, Any]


class Parts(NamedTuple):
  """Stacks of one projection and what they decompose into, by name.

  Attributes:
    stacks: `(L, in, out)` each, all of one shape: `weights`, `updates`
      (W - W(0)), `gradients`, `gradient_sum`, `optimizer_updates`, or any
      other name.
    triplets: of each.
    start: W(0) and its spectral norms `(L,)`, for dominance; or None.
    before: triplets of the weights at an earlier probe, for drift; or None.
  """

  stacks: Mapping[str, Float[Array, "layer m n"]]
  triplets: Mapping[str, Triplets]
  start: tuple[Float[Array, "layer m n"], Float[Array, " layer"]] | None
  before: Triplets | None


METHODS: dict[str, Callable[[Any, int], Triplets]] = {
  "gram": linalg.leading_triplets,
  "svd": linalg.exact_triplets,
}


def decompose(
  stacks: Mapping[str, Float[Array, "layer m n"]],
  *,
  k: int | None = None,
  method: str = "gram",
  start: tuple[Float[Array, "layer m n"], Float[Array, " layer"]] | None = None,
  before: Triplets | None = None,
) -> Parts:
  """Decomposes all stacks at once.

  Args:
    stacks: by name, all of one shape.
    k: how many triplets; None for all, which alignment and rank want.
    method: a name of `METHODS`.
    start, before: see `Parts`.

  Raises:
    KeyError: no method has that name.
  """
  together = jnp.stack([x.astype(jnp.float32) for x in stacks.values()])
  triplets = METHODS[method](together, k or min(together.shape[-2:]))
  each = {
    name: Triplets(*(x[i] for x in triplets)) for i, name in enumerate(stacks)
  }
  return Parts(stacks, each, start, before)


MOST = 16  # Triplets of a warm decomposition.
SPARE = 10  # Columns of its basis beyond those: they make it converge.


def cold(stacks: Mapping[str, Float[Array, "layer m n"]], k: int) -> Warm:
  """Nothing known of such stacks yet, for `decompose_warm`."""
  together = jnp.stack(list(stacks.values()))
  return refine.cold(together, min(k + SPARE, *together.shape[-2:]))


def decompose_warm(
  stacks: Mapping[str, Float[Array, "layer m n"]],
  warm: Warm,
  *,
  k: int,
  start: tuple[Float[Array, "layer m n"], Float[Array, " layer"]] | None = None,
  before: Triplets | None = None,
) -> tuple[Parts, Warm, Numbers]:
  """Like `decompose`, from what the call before has found.

  Args:
    stacks, start, before: as there.
    warm: `cold(stacks, k)`, then what the call before returned.
    k: how many triplets, at most `MOST`. All vectors but the last, and all
      values, are as right as `geom.refine` says; the first is all that is
      wanted of two.

  Returns:
    The parts, what to call with next, and `warm/residual`, the largest, with
    how many matrices had too large a residual, `warm/fell_back`, and how many
    were decomposed anew, those and the ones whose turn it was, `warm/exact`.

  Raises:
    ValueError: see `geom.refine.refine_triplets`.
  """
  together = jnp.stack([x.astype(jnp.float32) for x in stacks.values()])
  found = refine.refine_triplets(together, warm, k, wanted=max(k - 1, 1))
  each = {
    name: Triplets(*(x[i] for x in found.triplets))
    for i, name in enumerate(stacks)
  }
  numbers = {
    "warm/residual": jnp.nanmax(found.residual),
    "warm/fell_back": jnp.sum(found.fell_back, dtype=jnp.float32),
    "warm/exact": jnp.sum(found.exact, dtype=jnp.float32),
  }
  return Parts(stacks, each, start, before), found.warm, numbers


def _mean(values: Float[Array, "*s"]) -> Float[Array, ""]:
  """Over what is defined."""
  return jnp.nanmean(values)


def cosines(parts: Parts) -> Numbers:
  """|cos| of adjacent leading vectors, the gap, and the share defined."""
  out = {}
  for name, t in parts.triplets.items():
    pairs = continuity.adjacent_cosines(t)
    out |= {
      f"{name}/cos_input": pairs.cos_input,
      f"{name}/cos_output": pairs.cos_output,
      f"{name}/gap": pairs.gap,
      f"{name}/sigma_1": t.values[..., 0],
      f"{name}/cos_input_mean": _mean(pairs.cos_input),
      f"{name}/cos_output_mean": _mean(pairs.cos_output),
      f"{name}/defined": jnp.mean(jnp.isfinite(pairs.cos_input)),
    }
  return out


def overlaps(parts: Parts) -> Numbers:
  """Overlap of the leading k-dimensional subspaces, k = 1, 2, 5, 10."""
  return {
    f"{name}/overlap_{k}_{side}_mean": _mean(continuity.overlap(t, k, side))
    for name, t in parts.triplets.items()
    for side in SIDES
    for k in OVERLAPS
    if k <= t.values.shape[-1]
  }


def same_index(parts: Parts) -> Numbers:
  """|cos| of vectors of the same index, mean over pairs, ten of them."""
  return {
    f"{name}/same_index_{side}": jnp.nanmean(
      continuity.same_index_cosines(t, side)[..., :INDICES], axis=0
    )
    for name, t in parts.triplets.items()
    for side in SIDES
  }


def flattened(parts: Parts) -> Numbers:
  """Cosine of adjacent matrices as long vectors; of gradients: coherence."""
  out = {}
  for name, stack in parts.stacks.items():
    cos = continuity.flattened_cosine(stack)
    out |= {
      f"{name}/flattened_cosine": cos,
      f"{name}/flattened_cosine_mean": _mean(cos),
    }
  return out


def aligned(parts: Parts) -> Numbers:
  """Centred and matched alignment of adjacent layers over the spectrum."""
  out = {}
  for name, stack in parts.stacks.items():
    for side in SIDES:
      centred = alignment.centred_alignment(stack, side)
      matched = alignment.matched_alignment(parts.triplets[name], side)
      out |= {
        f"{name}/centred_{side}_mean": _mean(centred),
        f"{name}/matched_{side}_mean": _mean(matched),
      }
  return out


def ranks(parts: Parts) -> Numbers:
  """Effective rank of every layer."""
  out = {}
  for name, t in parts.triplets.items():
    rank = alignment.effective_rank(t.values)
    out |= {
      f"{name}/effective_rank": rank,
      f"{name}/effective_rank_mean": _mean(rank),
    }
  return out


def dominance(parts: Parts) -> Numbers:
  """W - W(0) against W(0), spectral and Frobenius.

  Raises:
    ValueError: the parts have no start.
  """
  if parts.start is None:
    raise ValueError("dominance needs the start, W(0)")
  start, sigma_1 = parts.start
  spectral = continuity.spectral_dominance(
    parts.triplets["updates"].values[..., 0], sigma_1
  )
  frobenius = continuity.frobenius_dominance(parts.stacks["updates"], start)
  return {
    "dominance/spectral": spectral,
    "dominance/spectral_mean": jnp.mean(spectral),
    "dominance/frobenius": frobenius,
    "dominance/frobenius_mean": jnp.mean(frobenius),
  }


def transfer(parts: Parts) -> Numbers:
  """|cos| of the weights' leading vectors with those of what was added."""
  weights = parts.triplets["weights"]
  return {
    f"transfer/{name}_{side}_mean": _mean(
      change.transfer(weights, parts.triplets[name], side)
    )
    for name in ("updates", "gradient_sum")
    if name in parts.triplets
    for side in SIDES
  }


def drift(parts: Parts) -> Numbers:
  """Angle of the weights' leading vectors to those of an earlier probe.

  Raises:
    ValueError: the parts have no earlier triplets.
  """
  if parts.before is None:
    raise ValueError("drift needs the triplets of an earlier probe")
  weights = parts.triplets["weights"]
  return {
    f"drift/{side}": change.rotation_drift(weights, parts.before, side)
    for side in SIDES
  }


PROBES: dict[str, Callable[[Parts], Numbers]] = {
  "cosines": cosines,
  "overlaps": overlaps,
  "same_index": same_index,
  "flattened": flattened,
  "aligned": aligned,
  "ranks": ranks,
  "dominance": dominance,
  "transfer": transfer,
  "drift": drift,
}


def take(names: Sequence[str], parts: Parts) -> Numbers:
  """The numbers of the probes of those names.

  Raises:
    KeyError: no probe has that name.
    ValueError: a probe lacks what it needs.
  """
  numbers: Numbers = {}
  for name in names:
    numbers |= PROBES[name](parts)
  return numbers


def chance(names: Sequence[str], m: int, n: int) -> dict[str, float]:
  """Chance levels of what has one, by the end of the number's name.

  Args:
    names: of probes.
    m, n: input and output dimension of the kernels.
  """
  levels = {}
  for side, d in zip(SIDES, (m, n), strict=True):
    if "cosines" in names or "same_index" in names:
      levels[f"cos_{side}"] = continuity.chance_cosine(d)
    if "overlaps" in names:
      for k in OVERLAPS:
        levels[f"overlap_{k}_{side}"] = continuity.chance_overlap(k, d)
    if "aligned" in names:
      levels[f"centred_{side}"] = 0.0
      levels[f"matched_{side}"] = continuity.chance_cosine(d)
  return levels

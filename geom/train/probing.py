"""Probes of a training state: which stacks, which numbers, by which method.

What a probe compares with is kept in `State.reference`, so that it is saved
and restored with everything else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from geom import linalg, roles
from geom.linalg import Triplets
from geom.models.base import Params
from geom.optim import observe
from geom.probes import suite
from geom.train.state import State

STACKS = (
  "weights",
  "gradients",
  "updates",
  "gradient_sum",
  "optimizer_updates",
)
METHODS = (*suite.METHODS, "warm")
# gradients(params) -> (gradients like params, numbers beside them)
Gradients = Callable[[Params], tuple[Params, Mapping[str, Any]]]
Probe = Callable[[State], tuple[Mapping[str, Any], Any]]


def require(
  *, names: Sequence[str], stacks: Sequence[str], method: str, k: int | None
) -> None:
  """Raises ValueError unless those probes can be taken so."""
  wants = {
    "dominance": ("updates",),
    "transfer": ("weights",),
    "drift": ("weights",),
  }
  if names and not stacks:
    raise ValueError(f"probes {', '.join(names)} need stacks")
  for name in names:
    for stack in wants.get(name, ()):
      if stack not in stacks:
        raise ValueError(f"probe {name} needs {stack} among the stacks")
    if name == "transfer" and not {"updates", "gradient_sum"} & set(stacks):
      raise ValueError("probe transfer needs updates or gradient_sum too")
    if name in ("aligned", "ranks") and k is not None:
      raise ValueError(f"probe {name} needs the whole spectrum, k=None")
  if method not in METHODS:
    raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
  if method == "warm" and (k is None or not 2 <= k <= suite.MOST):
    raise ValueError(f"method warm takes k in 2..{suite.MOST}, got {k}")


def reference_of(
  params: Params,
  projection: str,
  sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
  """What probes of a projection compare with, at step 0.

  Args:
    params: at step 0.
    projection: a name of `geom.roles.projections`.
    sections: how each probe is taken, by its name: `names`, `stacks`,
      `method`, `k`. For those of method `warm` a basis is kept, for those
      that name `drift` the weights' triplets at the probe before.
  """
  weights = roles.projections(params)[projection]
  return reference_of_stack(weights, sections)


def reference_of_stack(
  weights: Float[Array, "layer m n"],
  sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
  """`reference_of` a stack of kernels W(0)."""
  weights = weights.astype(jnp.float32)
  top = linalg.leading_triplets(weights, 2)
  sections = sections or {}
  return {
    "weights": weights,
    "sigma_1": top.values[..., 0],
    # Copies: a state must not hold one array twice, it is donated.
    "before": {
      name: Triplets(*(jnp.copy(x) for x in top))
      for name, how in sections.items()
      if "drift" in how["names"]
    },
    "warm": {
      name: suite.cold({s: weights for s in how["stacks"]}, how["k"])
      for name, how in sections.items()
      if how["method"] == "warm" and how["stacks"]
    },
  }


def with_start(reference: Any, saved: Any) -> Any:
  """A new reference that has W(0) of a saved one."""
  return {**reference, **{k: saved[k] for k in ("weights", "sigma_1")}}


def make_probe(
  gradients: Gradients,
  projection: str,
  *,
  names: Sequence[str],
  stacks: Sequence[str],
  method: str,
  k: int | None,
  name: str = "probe",
) -> Probe:
  """A pure function of the state of one seed, for `geom.train.run.Measure`.

  Args:
    gradients: of the loss on a fixed batch; called if `gradients` is among
      the stacks.
    projection: a name of `geom.roles.projections`.
    names: of `geom.probes.suite.PROBES`.
    stacks: of `STACKS`. `gradient_sum` and `optimizer_updates` are read from
      the links of `geom.optim.observe` with these names.
    method: a name of `METHODS`.
    k: how many triplets; None for all.
    name: of this probe, under which `reference_of` keeps what it needs.

  Raises:
    ValueError: see `require`.
  """
  require(names=names, stacks=stacks, method=method, k=k)

  def probe(state: State) -> tuple[Mapping[str, Any], Any]:
    reference = state.reference
    weights = roles.projections(state.params)[projection]
    numbers: Mapping[str, Any] = {}
    found = {
      "weights": weights,
      "updates": weights - reference["weights"],
      **observe.seen(state.opt_state),
    }
    if "gradients" in stacks:
      grads, numbers = gradients(state.params)
      found["gradients"] = roles.projections(grads)[projection]
    taken, reference = of_stacks(
      {s: found[s] for s in stacks},
      reference,
      names=names,
      method=method,
      k=k,
      name=name,
    )
    return {**numbers, **taken}, reference

  return probe


def of_stacks(
  stacks: Mapping[str, Float[Array, "layer m n"]],
  reference: Mapping[str, Any],
  *,
  names: Sequence[str],
  method: str,
  k: int | None,
  name: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The numbers of one projection, and its reference from now on.

  Args:
    stacks: by names of `STACKS`; without any there are no numbers.
    reference: of `reference_of`, or what the probe before returned.
    names, method, k, name: see `make_probe`.
  """
  reference = dict(reference)
  numbers: dict[str, Any] = {}
  if not stacks:
    return numbers, reference
  start = (reference["weights"], reference["sigma_1"])
  before = reference["before"].get(name)
  if method == "warm":
    parts, warm, numbers = suite.decompose_warm(
      stacks, reference["warm"][name], k=k, start=start, before=before
    )
    reference["warm"] = {**reference["warm"], name: warm}
  else:
    parts = suite.decompose(
      stacks, k=k, method=method, start=start, before=before
    )
  numbers = {**numbers, **suite.take(names, parts)}
  if "drift" in names:
    now = parts.triplets["weights"]
    top = Triplets(now.left[..., :2], now.values[..., :2], now.right[..., :2])
    reference["before"] = {**reference["before"], name: top}
  return numbers, reference

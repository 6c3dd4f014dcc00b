"""The loss along orbits of rotations, measured of a training state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.models.base import Params
from geom.optim import observe
from geom.probes import orbit
from geom.train.state import State

# The name of the link (`geom.optim.observe.last`) that has the last update of
# all parameters.
LAST_STEP = "last_step"


def rotations(
  d: int, angles: Sequence[float], generators: int
) -> Float[Array, "generator angle d d"]:
  """Rotations along fixed random generators, the same for every run."""
  along = [orbit.generator(jax.random.key(i), d) for i in range(generators)]
  exp = jax.jit(orbit.rotation)
  return jnp.stack([jnp.stack([exp(a, t) for t in angles]) for a in along])


def make_orbit(
  loss: Callable[[Params], Float[Array, ""]],
  projection: str,
  turns: Float[Array, "generator angle d d"],
) -> Callable[[State], tuple[Mapping[str, Any], Any]]:
  """A pure function of the state of one seed, for `geom.train.run.Measure`.

  Its numbers: `orbit/stream`, the change of the loss in nats at each angle
  when the whole residual stream is turned, mean over the generators;
  `orbit/between`, when the output of the middle layer alone is turned and
  turned back at the next one's input; `orbit/drift_share` of the last step,
  NaN before the first, if the optimizer remembers it as `LAST_STEP`.

  Args:
    loss: of parameters, on a fixed batch.
    projection: the square kernels between which one frame is turned, the name
      of a parameter's module with a `kernel` `(layer, d, d)`.
    turns: from `rotations`.
  """

  def measure(state: State) -> tuple[Mapping[str, Any], Any]:
    params = state.params
    middle = params[projection]["kernel"].shape[0] // 2 - 1

    def between(r: Float[Array, "d d"]) -> Params:
      kernel = orbit.turn_between(params[projection]["kernel"], middle, r)
      return {**params, projection: {**params[projection], "kernel": kernel}}

    def both(r: Float[Array, "d d"]) -> tuple[Array, Array]:
      return loss(orbit.turn_stream(params, r)), loss(between(r))

    d = turns.shape[-1]
    # One by one: all at once would need the memory of that many networks.
    losses = jax.lax.map(both, turns.reshape(-1, d, d))
    start = loss(params)
    stream, one = (
      jnp.mean(x.reshape(turns.shape[:2]), axis=0) - start for x in losses
    )
    numbers = {"orbit/stream": stream, "orbit/between": one}
    seen = observe.seen(state.opt_state)
    if LAST_STEP in seen:
      share = orbit.drift_share(params, seen[LAST_STEP], d)
      numbers["orbit/drift_share"] = share
    return numbers, state.reference

  return measure

"""Notices, inside the compiled step, that a run has become unstable.

A run is unstable once its smoothed training loss has stayed more than a margin
above the lowest it had, or its attention saturated, for so many steps in a row.
Both are of the compiled state, so nothing waits for the host.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

NOT_YET = -1
CAUSES = ("none", "loss", "saturation")


class Watch(NamedTuple):
  """What counts as unstable, and what then.

  Attributes:
    margin: nats that the smoothed loss may be above its lowest.
    smoothing: steps of the exponential average of the loss: a step weighs
      1 / smoothing, more while there are fewer. At 1 it is the loss itself.
    patience: steps in a row after which it fires.
    saturation: share of saturated attention rows above which a step counts;
      None: no share does.
    stop: whether a seed ends where it fires.
    saturation_of: `state.reference` -> the share that was measured last.
  """

  margin: float
  smoothing: int
  patience: int
  saturation: float | None
  stop: bool
  saturation_of: Callable[[Any], Float[Array, ""]] | None = None


class Watched(NamedTuple):
  """What the watch has seen so far; left as it is once it has fired.

  Attributes:
    smoothed: exponential average of the training loss, bias-corrected, nats.
    lowest: the smallest that it was; infinity before the first step.
    lowest_step: at which step.
    above: how many steps in a row it has been above lowest + margin.
    saturation: the share measured last; NaN without `saturation_of`.
    saturated: how many steps in a row that has been above its threshold.
    fired_at: the step at which either count reached patience; -1: not yet.
    cause: where in `CAUSES`; of two at one step the loss.
  """

  smoothed: Float[Array, "*t"]
  lowest: Float[Array, "*t"]
  lowest_step: Int[Array, "*t"]
  above: Int[Array, "*t"]
  saturation: Float[Array, "*t"]
  saturated: Int[Array, "*t"]
  fired_at: Int[Array, "*t"]
  cause: Int[Array, "*t"]


def begin(watch: Watch) -> Watched:
  """What there is to be seen before the first step.

  Raises:
    ValueError: settings that make no sense.
  """
  if not (math.isfinite(watch.margin) and watch.margin > 0):
    raise ValueError(f"watch: margin {watch.margin} must be positive")
  for name in ("smoothing", "patience"):
    if (value := getattr(watch, name)) < 1:
      raise ValueError(f"watch: {name} {value} must be at least 1")
  if watch.saturation is not None:
    if not 0 < watch.saturation <= 1:
      raise ValueError(f"watch: saturation {watch.saturation} is no share")
    if watch.saturation_of is None:
      raise ValueError("watch: saturation needs saturation_of")

  def count(value: int) -> Int[Array, ""]:
    return jnp.full((), value, jnp.int32)

  return Watched(
    smoothed=jnp.zeros((), jnp.float32),
    lowest=jnp.full((), jnp.inf, jnp.float32),
    lowest_step=count(0),
    above=count(0),
    saturation=jnp.full((), jnp.nan, jnp.float32),
    saturated=count(0),
    fired_at=count(NOT_YET),
    cause=count(0),
  )


def look(
  watch: Watch,
  seen: Watched,
  *,
  step: Int[Array, ""],
  loss: Float[Array, ""],
  reference: Any,
) -> Watched:
  """What the watch has seen after one more step.

  Args:
    watch: what counts as unstable.
    seen: up to the step before.
    step: number of this one, from 1.
    loss: its training loss, finite.
    reference: of the state; `watch.saturation_of` reads it.
  """
  share = 1 / watch.smoothing
  # The weights of an average of `step` numbers sum up to 1 - (1 - share)^step.
  total = -jnp.expm1(step * jnp.log1p(jnp.float32(-share)))
  loss = loss.astype(jnp.float32)
  smoothed = seen.smoothed + share / total * (loss - seen.smoothed)
  better = smoothed < seen.lowest
  lowest = jnp.where(better, smoothed, seen.lowest)
  above = jnp.where(smoothed > lowest + watch.margin, seen.above + 1, 0)
  saturation, saturated = seen.saturation, seen.saturated
  if watch.saturation_of is not None:
    saturation = watch.saturation_of(reference).astype(jnp.float32)
  if watch.saturation is not None:
    saturated = jnp.where(saturation > watch.saturation, saturated + 1, 0)
  by_loss = above >= watch.patience
  fires = by_loss | (saturated >= watch.patience)
  cause = jnp.where(by_loss, CAUSES.index("loss"), CAUSES.index("saturation"))
  now = Watched(
    smoothed=smoothed,
    lowest=lowest,
    lowest_step=jnp.where(better, step, seen.lowest_step),
    above=above,
    saturation=saturation,
    saturated=saturated,
    fired_at=jnp.where(fires, step, NOT_YET),
    cause=jnp.where(fires, cause, 0),
  )
  fired = seen.fired_at != NOT_YET
  return Watched(
    *(
      jnp.where(fired, *x).astype(x[0].dtype)
      for x in zip(seen, now, strict=True)
    )
  )


def event(seen: Watched) -> Mapping[str, Any]:
  """What the row of a watch that has fired says, besides its step and seed.

  Args:
    seen: of one seed, at any step from that on, on the host.
  """
  return {
    "event": "unstable",
    "cause": CAUSES[int(seen.cause)],
    "lowest": seen.lowest,
    "lowest_step": int(seen.lowest_step),
    "smoothed": seen.smoothed,
    "saturation": seen.saturation,
  }


def sentence(seen: Watched) -> str:
  """The same for people, without the step."""
  if CAUSES[int(seen.cause)] == "loss":
    return (
      f"its smoothed loss {seen.smoothed:.4g} stays above {seen.lowest:.4g}, "
      f"what it was at step {seen.lowest_step}"
    )
  return f"a share of {seen.saturation:.2g} of its attention is saturated"

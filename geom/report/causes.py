"""Which sign of an unstable run moved first, and by how many steps.

A signal has moved once it has gone a tenth of its way from its baseline to its
extreme, and stays beyond that; way is measured in logarithms for what is
positive by nature, and plainly for shares and for the loss. Baseline and
extreme are the two between which it went furthest, so a loss that falls while
the model learns and rises later has moved, also if it ends below its start. All
of it is looked at up to the step at which the run was noticed. Of the loss and
the norm of the gradient, which are of one batch, medians over five are taken,
and their way must be longer than runs that are stable go by noise.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from geom.record import Row
from geom.report import series
from geom.report.claims import Found, Quantity, over_layers

SHARE = 0.1  # Of the way from baseline to extreme: from there it has moved.
LEAST = 0.1  # A way shorter than that (share, or log) is no move.
# Likewise of what is of batches. Runs that stayed stable go .2 nats, and a
# factor of 2.7, by noise and learning.
LEAST_LOSS, LEAST_NORM = 0.3, float(np.log(4))
BATCHES = 5  # Rows in a median of what is measured of one batch.
RULE = (
  f"A signal has moved once it has gone {SHARE:.0%} of its way from baseline "
  "to extreme, the two between which it went furthest up to the step at which "
  "the run was noticed, and stays beyond that; in logarithms but for "
  f"saturation and loss. Less than {LEAST_LOSS:g} nats of loss, a factor of "
  f"{np.exp(LEAST_NORM):.0f} of the gradient's norm, {LEAST:g} of saturation "
  f"or a factor of {np.exp(LEAST):.2f} of the others is no move (–). The "
  "resolution is the distance of the two measurements it lies between, and "
  f"{BATCHES} times that for loss and norm, medians over {BATCHES} batches; "
  "onsets nearer than that are ties."
)


class Signal(NamedTuple):
  """What is looked at.

  Attributes:
    kind, keys: of rows; of several keys and of all layers one is taken.
    how: `max`, `min` or `mean` over keys and layers.
    sign: 1 if it grows, -1 if it falls.
    log: whether ratios count, or differences.
    least: a way, likewise, that is no move if it is shorter.
  """

  kind: str
  keys: tuple[str, ...]
  how: str
  sign: int
  log: bool
  least: float = LEAST


SIGNALS = {
  "sigma of Q, K": Signal(
    "probe", ("q/weights/sigma_1", "k/weights/sigma_1"), "max", 1, True
  ),
  "sigma of W_Q W_K.T": Signal(
    "probe", ("attention/qk_sigma",), "max", 1, True
  ),
  "logit": Signal("probe", ("attention/logit_max",), "max", 1, True),
  "entropy": Signal("probe", ("attention/entropy_nats",), "min", -1, True),
  "saturation": Signal("probe", ("attention/saturation",), "mean", 1, False),
  "Jacobian": Signal("probe", ("attention/jacobian",), "min", -1, True),
  "gradient norm": Signal("train", ("grad_norm",), "mean", 1, True, LEAST_NORM),
  "loss": Signal("train", ("loss",), "mean", 1, False, LEAST_LOSS),
}


class Onset(NamedTuple):
  """When a signal moved: NaN if it did not."""

  step: float
  resolution: float


def onsets(
  rows: Sequence[Row], condition: str, seed: int, until: int
) -> dict[str, Onset]:
  """The onset of every signal that was measured, up to a step."""
  mine = [r for r in rows if r.get("seed") == seed and r["step"] <= until]
  found = {}
  for name, signal in SIGNALS.items():
    path = values(mine, condition, signal)
    if path is not None:
      step, width = onset(
        *path, sign=signal.sign, log=signal.log, least=signal.least
      )
      found[name] = Onset(step, width * _rows_in(signal))
  return found


def _rows_in(signal: Signal) -> int:
  return BATCHES if signal.kind == "train" else 1


def values(
  rows: Sequence[Row], condition: str, signal: Signal
) -> tuple[Real[np.ndarray, " step"], Float[np.ndarray, " step"]] | None:
  """A signal of one seed against step, or None where it was not measured."""
  curves = [
    curve
    for key in signal.keys
    if (curve := series.curve(rows, condition, signal.kind, key)) is not None
  ]
  if not curves:
    return None
  each = [over_layers(c.values[0], signal.how, keep=1) for c in curves]
  found = over_layers(np.stack(each, axis=-1), signal.how, keep=1)
  steps = curves[0].steps
  if signal.kind == "train":
    steps, found = _medians(steps, found)
  return steps, found


def onset(
  steps: Real[np.ndarray, " step"],
  signal: Float[np.ndarray, " step"],
  *,
  sign: int,
  log: bool,
  least: float = LEAST,
) -> Onset:
  """The step at which a signal leaves its baseline for good.

  Args:
    steps: of the measurements, rising.
    signal: measured there; what is not finite, or not positive where ratios
      count, is left out.
    sign: 1 for one that grows, -1 for one that falls.
    log: whether ratios count.
    least: a way shorter than that is no move.
  """
  usable = np.isfinite(signal) & (not log or signal > 0)
  steps, y = steps[usable], signal[usable]
  nothing = Onset(float("nan"), float("nan"))
  if len(y) < 2:
    return nothing
  y = sign * (np.log(y) if log else y)
  top = int(np.argmax(y - np.minimum.accumulate(y)))
  base = int(np.argmin(y[: top + 1]))
  if y[top] - y[base] < least:
    return nothing
  level = y[base] + SHARE * (y[top] - y[base])
  below = np.flatnonzero(y < level)
  i = int(below[below < top][-1])
  if below[-1] > top:  # It came back: it left for good only after that.
    i = int(below[-1])
    if i == len(y) - 1:
      return nothing
  share = (level - y[i]) / (y[i + 1] - y[i])
  width = float(steps[i + 1] - steps[i])
  return Onset(float(steps[i] + share * width), width)


def order(found: dict[str, Onset]) -> list[list[str]]:
  """Names of signals that moved, earliest first, ties together.

  A tie is an onset within the coarser resolution of the two of that of the
  first of its group.
  """
  moved = {k: v for k, v in found.items() if np.isfinite(v.step)}
  groups: list[list[str]] = []
  for name in sorted(moved, key=lambda k: moved[k].step):
    if groups and tied(moved[groups[-1][0]], moved[name]):
      groups[-1].append(name)
    else:
      groups.append([name])
  return groups


def tied(one: Onset, other: Onset) -> bool:
  """Whether two onsets are within the coarser resolution of the two."""
  return abs(one.step - other.step) <= max(one.resolution, other.resolution)


def in_order(*signals: str) -> Quantity:
  """Whether each signal moved no earlier than the one before (1) or not (0).

  Neighbours that are ties count as in order. NaN for a seed that was not
  noticed as unstable, or of which one of the signals did not move until then.
  """

  def quantity(rows: Sequence[Row], condition: str) -> Found:
    noticed = series.events(rows, condition, "unstable")
    if not noticed:
      return None
    verdicts = []
    for seed in series.seeds(rows, condition):
      verdicts.append(float("nan"))
      if seed not in noticed:
        continue
      found = onsets(rows, condition, seed, noticed[seed]["step"])
      if all(s in found and np.isfinite(found[s].step) for s in signals):
        pairs = [(found[a], found[b]) for a, b in pairwise(signals)]
        verdicts[-1] = float(
          all(a.step <= b.step or tied(a, b) for a, b in pairs)
        )
    return None, np.array(verdicts)

  return quantity


def _medians(
  steps: Real[np.ndarray, " step"], found: Float[np.ndarray, " step"]
) -> tuple[Real[np.ndarray, " window"], Float[np.ndarray, " window"]]:
  """Of BATCHES consecutive ones, at the middle one's step."""
  if len(found) < BATCHES:
    return steps, found
  windows = np.lib.stride_tricks.sliding_window_view(found, BATCHES)
  half = BATCHES // 2
  return steps[half : len(steps) - half], np.median(windows, axis=1)

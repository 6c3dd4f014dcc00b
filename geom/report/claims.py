"""A paper's claims beside our numbers, judged by rules."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from geom.record import Row
from geom.report import diagnosis, series
from geom.report.markdown import number

# (rows, condition) -> the step it is of, None if of several, and a value a
# seed, NaN where there is none; or None where the run has nothing to say.
Found = tuple[int | None, Float[np.ndarray, " seed"]] | None
Quantity = Callable[[Sequence[Row], str], Found]


class Claim(NamedTuple):
  """One number of a paper and when ours counts as agreeing with it.

  Attributes:
    text: the claim, in a line.
    paper: what the paper reports, as it reports it.
    trial: what an earlier trial of ours saw.
    condition: where to look.
    quantity: at what.
    low: the claim holds for a seed whose value is at least this; None: no
      bound.
    high: likewise, at most.
    chance: the value that chance alone gives, if it has one.
  """

  text: str
  paper: str
  trial: str
  condition: str
  quantity: Quantity
  low: float | None = None
  high: float | None = None
  chance: float | None = None


class Judged(NamedTuple):
  """A claim with what was seen: a mean, a spread, seeds, a verdict."""

  claim: Claim
  step: int | None
  mean: float
  spread: float
  seeds: int
  verdict: str


def start(key: str, kind: str = "probe", part: slice | None = None) -> Quantity:
  """A number at step 0; of a list, the mean of a part."""
  return lambda rows, name: _at(rows, name, kind, key, "start", part)


def last(key: str, kind: str = "probe", part: slice | None = None) -> Quantity:
  """A number at the last step; a seed that failed has none."""
  return lambda rows, name: _at(rows, name, kind, key, "last", part)


def turned(key: str) -> Quantity:
  """log10 of the largest change of the loss at any angle, last `orbit` row.

  Not below -9, which stands for no change at all.
  """

  def quantity(rows: Sequence[Row], name: str) -> Found:
    found = series.values_at(rows, name, "orbit", key, "last")
    if found is None:
      return None
    step, changes = found
    return step, np.log10(np.fmax(np.abs(changes), 1e-9).max(axis=-1))

  return quantity


def highest(key: str) -> Quantity:
  """The highest value that each seed ever had at a probe."""

  def quantity(rows: Sequence[Row], name: str) -> Found:
    found = series.curve(rows, name, "probe", key)
    return found and (None, np.fmax.reduce(found.values, axis=1))

  return quantity


def extreme(key: str, how: str, *, ever: bool = False) -> Quantity:
  """The largest, least or mean number of a probe over layers.

  Args:
    key: of a list over layers, or of lists in it.
    how: `max`, `min` or `mean`.
    ever: of all steps, the largest or least of those; else of the last step,
      at which a seed that failed has none.
  """

  def quantity(rows: Sequence[Row], name: str) -> Found:
    if ever:
      found = series.curve(rows, name, "probe", key)
      if found is None:
        return None
      step, values = None, over_layers(found.values, how, keep=2)
      return step, over_layers(values, how, keep=1)
    last = series.values_at(rows, name, "probe", key, "last")
    return last and (last[0], over_layers(last[1], how, keep=1))

  return quantity


def over_layers(
  values: Float[np.ndarray, "..."], how: str, *, keep: int
) -> Float[np.ndarray, "..."]:
  """Largest, least or mean over all axes after some, NaN left out."""
  flat = values.reshape(*values.shape[:keep], -1)
  if how == "mean":
    mean, _, _ = series.mean_spread(np.moveaxis(flat, -1, 0))
    return mean
  return {"max": np.fmax, "min": np.fmin}[how].reduce(flat, axis=-1)


def difference(kind: str, key: str, other: str) -> Quantity:
  """A number at the last step minus that of another condition, seed by seed.

  Nothing where the two do not end at the same step, as when one is not done.
  """

  def quantity(rows: Sequence[Row], name: str) -> Found:
    mine = series.values_at(rows, name, kind, key, "last")
    theirs = series.values_at(rows, other, kind, key, "last")
    if mine is None or theirs is None or mine[0] != theirs[0]:
      return None
    of = dict(zip(series.seeds(rows, other), theirs[1], strict=True))
    missing = float("nan")
    values = [
      value - of.get(seed, missing)
      for seed, value in zip(series.seeds(rows, name), mine[1], strict=True)
    ]
    return mine[0], np.array(values)

  return quantity


def growth(*keys: str) -> Quantity:
  """How many times the largest over layers is what it was at step 0.

  Args:
    keys: of lists over layers; of several the one that grew most is taken.
  """

  def quantity(rows: Sequence[Row], name: str) -> Found:
    found = [
      [
        series.values_at(rows, name, "probe", key, at)
        for at in ("start", "last")
      ]
      for key in keys
    ]
    found = [(first, last) for first, last in found if first and last]
    if not found:
      return None
    ratios = [
      over_layers(last, "max", keep=1) / over_layers(first, "max", keep=1)
      for (_, first), (_, last) in found
    ]
    return found[-1][1][0], np.fmax.reduce(ratios)

  return quantity


def fired(rows: Sequence[Row], condition: str) -> Found:
  """Whether a seed was noticed by the watch or not finite (1) or not (0)."""
  noticed = {
    *series.events(rows, condition, "unstable"),
    *series.failures(rows, condition),
  }
  seeds = series.seeds(rows, condition)
  if not seeds:
    return None
  return None, np.array([float(seed in noticed) for seed in seeds])


def crossing(x: str, y: str, level: float) -> Quantity:
  """The x, by interpolation, at which y first reaches a level."""

  def quantity(rows: Sequence[Row], name: str) -> Found:
    found = series.crossings(rows, name, x, y, level)
    return None if found is None else (None, found)

  return quantity


def _at(
  rows: Sequence[Row],
  condition: str,
  kind: str,
  key: str,
  at: str,
  part: slice | None,
) -> Found:
  found = series.values_at(rows, condition, kind, key, at)
  if found is None:
    return None
  step, values = found
  if part is None:
    return step, values
  mean, _, _ = series.mean_spread(np.moveaxis(values[:, part], -1, 0))
  return step, mean


def judge(claim: Claim, rows: Sequence[Row]) -> Judged | None:
  """The verdict on a claim, or None where the run has nothing to say.

  `reproduces` if every seed is within the bounds and so are mean +- 2
  standard deviations, `does not reproduce` if all of these are outside of
  them, on one side, else `undecided`. After step 0 seeds that failed, or whose
  test accuracy is no good in the end, do not count.
  """
  found = claim.quantity(rows, claim.condition)
  if found is None:
    return None
  step, values = found
  ignorant = np.zeros(values.shape, bool)
  if step != 0:
    ignorant = _did_not_learn(rows, claim.condition)
    values = np.where(ignorant, np.nan, values)
  mean, spread, n = series.mean_spread(values)
  failed = series.failures(rows, claim.condition)
  if not n:
    verdict = "undecided"
    if failed and len(failed) == len(values):
      verdict += f" (diverged at step {max(failed.values())})"
    elif ignorant.all():
      verdict += " (did not learn)"
  else:
    band = 2 * np.nan_to_num(spread) * np.array([-1, 1])
    seen = np.concatenate([values[np.isfinite(values)], mean + band])
    low = -np.inf if claim.low is None else claim.low
    high = np.inf if claim.high is None else claim.high
    if np.all((low <= seen) & (seen <= high)):
      verdict = "reproduces"
    elif np.all(seen < low) or np.all(seen > high):
      verdict = "does not reproduce"
    else:
      verdict = "undecided"
  return Judged(claim, step, float(mean), float(spread), int(n), verdict)


def _did_not_learn(
  rows: Sequence[Row], condition: str
) -> Bool[np.ndarray, " seed"]:
  """Seeds whose test accuracy in the end is below `diagnosis.LEARNT`."""
  found = series.values_at(rows, condition, "eval", "accuracy", "last")
  if found is None:
    return np.zeros(len(series.seeds(rows, condition)), bool)
  return found[1] < diagnosis.LEARNT


def bounds(claim: Claim) -> str:
  """The rule of a claim as one reads it."""
  if claim.low is None:
    return f"≤ {claim.high:g}"
  if claim.high is None:
    return f"≥ {claim.low:g}"
  return f"in [{claim.low:g}, {claim.high:g}]"


def table(claims: Sequence[Claim], rows: Sequence[Row]) -> str:
  """The claims that the run can judge, as a Markdown table."""
  lines = [
    "| claim | paper | earlier trial | ours (mean ± sd) | chance | seeds "
    "| step | rule | verdict |",
    "| --- " * 9 + "|",
  ]
  for claim in claims:
    judged = judge(claim, rows)
    if judged is not None:
      step = "–" if judged.step is None else judged.step
      lines.append(
        f"| {claim.text} | {claim.paper} | {claim.trial} "
        f"| {number(judged.mean)} ± {number(judged.spread)} "
        f"| {number(claim.chance)} | {judged.seeds} | {step} "
        f"| {bounds(claim)} | **{judged.verdict}** |"
      )
  return "\n".join(lines)

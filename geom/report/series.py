"""Numbers out of the rows of `metrics.jsonl`: curves, last values, spread."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from geom.record import Row


class Curve(NamedTuple):
  """One quantity of one condition, of all its seeds; NaN where missing."""

  steps: Int[np.ndarray, "step"]
  values: Float[np.ndarray, "seed step *shape"]


def conditions(rows: Sequence[Row]) -> list[str]:
  """Names of conditions, in the order of their first row."""
  return list(dict.fromkeys(r["condition"] for r in rows if "condition" in r))


def seeds(rows: Sequence[Row], condition: str) -> list[int]:
  """Seeds that a condition has measurements of."""
  return sorted(
    {r["seed"] for r in rows if r.get("condition") == condition and "seed" in r}
  )


def failures(rows: Sequence[Row], condition: str) -> dict[int, int]:
  """Seed -> the step whose loss or gradient was not finite."""
  found = events(rows, condition, "not finite")
  return {seed: row["step"] for seed, row in found.items()}


def events(rows: Sequence[Row], condition: str, event: str) -> dict[int, Row]:
  """Seed -> the row of an event of it, the last if there are several."""
  return {
    r["seed"]: r
    for r in rows
    if r.get("condition") == condition and r.get("event") == event
  }


def curve(
  rows: Sequence[Row], condition: str, kind: str, key: str
) -> Curve | None:
  """A named quantity against step, or None where no row has it."""
  found = {
    (r["seed"], r["step"]): np.asarray(r[key], dtype=float)
    for r in rows
    if r.get("condition") == condition and r["kind"] == kind and key in r
  }
  if not found:
    return None
  steps = sorted({step for _, step in found})
  shape = next(iter(found.values())).shape
  missing = np.full(shape, np.nan)
  values = [
    [found.get((seed, step), missing) for step in steps]
    for seed in seeds(rows, condition)
  ]
  return Curve(np.asarray(steps), np.asarray(values))


def values_at(
  rows: Sequence[Row], condition: str, kind: str, key: str, at: str
) -> tuple[int, Float[np.ndarray, "seed *shape"]] | None:
  """A quantity at the `start`, step 0, or the `last` step having it, by seed.

  At the last step a seed that failed on the way has NaN: what it had before
  is no result. None where no row has the quantity.
  """
  found = curve(rows, condition, kind, key)
  if found is None:
    return None
  i = {"start": 0, "last": -1}[at]
  if at == "start" and found.steps[0] > 0:
    return None
  values = found.values[:, i].copy()
  if at == "last":
    failed = failures(rows, condition)
    values[[seed in failed for seed in seeds(rows, condition)]] = np.nan
  return int(found.steps[i]), values


def crossing(
  x: Float[np.ndarray, " step"], y: Float[np.ndarray, " step"], level: float
) -> float:
  """The x at which y first reaches a level from below, NaN if it never does.

  Points where x or y is not finite are left out; between the two that are
  left on either side of the level, x is interpolated linearly. A y that is at
  the level or above from the start counts only once it has been below.
  """
  defined = np.isfinite(x) & np.isfinite(y)
  x, y = x[defined], y[defined]
  reached = np.flatnonzero((y[:-1] < level) & (y[1:] >= level))
  if not len(reached):
    return float("nan")
  i = reached[0]
  share = (level - y[i]) / (y[i + 1] - y[i])
  return float(x[i] + share * (x[i + 1] - x[i]))


def path(
  rows: Sequence[Row], condition: str, x_key: str, y_key: str
) -> (
  tuple[Float[np.ndarray, "seed step"], Float[np.ndarray, "seed step"]] | None
):
  """Two numbers of probes at the steps that have both, in order of steps.

  None where step 0 is not among them: what happened before is not known.
  """
  x = curve(rows, condition, "probe", x_key)
  y = curve(rows, condition, "probe", y_key)
  if x is None or y is None:
    return None
  steps, in_x, in_y = np.intersect1d(x.steps, y.steps, return_indices=True)
  if not len(steps) or steps[0] > 0:
    return None
  return x.values[:, in_x], y.values[:, in_y]


def crossings(
  rows: Sequence[Row], condition: str, x_key: str, y_key: str, level: float
) -> Float[np.ndarray, " seed"] | None:
  """`crossing` of two numbers of probes, by seed; None where a key is missing.

  A seed that failed later keeps the crossing it had.
  """
  found = path(rows, condition, x_key, y_key)
  if found is None:
    return None
  return np.array([crossing(x, y, level) for x, y in zip(*found, strict=True)])


def mean_spread(
  values: Float[np.ndarray, "seed *shape"],
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Any]:
  """Mean, sample standard deviation and number over seeds, NaN left out.

  The deviation is NaN where fewer than two seeds have a value.
  """
  n = np.sum(np.isfinite(values), axis=0)
  total = np.nansum(values, axis=0)
  mean = np.where(n > 0, total / np.maximum(n, 1), np.nan)
  square = np.nansum((values - mean) ** 2, axis=0)
  spread = np.where(n > 1, np.sqrt(square / np.maximum(n - 1, 1)), np.nan)
  return mean, spread, n


def summary(rows: Sequence[Row]) -> dict[str, Any]:
  """The last scalars of every condition: per seed, mean and spread.

  A seed that failed contributes no last values; the step it failed at is
  under `failed`.
  """
  return {name: _of_condition(rows, name) for name in conditions(rows)}


def _of_condition(rows: Sequence[Row], name: str) -> dict[str, Any]:
  mine = [r for r in rows if r.get("condition") == name]
  failed = failures(rows, name)
  per_seed: dict[str, dict[str, Any]] = {}
  for row in mine:
    seed = row.get("seed")
    if row["kind"] == "event" or seed is None or seed in failed:
      continue
    last = per_seed.setdefault(str(seed), {})
    for key, value in row.items():
      if key not in ("step", "kind", "condition", "seed") and not isinstance(
        value, list
      ):
        last[f"{row['kind']}/{key}"] = value
    last["step"] = max(row["step"], last.get("step", 0))
  keys = sorted({key for last in per_seed.values() for key in last})
  mean, spread = {}, {}
  for key in keys:
    values = np.asarray(
      [last.get(key, np.nan) for last in per_seed.values()], dtype=float
    )
    m, s, _ = mean_spread(values)
    mean[key], spread[key] = float(m), float(s)
  return {
    "per_seed": per_seed,
    "mean": mean,
    "spread": spread,
    "failed": {str(seed): step for seed, step in failed.items()},
  }

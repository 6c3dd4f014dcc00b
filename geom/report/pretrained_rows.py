"""The rows of an analysis of a checkpoint, sorted by what they say."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from geom.record import Row

SIDES = ("input", "output")


class Analysis(NamedTuple):
  """What was measured.

  Attributes:
    start: the event that an analysis began with, its last start.
    sides: projection -> where it meets the residual stream.
    kernels: projection -> rows of its kernels by layer; one that could not be
      read has a `problem`.
    cosines: projection -> its row of all pairs of layers.
    shares: `(projection, window)` -> its rows; window 0: all layers.
    losses: rows of edits.
  """

  start: Row
  sides: dict[str, str]
  kernels: dict[str, list[Row]]
  cosines: dict[str, Row]
  shares: dict[tuple[str, int], list[Row]]
  losses: list[Row]


def digest(rows: Sequence[Row]) -> Analysis:
  """Of several rows on the same thing the last one holds."""
  starts = [r for r in rows if r.get("event") == "start"]
  start = starts[-1] if starts else {"sides": {}}
  kernels = {
    (r["projection"], r["layer"]): r for r in rows if r["kind"] == "matrix"
  }
  shares = {
    (r["projection"], r["window"], r["start"]): r
    for r in rows
    if r["kind"] == "sharing"
  }
  by_projection: dict[str, list[Row]] = {}
  for (p, _), row in sorted(kernels.items(), key=lambda item: item[0][1]):
    by_projection.setdefault(p, []).append(row)
  by_window: dict[tuple[str, int], list[Row]] = {}
  for (p, window, _), row in shares.items():
    by_window.setdefault((p, window), []).append(row)
  return Analysis(
    start,
    start["sides"],
    {p: by_projection[p] for p in start["sides"] if p in by_projection},
    {r["projection"]: r for r in rows if r["kind"] == "cosines"},
    by_window,
    [r for r in rows if r["kind"] == "loss"],
  )


def matrix(
  of: Analysis, p: str, side: str, form: str = ""
) -> Float[np.ndarray, "l l"] | None:
  """|cos| of all pairs of layers, NaN where not defined; None: not measured.

  Args:
    of: what was measured.
    p: the projection.
    side: `input` or `output`.
    form: "" of W, "folded_" of diag(gain) K.
  """
  row = of.cosines.get(p)
  if row is None or f"{form}{side}" not in row:
    return None
  return np.array(row[f"{form}{side}"], float)


def adjacent(
  of: Analysis, p: str, side: str, form: str = ""
) -> Float[np.ndarray, " pair"]:
  """|cos| of adjacent layers."""
  found = matrix(of, p, side, form)
  return np.array([]) if found is None else np.diagonal(found, 1)


def numbers(of: Analysis, p: str, key: str) -> Float[np.ndarray, " layer"]:
  """A number of every kernel of a projection, NaN where there is none."""
  values = [row.get(key) for row in of.kernels[p]]
  return np.array([np.nan if v is None else v for v in values], float)


def width(of: Analysis, p: str, side: str) -> int:
  """The dimension of the space of a side."""
  for row in of.kernels[p]:
    if "problem" not in row:
      return row["shape"][side == "output"]
  return 0


def mean(values: Float[np.ndarray, " n"]) -> float:
  """The mean of what is defined; NaN of nothing."""
  there = values[np.isfinite(values)]
  return float(there.mean()) if there.size else float("nan")


def spread(values: Float[np.ndarray, " n"]) -> float:
  """The sample standard deviation of what is defined; NaN of less than two."""
  there = values[np.isfinite(values)]
  return float(there.std(ddof=1)) if there.size > 1 else float("nan")


def kept(of: Analysis, p: str, window: int, k: int) -> float:
  """Share of the energy in a basis of `k` common to `window` layers.

  Mean over windows; window 0: one basis for all, window 1: each its own.
  """
  if window == 1:
    rows = [r["own"] for r in of.kernels[p] if "own" in r]
    layers = [1] * len(rows)
  else:
    found = of.shares.get((p, window), [])
    rows = [r["kept"] for r in found]
    layers = [r["layers"] for r in found]
  pairs = [
    (r[str(k)], n)
    for r, n in zip(rows, layers, strict=True)
    if r.get(str(k)) is not None
  ]
  if not pairs:
    return float("nan")
  values, weights = zip(*pairs, strict=True)
  return float(np.average(values, weights=weights))


def sizes(of: Analysis) -> tuple[list[int], list[int]]:
  """The sizes of bases and the windows that were measured; 1: each its own."""
  ks = {
    int(k)
    for rows in of.kernels.values()
    for r in rows
    for k in r.get("own", {})
  }
  windows = {window for _, window in of.shares}
  return sorted(ks), [1, *sorted(windows - {0}), *sorted(windows & {0})]


def base_loss(of: Analysis) -> float:
  """The loss of the weights as they are; NaN where not measured."""
  found = [r["loss"] for r in of.losses if r["edit"] == "none"]
  return float("nan") if not found or found[-1] is None else found[-1]


def knowing_nothing(of: Analysis) -> float:
  """Nats above the base of a guess that holds all tokens equally likely."""
  found = [r["vocabulary"] for r in of.losses if r["edit"] == "none"]
  return float(np.log(found[-1])) - base_loss(of) if found else float("nan")


def costs(of: Analysis) -> dict[tuple[str, str, int, int], float]:
  """Nats above the base by (projection, side, window, k).

  What each layer keeps of its own, window 1, is the same on both sides.
  """
  base = base_loss(of)
  found = {}
  for r in of.losses:
    if r["edit"] != "shared" or r["loss"] is None:
      continue
    sides = SIDES if r["window"] == 1 else (r["side"],)
    for side in sides:
      found[r["projection"], side, r["window"], r["k"]] = r["loss"] - base
  return found


def removals(of: Analysis) -> Float[np.ndarray, " layer"]:
  """Nats above the base without each layer's block."""
  rows = {r["layer"]: r["loss"] for r in of.losses if r["edit"] == "removed"}
  if not rows:
    return np.array([])
  base = base_loss(of)
  return np.array(
    [
      np.nan if rows.get(i) is None else rows[i] - base
      for i in range(1 + max(rows))
    ]
  )


def continuity_of_layers(
  of: Analysis, projections: Sequence[str]
) -> Float[np.ndarray, " layer"]:
  """How a layer's leading vectors agree with its neighbours', by layer.

  Mean over its one or two neighbours and over projections, each on the side
  of the residual stream.
  """
  lines = []
  for p in projections:
    if p in of.cosines:
      pairs = adjacent(of, p, of.sides[p])
      sides = np.full((2, len(pairs) + 1), np.nan)
      sides[0, 1:], sides[1, :-1] = pairs, pairs
      lines += list(sides)
  if not lines:
    return np.array([])
  return np.array([mean(column) for column in np.array(lines).T])

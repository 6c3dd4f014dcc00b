"""Tables of the analysis of a checkpoint."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from geom.report import markdown as md
from geom.report import pretrained_rows as data
from geom.report.pretrained_rows import SIDES, Analysis

WINDOWS = {0: "all layers", 1: "own"}


class Verdict(NamedTuple):
  """A claim, what was seen of it, and whether that agrees.

  Attributes:
    text: the claim, in a line.
    value: what was seen; NaN where nothing could be.
    rule: as one reads it.
    holds: of the value.
    chance: the value that chance gives, NaN if it has none.
  """

  text: str
  value: float
  rule: str
  holds: bool
  chance: float = float("nan")


def claims(verdicts: Sequence[Verdict]) -> str:
  """One model is one sample: the verdict is of it alone."""
  head = ["claim", "seen", "chance", "rule", "verdict"]
  return md.table(
    head,
    [
      [
        v.text,
        md.number(v.value),
        md.number(v.chance),
        v.rule,
        f"**{verdict(v)}**",
      ]
      for v in verdicts
    ],
  )


def verdict(v: Verdict) -> str:
  if not np.isfinite(v.value):
    return "undecided (not measured)"
  return "reproduces" if v.holds else "does not reproduce"


def projections(of: Analysis, chance: Callable[[int], float]) -> str:
  """|cos| of adjacent layers on both sides, with what it depends on."""
  head = ["projection", "(in, out)", "on the stream"]
  for side in SIDES:
    head += [f"{side}: chance", "W", "folded"]
  head += ["s1/s2, median", "effective rank", "pairs not defined", "not read"]
  lines = []
  for p, rows in of.kernels.items():
    shape = tuple(data.width(of, p, side) for side in SIDES)
    line = [p, str(shape), of.sides[p]]
    for side, d in zip(SIDES, shape, strict=True):
      line.append(md.number(chance(d)) if d else "–")
      for form in ("", "folded_"):
        line.append(_cell(data.adjacent(of, p, side, form)))
    gaps = data.numbers(of, p, "gap")
    gaps = gaps[np.isfinite(gaps)]
    line.append(md.number(np.median(gaps), 2) if gaps.size else "–")
    estimated = any(r.get("rank_estimated") for r in rows)
    rank = data.mean(data.numbers(of, p, "rank"))
    line.append(f"{'about ' * estimated}{md.number(rank, 1)} of {min(shape)}")
    pairs = data.adjacent(of, p, "input")
    undefined = int(np.isnan(pairs).sum())
    line.append(f"{undefined} of {len(pairs)}")
    line.append(str(sum("problem" in r for r in rows)))
    lines.append(line)
  return md.table(head, lines)


def overlaps(of: Analysis) -> str:
  """Overlap of leading spaces of adjacent layers, chance in brackets."""
  ks = data.sizes(of)[0]
  head = ["projection"]
  head += [f"{side}, k = {k}" for side in SIDES for k in ks]
  lines = []
  for p, row in of.cosines.items():
    line = [p]
    for side in SIDES:
      d = data.width(of, p, side)
      for k in ks:
        values = row.get(f"overlap_{side}/{k}", [])
        there = np.array([np.nan if v is None else v for v in values], float)
        level = f" ({k / d:.2f})" if d and k <= d else ""
        line.append(md.number(data.mean(there), 2) + level)
    lines.append(line)
  return md.table(head, lines)


def sharing(of: Analysis) -> str:
  """Share of the energy that a common basis keeps, chance k/d beside it."""
  ks, windows = data.sizes(of)
  head = ["projection", "side", "k", "chance"]
  head += [WINDOWS.get(w, f"{w} layers") for w in windows]
  head += ["all / own", "above chance: all / own"]
  lines = []
  for p, side in of.sides.items():
    if p not in of.kernels or not (d := data.width(of, p, side)):
      continue
    for k in ks:
      if k > d:
        continue
      kept = {w: data.kept(of, p, w, k) for w in windows}
      own, common = kept[1], kept.get(0, float("nan"))
      excess = (
        (common - k / d) / (own - k / d) if own > k / d + 1e-6 else np.nan
      )
      lines.append(
        [p, side, str(k), md.number(k / d)]
        + [md.number(kept[w]) for w in windows]
        + [md.number(common / own if own else np.nan, 2), md.number(excess, 2)]
      )
  return md.table(head, lines)


def losses(of: Analysis) -> str:
  """Nats that a common basis costs, on the stream's side and the other."""
  costs = data.costs(of)
  windows = sorted({w for _, _, w, _ in costs} - {1}, key=lambda w: w or 1e9)
  head = ["projection", "k", "own"]
  for w in windows:
    name = WINDOWS.get(w, f"{w} layers")
    head += [f"{name}: stream's side", "other side"]
  lines = []
  for p, side in of.sides.items():
    other = SIDES[side == "input"]
    for k in sorted({k for q, _, _, k in costs if q == p}):
      line = [p, str(k), _cost(costs.get((p, side, 1, k)))]
      for w in windows:
        line += [_cost(costs.get((p, s, w, k))) for s in (side, other)]
      lines.append(line)
  return md.table(head, lines)


def problems(of: Analysis) -> list[str]:
  """What could not be read, a line each."""
  found = list(of.start.get("problems", []))
  found += [
    r[key]
    for rows in of.kernels.values()
    for r in rows
    for key in ("problem", "gain_problem")
    if key in r
  ]
  found += [
    f"{r['tensor']}: all zero, so no direction leads"
    for rows in of.kernels.values()
    for r in rows
    if r.get("norm") == 0
  ]
  return list(dict.fromkeys(found))


def _cell(values: np.ndarray) -> str:
  spread = data.spread(values)
  cell = md.number(data.mean(values), 2)
  return f"{cell} ± {md.number(spread, 2)}" if np.isfinite(spread) else cell


def _cost(value: float | None) -> str:
  return "–" if value is None else md.number(value, 3)

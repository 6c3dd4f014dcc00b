"""What arXiv 2605.04971 claims of pretrained models, and when one agrees."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats

from geom.probes.continuity import chance_cosine
from geom.report import pretrained_rows as data
from geom.report.pretrained_rows import Analysis
from geom.report.pretrained_tables import Verdict

STABLE = ("q", "k", "gate", "up", "o", "down")
_ENDS = 2


def verdicts(of: Analysis, rules: Mapping[str, Any]) -> list[Verdict]:
  """Of every claim that the projections allow to be judged."""
  there = [p for p in STABLE if p in of.cosines and _level(of, p, of.sides[p])]
  found = []
  for p in there:
    side = of.sides[p]
    level = _level(of, p, side)
    low = rules["above_chance"] * level
    seen = data.mean(data.adjacent(of, p, side))
    found.append(
      Verdict(
        f"{p}: continuous, {side} side", seen, f"≥ {low:.3f}", seen >= low,
        level,
      )
    )  # fmt: skip
  if "v" in of.cosines and _level(of, "v", "input"):
    found += _of_v(of, rules, there)
  if of.losses:
    found += _of_loss(of, rules, there)
  return found


def _of_v(
  of: Analysis, rules: Mapping[str, Any], there: list[str]
) -> list[Verdict]:
  found = []
  for p in there:
    side = of.sides[p]
    above = _above(of, p, side) - _above(of, "v", side)
    found.append(
      Verdict(
        f"{p}: further above chance than V, {side} side", above,
        f"≥ {rules['above_v']:g}", above >= rules["above_v"],
      )
    )  # fmt: skip
  for side in data.SIDES:
    level = _level(of, "v", side)
    high = rules["v_at_most"] * level
    seen = data.mean(data.adjacent(of, "v", side))
    found.append(
      Verdict(
        f"v: low, {side} side", seen, f"≤ {high:.3f}", seen <= high, level
      )
    )
  return found


def _of_loss(
  of: Analysis, rules: Mapping[str, Any], there: list[str]
) -> list[Verdict]:
  bound = rules["matched_at_least"]
  found = []
  for p in there:
    share = cheaper(of, p)
    found.append(
      Verdict(
        f"{p}: a common basis costs less loss on the {of.sides[p]} side, share "
        "of sizes and windows", share, f"≥ {bound:g}", share >= bound, 0.5,
      )
    )  # fmt: skip
  high = rules["removal_at_most"]
  whole, inner = correlations(of)
  for name, seen in (("all layers", whole), ("inner layers", inner)):
    found.append(
      Verdict(
        "a layer that is continuous with its neighbours costs less to leave "
        f"out, rank correlation over {name}", seen, f"≤ {high:g}",
        seen <= high, 0.0,
      )
    )  # fmt: skip
  return found


def cheaper(of: Analysis, p: str) -> float:
  """Share of (window, k) in which the stream's side is the cheaper one."""
  costs = data.costs(of)
  side = of.sides[p]
  other = data.SIDES[side == "input"]
  both = [
    (cost, costs[p, other, window, k])
    for (q, s, window, k), cost in costs.items()
    if (q, s) == (p, side) and window != 1 and (p, other, window, k) in costs
  ]
  return float(np.mean([a < b for a, b in both])) if both else float("nan")


def correlations(of: Analysis) -> tuple[float, float]:
  """Spearman's, of continuity and cost of leaving out; all and inner layers."""
  cost = data.removals(of)
  continuity = data.continuity_of_layers(of, STABLE)
  if cost.size != continuity.size:
    return float("nan"), float("nan")
  inner = slice(_ENDS, -_ENDS)
  return _spearman(continuity, cost), _spearman(continuity[inner], cost[inner])


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
  there = np.isfinite(a) & np.isfinite(b)
  if there.sum() < 5 or np.ptp(a[there]) == 0 or np.ptp(b[there]) == 0:
    return float("nan")
  return float(scipy.stats.spearmanr(a[there], b[there]).statistic)


def _level(of: Analysis, p: str, side: str) -> float:
  d = data.width(of, p, side)
  return chance_cosine(d) if d else 0.0


def _above(of: Analysis, p: str, side: str) -> float:
  return data.mean(data.adjacent(of, p, side)) - _level(of, p, side)

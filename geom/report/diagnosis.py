"""Why weights are continuous or not: what to read beside v1.

A low |cos| of leading singular vectors has several causes, which the other
numbers tell apart: the run diverged or did not learn, training has not yet
overcome W(0), the spectrum is flat so that v1 stands for little, or the
matrices of adjacent layers are not alike at all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from geom.record import Row
from geom.report import series

CONTINUOUS = 0.5  # |cos| from which layers count as continuous.
FLAT = 1.3  # s1/s2 below which the spectrum counts as flat at its top.
ALIKE = 0.3  # Cosine of adjacent matrices from which they count as alike.
LEARNT = 0.5  # Test accuracy from which the loss counts as healthy.
RULES = f"""\
Diagnosis, from means over seeds: *diverged*: no seed is left; *did not learn*:
test accuracy below {LEARNT:g}; *continuous*: v1 at least {CONTINUOUS:g} at the
end; *lost* or *never formed*: below, after it was, or was not, at least
{CONTINUOUS:g}. Then why: *flat spectrum*: s1/s2 below {FLAT:g} while adjacent
matrices as wholes are alike, cosine at least {ALIKE:g}: v1 stands for one of
many directions; *W(0) dominates*: s1(dW) below s1(W(0)); else *alignment
lost* or *none*: the matrices are not alike."""


class Diagnosis(NamedTuple):
  """Means over seeds at the end, and a verdict in words."""

  highest: float
  v1: float
  gap: float
  rank: float
  flattened: float
  overlap: float
  accuracy: float
  dominance: float
  verdict: str


def diagnose(rows: Sequence[Row], condition: str) -> Diagnosis:
  """What became of the input-side continuity of a condition's weights."""

  def last(key: str, kind: str = "probe") -> float:
    found = series.values_at(rows, condition, kind, key, "last")
    if found is None or not np.isfinite(found[1]).any():
      return float("nan")
    return float(np.nanmean(found[1]))

  curve = series.curve(rows, condition, "probe", "weights/cos_input_mean")
  highest = float("nan")
  if curve is not None and np.isfinite(curve.values).any():
    mean, _, _ = series.mean_spread(curve.values)
    highest = float(np.nanmax(mean))
  seeds = series.seeds(rows, condition)
  numbers = Diagnosis(
    highest=highest,
    v1=last("weights/cos_input_mean"),
    gap=last("weights/gap"),
    rank=last("weights/effective_rank_mean"),
    flattened=last("weights/flattened_cosine_mean"),
    overlap=last("weights/overlap_10_input_mean"),
    accuracy=last("accuracy", "eval"),
    dominance=last("dominance/spectral_mean"),
    verdict="",
  )
  failed = len(series.failures(rows, condition)) == len(seeds) > 0
  return numbers._replace(verdict=_verdict(numbers, failed))


def _verdict(d: Diagnosis, diverged: bool) -> str:
  if diverged:
    return "diverged"
  if d.accuracy < LEARNT:
    return "did not learn"
  if np.isnan(d.highest) and np.isnan(d.gap):
    return "not measured"
  if not np.isfinite(d.v1):
    return "v1 not defined"
  if d.v1 >= CONTINUOUS:
    return "continuous"
  formed = "lost" if d.highest >= CONTINUOUS else "never formed"
  if d.gap < FLAT and d.flattened >= ALIKE:
    return f"{formed}: flat spectrum"
  if d.dominance < 1:
    return f"{formed}: W(0) dominates"
  return "lost: alignment lost" if formed == "lost" else "never formed: none"

"""A paper's claims beside our numbers, judged by rules fixed before the run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from geom.record import Row
from geom.report import series


class Claim(NamedTuple):
  """One number of a paper and when ours counts as agreeing with it.

  Attributes:
    text: the claim, in a line.
    paper: what the paper reports, as it reports it.
    condition: where to look, with `kind`, `key` and `at`.
    kind: of row, `probe` or `eval`.
    key: the quantity, a scalar.
    at: `first` or `last` step that has it.
    low: the claim holds for a seed whose value is in [low, high].
    high: likewise.
  """

  text: str
  paper: str
  condition: str
  kind: str
  key: str
  at: str
  low: float
  high: float


class Judged(NamedTuple):
  """A claim with what was seen: a mean, a spread, seeds, a verdict."""

  claim: Claim
  step: int
  mean: float
  spread: float
  seeds: int
  verdict: str


def judge(claim: Claim, rows: Sequence[Row]) -> Judged | None:
  """The verdict on a claim, or None where the run has nothing to say.

  `reproduces` if every seed is within the bounds, `does not reproduce` if
  none is, else `undecided`. Seeds that failed do not count at the last step.
  """
  found = series.values_at(
    rows, claim.condition, claim.kind, claim.key, claim.at
  )
  if found is None:
    return None
  step, values = found
  mean, spread, n = series.mean_spread(values)
  values = values[np.isfinite(values)]
  holds = (values >= claim.low) & (values <= claim.high)
  if not len(values):
    verdict = "undecided"
  elif holds.all():
    verdict = "reproduces"
  elif not holds.any():
    verdict = "does not reproduce"
  else:
    verdict = "undecided"
  return Judged(claim, step, float(mean), float(spread), int(n), verdict)


def number(value: Any, digits: int = 3) -> str:
  """A number for a table; a dash where there is none."""
  if value is None or not np.isfinite(value):
    return "–"
  return f"{value:.{digits}f}"


def table(claims: Sequence[Claim], rows: Sequence[Row]) -> str:
  """The claims that the run can judge, as a Markdown table."""
  lines = [
    "| claim | paper | ours (mean ± sd) | seeds | step | rule | verdict |",
    "| --- | --- | --- | --- | --- | --- | --- |",
  ]
  for claim in claims:
    judged = judge(claim, rows)
    if judged is not None:
      lines.append(
        f"| {claim.text} | {claim.paper} | {number(judged.mean)} ± "
        f"{number(judged.spread)} | {judged.seeds} | {judged.step} | "
        f"in [{claim.low:g}, {claim.high:g}] | **{judged.verdict}** |"
      )
  return "\n".join(lines)

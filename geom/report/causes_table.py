"""Tables of what moved first in runs that were noticed as unstable."""

from collections.abc import Mapping, Sequence

import numpy as np

from geom.record import Row
from geom.report import causes, series
from geom.report import markdown as md

BEFORE = 3  # Probes shown before a run was noticed.


def section(
  rows: Sequence[Row], names: Sequence[str], gets: Mapping[str, str]
) -> list[str]:
  """What came first in the runs that were noticed, and what preceded that.

  Args:
    rows: of `metrics.jsonl`.
    names: of conditions.
    gets: what the modules of a condition get, in a few words.

  Returns:
    Parts of a report.
  """
  signals = list(causes.SIGNALS)
  single, together, preceding = [], [], []
  for name in names:
    of_seeds = []
    noticed = series.events(rows, name, "unstable")
    for seed, row in noticed.items():
      onsets = causes.onsets(rows, name, seed, row["step"])
      order = " < ".join(" = ".join(group) for group in causes.order(onsets))
      nothing = causes.Onset(float("nan"), float("nan"))
      mine = [onsets.get(s, nothing) for s in signals]
      of_seeds.append([*[x.step for x in mine], float(row["step"])])
      single.append(
        [name, str(seed), *map(_onset, mine), str(row["step"]), order]
      )
      preceding += _before(rows, name, seed, row["step"])
    if noticed:
      ahead = np.array(of_seeds)
      ahead = ahead[:, -1:] - ahead[:, :-1]
      cells = [md.mean(x, 0) for x in ahead.T]
      count = f"{len(noticed)} of {len(series.seeds(rows, name))}"
      together.append([name, gets[name], count, *cells])
  if not single:
    return ["## What moves first", "No run was noticed as unstable."]
  return [
    "## What moves first",
    causes.RULE,
    md.table(["condition", "seed", *signals, "noticed", "order"], single),
    "How many steps before a run was noticed they moved, mean ± sd over the "
    "seeds of which they did:",
    md.table(["condition", "attention; MLP", "seeds", *signals], together),
    "What preceded it, at the start and at the last measurements before a run "
    "was noticed:",
    md.table(["condition", "seed", "step", *signals], preceding),
  ]


def _onset(onset: causes.Onset) -> str:
  if not np.isfinite(onset.step):
    return "–"
  return f"{onset.step:.0f} ± {onset.resolution:.0f}"


def _before(
  rows: Sequence[Row], name: str, seed: int, until: int
) -> list[list[str]]:
  """The signals at step 0 and at the last probes up to a step."""
  mine = [r for r in rows if r.get("seed") == seed and r["step"] <= until]
  paths = {
    key: causes.values(mine, name, signal)
    for key, signal in causes.SIGNALS.items()
  }
  of_probes = next(
    (p for k, p in paths.items() if p and causes.SIGNALS[k].kind == "probe"),
    None,
  )
  if of_probes is None:
    return []
  steps = of_probes[0]
  lines = []
  for step in dict.fromkeys([*steps[:1], *steps[-BEFORE:]]):
    cells = []
    for path in paths.values():
      there = path is not None and len(path[0])
      i = int(np.argmin(np.abs(path[0] - step))) if there else 0
      cells.append(md.number(path[1][i]) if there else "–")
    lines.append([name, str(seed), str(int(step)), *cells])
  return lines

"""The report of runs under several assignments of manifolds to modules."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from geom import record
from geom.record import Row
from geom.report import causes_table, figures, series
from geom.report import claims as claims_of
from geom.report import manifolds_figures as draw
from geom.report import manifolds_tables as tables
from geom.report import markdown as md
from geom.report.claims import Claim
from geom.report.manifolds_tables import Assignment

RULE = """\
A claim *reproduces* if every seed and mean ± 2 sd are within its rule, *does
not reproduce* if all of these are outside of it, on one side, else it is
*undecided*. Differences are taken seed by seed; noticed, or not finite, is 1,
else 0; moved before is 1, after 0, and a tie does not count. Claims with a
dagger were added after runs of the tiny table had been seen."""


def write_report(
  workdir: pathlib.Path,
  rows: Sequence[Row],
  *,
  title: str,
  config: Mapping[str, Any],
  assignments: Mapping[str, Assignment],
  summed_lr: Mapping[str, float],
  chances: Mapping[str, float],
  groups: Mapping[str, Sequence[str]],
  claims: Sequence[Claim],
  notes: str,
  paper: Mapping[str, str],
) -> dict[str, dict[int, int]]:
  """Writes the report into a workdir, from its rows alone.

  Args:
    workdir: gets `figures/*.png`, `report.md`, `summary.json`.
    rows: of its `metrics.jsonl`.
    title: of the report.
    config: what was run.
    assignments: of every condition.
    summed_lr: of every condition, the learning rate of kernels over all steps.
    chances: chance level of |cos|, by `projection/side`.
    groups: conditions that are drawn together, by name of the group.
    claims: to be judged.
    notes: how to read the numbers.
    paper: what the paper has of a condition.

  Returns:
    Condition -> seed -> step of a loss or gradient that was not finite.
  """
  names = series.conditions(rows)
  drawn = _draw(rows, _present(groups, names), chances)
  for name, figure in drawn.items():
    figures.save(figure, workdir / "figures" / f"{name}.png")
  judged = {c.text: claims_of.judge(c, rows) for c in claims}
  judged = {text: j for text, j in judged.items() if j is not None}
  failed = {n: f for n in names if (f := series.failures(rows, n))}
  record.write_json(
    workdir / "summary.json",
    {
      "config": config,
      "assignments": assignments,
      "summed_lr": summed_lr,
      "claims": {
        text: {k: getattr(j, k) for k in ("mean", "spread", "seeds", "verdict")}
        for text, j in judged.items()
      },
      "unstable": {
        n: {
          str(seed): {"step": row["step"], "cause": row["cause"]}
          for seed, row in series.events(rows, n, "unstable").items()
        }
        for n in names
      },
      "conditions": series.summary(rows),
    },
  )
  parts = [
    f"# {title}",
    md.setting(config, rows),
    notes,
    "## What each module gets",
    tables.assigned(names, assignments, summed_lr),
    "## What came of it",
    tables.results(rows, names, assignments, paper),
    *[md.failure(name, seeds) for name, seeds in failed.items()],
  ]
  if judged:
    parts += ["## Claims", RULE, claims_of.table(claims, rows)]
  parts += [
    "## The MLP's tolerance of DGram, beside attention's",
    tables.TOLERANCE,
    tables.tolerance(rows, names, assignments),
    *causes_table.section(
      rows, names, {n: tables.both(assignments[n]) for n in names}
    ),
    "## Continuity",
    "Mean |cos| of the leading singular vectors of adjacent layers at the last "
    "step, where defined, on the side of the residual stream; of W - W(0), and "
    "of W. Chance in brackets. On Stiefel all singular values of W are 1 and "
    "the vectors are not defined; `k/n` says of how many pairs they are. On "
    "DGram the vectors of a kernel's shorter side, of a square one's input "
    "side, are coordinate axes: |cos| of W is 0 or 1 there by construction, "
    "which says nothing of continuity, and that of W - W(0) comes near it as "
    "W(0) is left behind.",
    tables.continuity(rows, names, assignments, chances),
    "## Figures",
    *[f"![{name}](figures/{name}.png)" for name in drawn],
  ]
  record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")
  return failed


def _present(
  groups: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, list[str]]:
  """Groups of the conditions that a run has; those in none make one more.

  A group of which one before it has all is left out.
  """
  known = {name for group in groups.values() for name in group}
  others = [name for name in names if name not in known]
  mine = {
    group: [name for name in members if name in names]
    for group, members in {**groups, "others": others}.items()
  }
  found: dict[str, list[str]] = {}
  for group, members in mine.items():
    again = any(set(members) <= set(shown) for shown in found.values())
    if members and not again:
      found[group] = members
  return found


def _draw(
  rows: Sequence[Row],
  groups: Mapping[str, Sequence[str]],
  chances: Mapping[str, float],
) -> dict[str, Figure]:
  """The figures that there is something to draw for, by name of file."""
  drawn: dict[str, Figure | None] = {}
  for group, names in groups.items():
    mine = [r for r in rows if r.get("condition") in names]
    drawn |= {
      f"{group}_loss": draw.losses(mine, names),
      f"{group}_sigma": draw.sigmas(mine, names),
      f"{group}_attention": draw.attention(mine, names),
      f"{group}_mlp": draw.mlp(mine, names),
      f"{group}_directions": draw.directions(mine, names),
      f"{group}_continuity": draw.continuity(mine, chances, names),
    }
  return {name: f for name, f in drawn.items() if f is not None}

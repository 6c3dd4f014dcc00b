"""The report of the continuity of a transformer's projections."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from geom import record
from geom.record import Row
from geom.report import continuity_lm_figures as draw
from geom.report import continuity_lm_tables as tables
from geom.report import figures, groups, series
from geom.report import markdown as md
from geom.report.claims import Claim

READING = """\
|cos| of the leading singular vectors of adjacent layers, mean over the pairs
where both are defined, ± the sample standard deviation over seeds. Input is
v1, output is u1; chance is the mean |cos| of two random directions of that
space. `folded` is W with the gain of the norm before it, diag(gain) K; dW is
W - W(0); G is the gradient on fixed training examples, at step 0 and at the
end. A low |cos| where s1/s2 is near 1 is not lost alignment."""
HEADS = """\
|cos| of the leading vectors of slices of {what}, a slice a head, between
adjacent layers: over all pairs of heads, of each head with its best match in
the next layer, of heads of the same number. Chance in brackets, of the best
match by simulation."""


def write_report(
  workdir: pathlib.Path,
  rows: Sequence[Row],
  *,
  title: str,
  config: Mapping[str, Any],
  chances: Mapping[str, float],
  claims: Sequence[Claim],
  group: int,
  together: Mapping[str, Sequence[str]],
  base: str,
  notes: str,
) -> dict[str, dict[int, int]]:
  """Writes the report into a workdir, from its rows alone.

  Args:
    workdir: gets `figures/*.png`, `report.md`, `summary.json`.
    rows: of its `metrics.jsonl`.
    title: of the report.
    config: what was run.
    chances: chance levels of |cos|, by `projection/side`, and of heads by
      `projection/heads/way_side`.
    claims: to be judged.
    group: seeds that are judged together.
    together: conditions that are drawn together, by name.
    base: the condition that is drawn alone too.
    notes: what else to know.

  Returns:
    Condition -> seed -> step of a loss or gradient that was not finite.
  """
  names = series.conditions(rows)
  drawn = _draw(rows, names, chances, together, base)
  for name, figure in drawn.items():
    figures.save(figure, workdir / "figures" / f"{name}.png")
  judged = [groups.judge(claim, rows, group) for claim in claims]
  judged = [of for of in judged if of is not None]
  failed = {n: f for n in names if (f := series.failures(rows, n))}
  record.write_json(
    workdir / "summary.json",
    {
      "config": config,
      "chances": chances,
      "claims": [
        {
          "text": of.all.claim.text,
          "condition": of.all.claim.condition,
          "mean": of.all.mean,
          "spread": of.all.spread,
          "seeds": of.all.seeds,
          "groups": list(of.verdicts),
          "verdict": of.verdict,
        }
        for of in judged
      ],
      "conditions": series.summary(rows),
    },
  )
  parts = [
    f"# {title}",
    md.setting(config, rows),
    notes,
    "## Losses",
    tables.losses(rows, names),
    *[md.failure(name, seeds) for name, seeds in failed.items()],
  ]
  if judged:
    parts += ["## Claims", groups.RULE.format(size=group), groups.table(judged)]
  parts += ["## Projections", READING]
  for name in names:
    parts += [f"### {name}", tables.projections(rows, name, chances)]
  parts += ["## Heads"]
  for stack, what in (("weights", "W"), ("updates", "W - W(0)")):
    parts += [
      HEADS.format(what=what),
      tables.heads(rows, names, chances, stack),
    ]
  parts += [
    "## Figures",
    *[f"![{name}](figures/{name}.png)" for name in drawn],
  ]
  record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")
  return failed


def _draw(
  rows: Sequence[Row],
  names: Sequence[str],
  chances: Mapping[str, float],
  together: Mapping[str, Sequence[str]],
  base: str,
) -> dict[str, Figure]:
  """The figures that there is something to draw for, by name of file."""
  drawn: dict[str, Figure | None] = {"losses": draw.losses(rows, names)}
  if base in names:
    drawn["base"] = draw.base(rows, base, chances)
  shown: list[set[str]] = [set()]
  for group, members in together.items():
    mine = [name for name in members if name in names]
    if any(set(mine) <= before for before in shown):
      continue  # Drawn already, or nothing to draw.
    shown.append(set(mine))
    drawn |= {
      f"{group}_{stack}": draw.continuity(rows, chances, mine, stack)
      for stack in draw.STACKS
    }
    drawn[f"{group}_drift"] = draw.drift(rows, mine)
    drawn[f"{group}_pairs"] = draw.layer_pairs(rows, mine)
  return {name: f for name, f in drawn.items() if f is not None}

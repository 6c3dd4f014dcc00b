"""The report of a continuity run: figures, `report.md`, `summary.json`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from geom import record
from geom.record import Row
from geom.report import claims as claims_of
from geom.report import continuity_figures as draw
from geom.report import diagnosis, figures, markdown, series
from geom.report.ablation_figure import ablation
from geom.report.claims import Claim, number
from geom.report.crossing_figure import crossing

COLUMNS = {
  "gradients v1, step 0": ("probe", "gradients/cos_input_mean", "start"),
  "gradients u1, step 0": ("probe", "gradients/cos_output_mean", "start"),
  "gradients v1, end": ("probe", "gradients/cos_input_mean", "last"),
  "weights v1": ("probe", "weights/cos_input_mean", "last"),
  "weights u1": ("probe", "weights/cos_output_mean", "last"),
  "dW v1": ("probe", "updates/cos_input_mean", "last"),
  "dW u1": ("probe", "updates/cos_output_mean", "last"),
  "flat": ("probe", "weights/flattened_cosine_mean", "last"),
  "s1/s2": ("probe", "weights/gap", "last"),
  "s1(dW)/s1(W0)": ("probe", "dominance/spectral_mean", "last"),
  "test accuracy": ("eval", "accuracy", "last"),
}
# What the whole set of probes and the orbits add.
MORE = {
  "coherence of G, step 0": (
    "probe", "gradients/flattened_cosine_mean", "start",
  ),
  "of the sum of G": ("probe", "gradient_sum/flattened_cosine_mean", "last"),
  "top 10, v": ("probe", "weights/overlap_10_input_mean", "last"),
  "top 10, u": ("probe", "weights/overlap_10_output_mean", "last"),
  "centred, v": ("probe", "weights/centred_input_mean", "last"),
  "matched, v": ("probe", "weights/matched_input_mean", "last"),
  "effective rank": ("probe", "weights/effective_rank_mean", "last"),
  "W and dW, v1": ("probe", "transfer/updates_input_mean", "last"),
  "W and sum of G, v1": ("probe", "transfer/gradient_sum_input_mean", "last"),
  "drift share": ("orbit", "orbit/drift_share", "last"),
}  # fmt: skip
# Of the ablation table as a picture.
PICTURE = {
  "G v1\nstep 0": COLUMNS["gradients v1, step 0"],
  "G u1\nstep 0": COLUMNS["gradients u1, step 0"],
  "W v1": COLUMNS["weights v1"],
  "W u1": COLUMNS["weights u1"],
  "W top 10\nv": MORE["top 10, v"],
  "W flat": COLUMNS["flat"],
  "W s1/s2": COLUMNS["s1/s2"],
  "test\naccuracy": COLUMNS["test accuracy"],
}


def write_report(
  workdir: pathlib.Path,
  rows: Sequence[Row],
  *,
  title: str,
  config: Mapping[str, Any],
  chances: Mapping[str, float],
  chance_share: float,
  claims: Sequence[Claim],
  groups: Mapping[str, Sequence[str]],
  notes: str,
) -> dict[str, dict[int, int]]:
  """Writes the report into a workdir, from its rows alone.

  Args:
    workdir: gets `figures/*.png`, `report.md`, `summary.json`.
    rows: of its `metrics.jsonl`.
    title: of the report.
    config: what was run.
    chances: chance level of |cos| on the `input` and the `output` side.
    chance_share: of a step's displacement along orbits.
    claims: to be judged.
    groups: conditions that belong together, by the name of the group; those
      in none make one more.
    notes: how to read the numbers.

  Returns:
    Condition -> seed -> step of a loss or gradient that was not finite.
  """
  present = _present(groups, series.conditions(rows))
  drawn = _draw(rows, present, config, chances, chance_share, title)
  for name, figure in drawn.items():
    figures.save(figure, workdir / "figures" / f"{name}.png")
  judged = {c.text: claims_of.judge(c, rows) for c in claims}
  record.write_json(
    workdir / "summary.json",
    {
      "config": config,
      "chance_cosine": chances,
      "claims": {
        text: {k: getattr(j, k) for k in ("mean", "spread", "seeds", "verdict")}
        for text, j in judged.items()
        if j is not None
      },
      "conditions": series.summary(rows),
    },
  )
  failed = {
    name: failures
    for name in series.conditions(rows)
    if (failures := series.failures(rows, name))
  }
  parts = [
    f"# {title}",
    markdown.setting(config, rows),
    notes,
    *(
      ["## The paper's claims", RULE, claims_of.table(claims, rows)]
      * any(j is not None for j in judged.values())
    ),
    "## Why",
    diagnosis.RULES,
    _diagnoses(rows),
    *[markdown.failure(name, seeds) for name, seeds in failed.items()],
    "## Every condition",
    f"Mean ± sd over seeds. Chance level of |cos|: {number(chances['input'])} "
    f"on the input side (v), {number(chances['output'])} on the output side "
    "(u); of `flat`, coherence and centred alignment: 0; of the top 10, "
    f"{number(10 / config['model']['width'])}; of the share of a step that "
    f"drifts along the orbit, {number(chance_share)}.",
  ]
  for group, names in present.items():
    parts += [f"### {group}", _table(rows, names, COLUMNS)]
    parts += [_table(rows, names, MORE)] * _any(rows, names, MORE)
  parts += ["## Figures", *[f"![{name}](figures/{name}.png)" for name in drawn]]
  record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")
  return failed


RULE = """\
A claim *reproduces* if every seed and mean ± 2 sd are within its rule, *does
not reproduce* if all of these are outside of it, else it is *undecided*. Seeds
that diverged or did not learn do not count after step 0. The rules were fixed
before the run, but for those with a dagger, which were set after seeds 0 to
5, because a bound had lain within the spread from seed to seed."""


def _present(
  groups: Mapping[str, Sequence[str]], conditions: Sequence[str]
) -> dict[str, list[str]]:
  """Groups with the conditions that a run has, those with none left out.

  A group that shows nothing new beside the earlier ones is left out too.
  """
  found: dict[str, list[str]] = {}
  shown: set[str] = set()
  grouped = {name for names in groups.values() for name in names}
  others = [name for name in conditions if name not in grouped]
  for group, names in {**groups, "Others": others}.items():
    mine = [name for name in names if name in conditions]
    if set(mine) - shown:
      found[group] = mine
      shown |= set(mine)
  return found


def _draw(
  rows: Sequence[Row],
  groups: Mapping[str, Sequence[str]],
  config: Mapping[str, Any],
  chances: Mapping[str, float],
  chance_share: float,
  title: str,
) -> dict[str, Figure]:
  """The figures that there is something to draw for, by name of file."""
  drawn: dict[str, Figure | None] = {}
  for i, (group, names) in enumerate(groups.items()):
    tail = f"_{group.lower().replace(' ', '_')}" if i else ""
    name = f"{title}: {group.lower()}" if len(groups) > 1 else title
    drawn |= {
      f"continuity{tail}": draw.continuity(rows, chances, name, names),
      f"layer_pairs{tail}": draw.layer_pairs(rows, chances, names),
      f"same_index{tail}": draw.same_index(rows, chances, names),
      f"crossing{tail}": crossing(rows, chances, names),
      f"transfer{tail}": draw.transfer(rows, chances, names),
      f"orbits{tail}": draw.orbits(
        rows, config["orbit"]["angles"], names, chance_share
      ),
      f"context{tail}": draw.context(rows, names),
    }
  drawn["ablation"] = ablation(rows, chances, series.conditions(rows), PICTURE)
  return {name: f for name, f in drawn.items() if f is not None}


Columns = Mapping[str, tuple[str, str, str]]


def _any(rows: Sequence[Row], names: Sequence[str], columns: Columns) -> bool:
  return any(
    series.values_at(rows, name, *column) is not None
    for name in names
    for column in columns.values()
  )


def _table(rows: Sequence[Row], names: Sequence[str], columns: Columns) -> str:
  """One row a condition, the columns that any of them has."""
  columns = {t: c for t, c in columns.items() if _any(rows, names, {t: c})}
  return markdown.table(
    ["condition", "seeds", *columns],
    [
      [
        name,
        str(len(series.seeds(rows, name)) - len(series.failures(rows, name))),
        *[_cell(rows, name, *c) for c in columns.values()],
      ]
      for name in names
    ],
  )


def _diagnoses(rows: Sequence[Row]) -> str:
  lines = []
  for name in series.conditions(rows):
    d = diagnosis.diagnose(rows, name)
    lines.append(
      [name, f"**{d.verdict}**", *[number(x) for x in d[: len(DIAGNOSED)]]]
    )
  return markdown.table(["condition", "diagnosis", *DIAGNOSED], lines)


DIAGNOSED = (
  "highest v1",
  "v1 at the end",
  "s1/s2",
  "effective rank",
  "flat",
  "top 10",
  "test accuracy",
  "s1(dW)/s1(W0)",
)


def _cell(
  rows: Sequence[Row], condition: str, kind: str, key: str, at: str
) -> str:
  found = series.values_at(rows, condition, kind, key, at)
  if found is None:
    return "–"
  _, values = found
  if values.ndim > 1:
    values = values.mean(axis=-1)
  mean, spread, _ = series.mean_spread(values)
  return f"{number(mean)} ± {number(spread)}"

"""The report of a continuity run: figures, `report.md`, `summary.json`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from geom import record
from geom.record import Row
from geom.report import claims as claims_of
from geom.report import continuity_figures, figures, series
from geom.report.claims import Claim, number

COLUMNS = {
  "gradients v1, step 0": ("gradients/cos_input_mean", "first"),
  "gradients u1, step 0": ("gradients/cos_output_mean", "first"),
  "weights v1": ("weights/cos_input_mean", "last"),
  "weights u1": ("weights/cos_output_mean", "last"),
  "dW v1": ("updates/cos_input_mean", "last"),
  "dW u1": ("updates/cos_output_mean", "last"),
  "flat": ("weights/flattened_cosine_mean", "last"),
  "s1/s2": ("weights/gap", "last"),
  "s1(dW)/s1(W0)": ("dominance/spectral_mean", "last"),
}


def write_report(
  workdir: pathlib.Path,
  rows: Sequence[Row],
  *,
  title: str,
  config: Mapping[str, Any],
  chances: Mapping[str, float],
  claims: Sequence[Claim],
  notes: str,
) -> dict[str, dict[int, int]]:
  """Writes the report into a workdir, from its rows alone.

  Args:
    workdir: gets `figures/*.png`, `report.md`, `summary.json`.
    rows: of its `metrics.jsonl`.
    title: of the report.
    config: what was run.
    chances: chance level of |cos| on the `input` and the `output` side.
    claims: to be judged.
    notes: how to read the numbers.

  Returns:
    Condition -> seed -> step of a loss or gradient that was not finite.
  """
  names = series.conditions(rows)
  drawn = {
    "continuity": continuity_figures.continuity(rows, chances, title, names),
    "layer_pairs": continuity_figures.layer_pairs(rows, chances, names),
    "context": continuity_figures.context(rows, names),
  }
  drawn = {name: figure for name, figure in drawn.items() if figure is not None}
  for name, figure in drawn.items():
    figures.save(figure, workdir / "figures" / f"{name}.png")
  summary = series.summary(rows)
  record.write_json(
    workdir / "summary.json",
    {"config": config, "chance_cosine": chances, "conditions": summary},
  )
  failed = {
    name: failures
    for name in series.conditions(rows)
    if (failures := series.failures(rows, name))
  }
  parts = [
    f"# {title}",
    _setting(config, rows),
    notes,
    *(["## The paper's claims", claims_of.table(claims, rows)] * bool(claims)),
    "## Every condition",
    f"Chance level: {chances['input']:.3f} on the input side, "
    f"{chances['output']:.3f} on the output side; `flat`: 0.",
    _table(rows),
    *[_failure(name, seeds) for name, seeds in failed.items()],
    "## Figures",
    *[f"![{name}](figures/{name}.png)" for name in drawn],
  ]
  record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")
  return failed


def _setting(config: Mapping[str, Any], rows: Sequence[Row]) -> str:
  parts = [
    f"{name}: " + ", ".join(f"{k} {_plain(v)}" for k, v in section.items())
    for name in ("model", "optim", "data", "train")
    if (section := {k: v for k, v in config[name].items() if v is not None})
  ]
  changes = [
    f"`{name}`: "
    + (
      ", ".join(
        f"{key} {_plain(value)}"
        for section in change.values()
        for key, value in section.items()
      )
      or "as above"
    )
    for name, change in config["conditions"].items()
  ]
  seconds = sum(r.get("seconds", 0) for r in rows if r["kind"] == "event")
  return "\n".join(
    [
      f"* {'; '.join(parts)}.",
      f"* Conditions change that: {'; '.join(changes)}.",
      f"* Seeds {', '.join(map(str, config['seeds']))}. {seconds:.0f} s of "
      "compiling, training and probing, killed parts not counted.",
    ]
  )


def _plain(value: Any) -> str:
  """A value of a config as one writes it."""
  if isinstance(value, (list, tuple)):
    return "/".join(map(str, value))
  return str(value)


def _table(rows: Sequence[Row]) -> str:
  lines = [
    "| " + " | ".join(["condition", *COLUMNS, "test accuracy"]) + " |",
    "| --- " * (len(COLUMNS) + 2) + "|",
  ]
  for name in series.conditions(rows):
    cells = [_cell(rows, name, "probe", *c) for c in COLUMNS.values()]
    cells.append(_cell(rows, name, "eval", "accuracy", "last"))
    lines.append("| " + " | ".join([name, *cells]) + " |")
  return "\n".join(lines)


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


def _failure(condition: str, seeds: Mapping[int, int]) -> str:
  steps = ", ".join(f"seed {s} at step {step}" for s, step in seeds.items())
  return f"**{condition}: loss or gradient not finite, {steps}.**"

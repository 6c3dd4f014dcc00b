"""The report of runs under several assignments of manifolds to modules."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from geom import record
from geom.record import Row
from geom.report import causes, figures, series
from geom.report import claims as claims_of
from geom.report import manifolds_figures as draw
from geom.report import markdown as md
from geom.report.claims import Claim, over_layers

# By module `attention`, `mlp`, `rest`: manifold, decay, lr, as text.
Assignment = Mapping[str, Mapping[str, str]]
GROWTH = 5.0  # A sigma that grew less was not free.
BEFORE = 3  # Probes shown before a run was noticed.
RULE = """\
A claim *reproduces* if every seed and mean ± 2 sd are within its rule, *does
not reproduce* if all of these are outside of it, on one side, else it is
*undecided*. Differences are taken seed by seed, of runs that end at the same
step; noticed as unstable, or not finite, is 1, else 0."""
TOLERANCE = f"""\
DGram leaves singular values free. A module on DGram *tolerates* that if its
largest singular value grew at least {GROWTH:g} times in every seed and no seed
was noticed as unstable or was not finite; *does not* if every seed was; with
less growth it was *not tested*. Where both modules are on DGram, runs cannot
tell which of them it is."""


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
    _assignments(names, assignments, summed_lr),
    "## What came of it",
    _results(rows, names, paper),
    *[md.failure(name, seeds) for name, seeds in failed.items()],
  ]
  if judged:
    parts += ["## Claims", RULE, claims_of.table(claims, rows)]
  parts += [
    "## The MLP's tolerance of DGram, beside attention's",
    TOLERANCE,
    _tolerance(rows, names, assignments),
    *_causes(rows, names),
    "## Continuity",
    "Mean |cos| of the leading singular vectors of adjacent layers at the last "
    "step, where defined, on the side of the residual stream; of W - W(0), and "
    "of W. Chance in brackets. On Stiefel all singular values of W are 1 and "
    "the vectors are not defined; `k/n` says of how many pairs they are.",
    _continuity(rows, names, chances),
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


def _assignments(
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
  summed_lr: Mapping[str, float],
) -> str:
  head = ["condition"]
  for module in ("attention", "MLP", "embeddings"):
    head += [module, "its decay"]
  lines = []
  for name in names:
    of = assignments[name]
    line = [name]
    for module in ("attention", "mlp", "rest"):
      line += [of[module]["manifold"], of[module]["decay"]]
    rates = dict.fromkeys([of["attention"]["lr"], of["mlp"]["lr"]])
    lines.append([*line, ", ".join(rates), md.number(summed_lr[name], 1)])
  return md.table([*head, "peak rate of kernels", "rate summed"], lines)


def _last(
  rows: Sequence[Row], name: str, kind: str, key: str, how: str = "mean"
) -> Float[np.ndarray, " seed"]:
  """A number at the last step, over layers; NaN where a seed has none."""
  found = series.values_at(rows, name, kind, key, "last")
  if found is None:
    return np.full(len(series.seeds(rows, name)), np.nan)
  return over_layers(found[1], how, keep=1)


def _results(
  rows: Sequence[Row], names: Sequence[str], paper: Mapping[str, str]
) -> str:
  head = [
    "condition", "validation loss", "seed by seed", "lowest", "largest logit",
    "highest ever", "entropy", "saturation", "noticed as unstable",
    "paper: loss, stability",
  ]  # fmt: skip
  lines = []
  for name in names:
    loss = _last(rows, name, "eval", "loss")
    curve = series.curve(rows, name, "eval", "loss")
    ever = claims_of.extreme("attention/logit_max", "max", ever=True)
    highest = ever(rows, name)
    lines.append(
      [
        name,
        md.mean(loss),
        " ".join(md.number(x) for x in loss),
        "–" if curve is None else md.mean(np.fmin.reduce(curve.values, axis=1)),
        md.mean(_last(rows, name, "probe", "attention/logit_max", "max"), 1),
        "–" if highest is None else md.mean(highest[1], 1),
        md.mean(_last(rows, name, "probe", "attention/entropy_nats", "min")),
        md.mean(_last(rows, name, "probe", "attention/saturation")),
        _noticed(rows, name),
        paper.get(name, "–"),
      ]
    )
  return md.table(head, lines)


def _noticed(rows: Sequence[Row], name: str) -> str:
  """Which seeds the watch noticed, when and why."""
  found = series.events(rows, name, "unstable")
  seeds = series.seeds(rows, name)
  if not found:
    return f"none of {len(seeds)}"
  each = [f"{s}: step {r['step']}, {r['cause']}" for s, r in found.items()]
  return f"{len(found)} of {len(seeds)} ({'; '.join(each)})"


def _growth(
  rows: Sequence[Row], name: str, projections: Sequence[str]
) -> Float[np.ndarray, " seed"]:
  """How many times the largest singular value is what it was at step 0."""
  ratios = []
  for p in projections:
    curve = series.curve(rows, name, "probe", f"{p}/weights/sigma_1")
    if curve is not None:
      largest = over_layers(curve.values, "max", keep=2)
      ratios.append(largest[:, -1] / largest[:, 0])
  if not ratios:
    return np.full(len(series.seeds(rows, name)), np.nan)
  return np.fmax.reduce(np.stack(ratios), axis=0)


def _tolerance(
  rows: Sequence[Row],
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
) -> str:
  head = [
    "condition", "attention", "sigma of q, k, v, o grew", "saturation",
    "attention's verdict", "MLP", "sigma of up, down grew",
    "rms of pre-activations, start and end", "below -3", "above 3",
    "MLP's verdict",
  ]  # fmt: skip
  lines = []
  for name in names:
    of = assignments[name]
    on = [m for m in ("attention", "mlp") if "dgram" in of[m]["manifold"]]
    growth = {
      "attention": _growth(rows, name, ("q", "k", "v", "o")),
      "mlp": _growth(rows, name, ("up", "down")),
    }
    key = "mlp/preactivation_rms"
    start = series.values_at(rows, name, "probe", key, "start")
    at_start = (
      "–" if start is None else md.mean(over_layers(start[1], "max", keep=1))
    )
    at_end = md.mean(_last(rows, name, "probe", key, "max"))
    verdict = {
      module: _verdict(rows, name, module, on, growth[module])
      for module in growth
    }
    lines.append(
      [
        name,
        of["attention"]["manifold"],
        f"{md.mean(growth['attention'], 1)} x",
        md.mean(_last(rows, name, "probe", "attention/saturation")),
        verdict["attention"],
        of["mlp"]["manifold"],
        f"{md.mean(growth['mlp'], 1)} x",
        f"{at_start}, {at_end}",
        md.mean(_last(rows, name, "probe", "mlp/dead")),
        md.mean(_last(rows, name, "probe", "mlp/linear")),
        verdict["mlp"],
      ]
    )
  return md.table(head, lines)


def _verdict(
  rows: Sequence[Row],
  name: str,
  module: str,
  on: Sequence[str],
  growth: Float[np.ndarray, " seed"],
) -> str:
  """Whether a module tolerates DGram, by the rule that is printed."""
  if module not in on:
    return "–"
  bad = {
    *series.events(rows, name, "unstable"),
    *series.failures(rows, name),
  }
  count = len(series.seeds(rows, name))
  if not bad:
    grew = bool(np.all(growth >= GROWTH))
    return "**tolerates**" if grew else "not tested"
  if len(on) > 1:
    return "cannot tell"
  return "**does not**" if len(bad) == count else "undecided"


def _causes(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
  """What came first in the runs that were noticed, and what preceded that."""
  found = {
    (name, seed): row
    for name in names
    for seed, row in series.events(rows, name, "unstable").items()
  }
  if not found:
    return ["## What moves first", "No run was noticed as unstable."]
  lines, preceding = [], []
  for (name, seed), row in found.items():
    onsets = causes.onsets(rows, name, seed, row["step"])
    order = " < ".join(" = ".join(group) for group in causes.order(onsets))
    cells = [
      f"{onsets[s].step:.0f} ± {onsets[s].resolution:.0f}"
      if s in onsets and np.isfinite(onsets[s].step)
      else "–"
      for s in causes.SIGNALS
    ]
    lines.append([name, str(seed), *cells, str(row["step"]), order])
    preceding += _before(rows, name, seed, row["step"])
  return [
    "## What moves first",
    causes.RULE,
    md.table(["condition", "seed", *causes.SIGNALS, "noticed", "order"], lines),
    "What preceded it, at the start and at the last measurements before a run "
    "was noticed:",
    md.table(["condition", "seed", "step", *causes.SIGNALS], preceding),
  ]


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


def _continuity(
  rows: Sequence[Row], names: Sequence[str], chances: Mapping[str, float]
) -> str:
  head = ["condition"]
  for p in draw.PROJECTIONS:
    level = md.number(chances[f"{p}/{draw.SIDES[p]}"], 2)
    head.append(f"{p}, {draw.SIDES[p]} ({level}): W - W(0); W")
  return md.table(
    head,
    [
      [name, *[_two(rows, name, p) for p in draw.PROJECTIONS]] for name in names
    ],
  )


def _two(rows: Sequence[Row], name: str, projection: str) -> str:
  """The continuity of W - W(0) and of W, where defined."""
  cells = []
  for stack in ("updates", "weights"):
    key = f"{projection}/{stack}/cos_{draw.SIDES[projection]}"
    found = series.values_at(rows, name, "probe", key, "last")
    if found is None:
      cells.append("–")
      continue
    defined = int(np.isfinite(found[1]).sum())
    some = "" if defined == found[1].size else f" ({defined}/{found[1].size})"
    cells.append(md.mean(over_layers(found[1], "mean", keep=1), 2) + some)
  return "; ".join(cells)

"""The report of the geometry of a checkpoint."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geom import record
from geom.record import Row
from geom.report import figures
from geom.report import markdown as md
from geom.report import pretrained_figures as draw
from geom.report import pretrained_rows as data
from geom.report import pretrained_tables as tables
from geom.report.pretrained_tables import Verdict

READING = """\
|cos| of the leading singular vectors of adjacent layers, mean ± sample standard
deviation over pairs of layers in which both are defined. Input is v1, output is
u1; chance is the mean |cos| of two random directions of that space. `folded` is
W with the gain of the norm before it, diag(gain) K. A low |cos| where s1/s2 is
near 1 is not lost alignment: the second direction may have changed places with
the first; overlaps of leading spaces tell. Effective rank is the exponential of
the entropy of s^2 / sum(s^2). A dash: nothing there, or not defined."""
OVERLAPS = """\
||A(l)^T A(l+1)||_F^2 / k of the leading k singular vectors A of a side, mean
over pairs where the space is defined; chance k/d in brackets."""
SHARING = """\
Share of ||K||_F^2, mean over layers, that survives projection onto k directions
of the residual stream: each layer's own best, or one basis common to some
consecutive layers or to all, chosen for the sum of K K^T / ||K||_F^2 (K^T K on
the output side). Chance is k/d. The last two columns compare the basis common
to all layers with each layer's own: what it keeps, and what it keeps above
chance."""
LOSSES = """\
Nats a token above {base:.4f}, the loss of the weights as they are, with one
projection of all layers replaced by what k directions keep; own is each
layer's truncated SVD, the same on both sides. A side with fewer dimensions has
less to lose at the same k. {tokens} tokens of packaged text, the same for all;
differences below a few thousandths are within what other text would change.
Above {nothing:.2f} a model is worse than one that knows nothing: of two such
costs the smaller says little."""
REMOVALS = """\
A layer left out adds nothing to the residual stream. Rank correlation of its
cost with its continuity: {all} over all layers, {inner} without the first and
last two (ends are special for other reasons)."""


def write_report(
  workdir: pathlib.Path,
  rows: Sequence[Row],
  *,
  config: Mapping[str, Any],
  chance: Callable[[int], float],
  stable: Sequence[str],
  verdicts: Sequence[Verdict],
  correlations: tuple[float, float],
) -> None:
  """Writes `figures/*.png`, `report.md` and `summary.json` into a workdir.

  Args:
    workdir: of the analysis.
    rows: of its `metrics.jsonl`.
    config: of it.
    chance: mean |cos| of two random directions of so many dimensions.
    stable: projections that are held to be continuous.
    verdicts: on claims.
    correlations: of the cost of leaving layers out with their continuity, over
      all layers and over inner ones; NaN where not measured.
  """
  of = data.digest(rows)
  drawn = {}
  if of.cosines:
    drawn = {
      "pairs": draw.pairs(of),
      "all_pairs": draw.all_pairs(of),
      "depth": draw.depth(of, chance),
      "sharing": draw.sharing(of),
      "costs": draw.costs(of),
      "removal": draw.removal(of, stable),
    }
  drawn = {name: figure for name, figure in drawn.items() if figure is not None}
  for name, figure in drawn.items():
    figures.save(figure, workdir / "figures" / f"{name}.png")
  record.write_json(
    workdir / "summary.json", _summary(of, config, chance, verdicts)
  )
  parts = [f"# Geometry of {of.start.get('source')}", _setting(of, rows)]
  problems = tables.problems(of)
  if problems:
    parts += ["## Not read", "\n".join(f"* {line}" for line in problems)]
  if verdicts:
    parts += [
      "## Claims",
      "Of this model alone, one sample; the rules are the section `claims` of "
      "the config.",
      tables.claims(verdicts),
    ]
  parts += ["## Projections", READING, tables.projections(of, chance)]
  parts += _images(drawn, "pairs", "all_pairs", "depth")
  parts += ["## Leading spaces", OVERLAPS, tables.overlaps(of)]
  parts += ["## A common basis", SHARING, tables.sharing(of)]
  parts += _images(drawn, "sharing")
  if data.costs(of):
    tokens = next(r["tokens"] for r in of.losses if "tokens" in r)
    text = LOSSES.format(
      base=data.base_loss(of),
      tokens=tokens,
      nothing=data.knowing_nothing(of),
    )
    parts += ["## What sharing costs", text, tables.losses(of)]
    parts += _images(drawn, "costs")
  if "removal" in drawn:
    both = [md.number(x, 2) for x in correlations]
    parts += [
      "## Layers left out",
      REMOVALS.format(all=both[0], inner=both[1]),
      *_images(drawn, "removal"),
    ]
  record.write_text(workdir / "report.md", "\n\n".join(parts) + "\n")


def _images(drawn: Mapping[str, Any], *names: str) -> list[str]:
  return [f"![{name}](figures/{name}.png)" for name in names if name in drawn]


def _setting(of: data.Analysis, rows: Sequence[Row]) -> str:
  start = of.start
  ends = [r for r in rows if r.get("event") == "analysed"]
  seconds = sum(r["seconds"] for r in ends)
  read = sum(r["gigabytes"] for r in ends)
  lines = [
    f"* {start.get('format')}, family {start.get('family')}, "
    f"{start.get('layers')} layers, {start.get('gigabytes', 0):.3f} GB of "
    "kernels.",
  ]
  if read:
    rate = f", {seconds / read:.1f} s a GB" if read >= 1 else ""
    first = next(r for r in rows if r.get("event") == "start")
    lines.append(
      f"* {seconds:.0f} s of analysis for {read:.3f} GB{rate}; planned were "
      f"{first['planned_seconds']:.0f} s at {first['gflops']:.0f} GFlop/s."
    )
  return "\n".join(lines)


def _summary(
  of: data.Analysis,
  config: Mapping[str, Any],
  chance: Callable[[int], float],
  verdicts: Sequence[Verdict],
) -> dict[str, Any]:
  found = {}
  for p, side in of.sides.items():
    if p not in of.kernels:
      continue
    found[p] = {"side": side, "rank": data.mean(data.numbers(of, p, "rank"))}
    for s in data.SIDES:
      d = data.width(of, p, s)
      found[p] |= {
        f"cos_{s}": data.mean(data.adjacent(of, p, s)),
        f"folded_cos_{s}": data.mean(data.adjacent(of, p, s, "folded_")),
        f"chance_{s}": chance(d) if d else None,
      }
  return {
    "config": config,
    "source": of.start.get("source"),
    "projections": found,
    "claims": [
      {
        "text": v.text,
        "value": v.value,
        "rule": v.rule,
        "verdict": tables.verdict(v),
      }
      for v in verdicts
    ],
    "problems": tables.problems(of),
  }

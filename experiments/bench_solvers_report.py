"""The report of `experiments.bench`, variants `solvers*`."""

import pathlib
from typing import Any

import numpy as np

from experiments import bench_machine, bench_solvers_wanted
from geom import record

Rows = list[record.Row]


def report(workdir: pathlib.Path) -> None:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  pairs = [row for row in rows if row["event"] == "pair"]
  shapes = {
    "x".join(map(str, shape)): [r for r in pairs if r["shape"] == shape]
    for shape in config["shapes"]
  }
  shapes = {shape: mine for shape, mine in shapes.items() if mine}
  found = {
    shape: {name: _of_solver(mine, name) for name in config["solvers"]}
    for shape, mine in shapes.items()
  }
  wanted = config["wanted"] and bench_solvers_wanted.judged(
    config["wanted"], found, pairs
  )
  machine = bench_machine.of_rows(rows)
  record.write_json(
    workdir / "summary.json",
    {"measured": found, "wanted": wanted, "machine": machine},
  )
  lines = [*_head(config, pairs)]
  for shape, mine in shapes.items():
    lines += _of_shape(shape, mine, found[shape])
  if wanted:
    lines += ["## Wanted\n", "| what | found | wanted | |", "| --- " * 4 + "|"]
    lines += [
      f"| {x['what']} | {x['found']:.3g} | <= {x['wanted']:g} | "
      f"**{'met' if x['met'] else 'not met'}** |"
      for x in wanted
    ]
    lines.append("")
  lines += _beside(config, pairs)
  lines += bench_machine.lines(machine)
  text = "\n".join(lines) + "\n"
  record.write_text(workdir / "report.md", text)
  print(text)


def ill_conditioned(rows: Rows) -> Rows:
  return [row for row in rows if row["spectrum"] != "gaussian"]


def numbers(rows: Rows, key: str) -> np.ndarray:
  """One number of every row; NaN where it was not finite."""
  return np.array([row[key] for row in rows], dtype=float)


def _head(config: dict[str, Any], pairs: Rows) -> list[str]:
  uncertain = numbers(pairs, "uncertainty")
  return [
    "# Solvers of steepest descent\n",
    f"{len(pairs)} pairs (W, G), G of Frobenius norm {config['norm']:g}. "
    "The gap is 1 - <G, A_T> / (max(1, ||A_T||_2) f*),",
    "A_T the tangent part of A, against a float64 optimum f* whose certified "
    f"uncertainty is {np.median(uncertain):.1e} in",
    f"the median, {np.max(uncertain):.1e} at most: a gap may be too large by "
    "so much. A unit is 2 n^3 flops, n the shorter",
    "side; those of LAPACK are not counted, the conjugate gradient steps of "
    "`irls` once.\n",
  ]


def _of_solver(rows: Rows, name: str) -> dict[str, float]:
  """Over the pairs of one shape."""
  found = {
    "flops": float(np.max(numbers(rows, f"{name}/flops"))),
    "ms": float(np.median(numbers(rows, f"{name}/ms"))),
  }
  for key in ("tangency", "spectral_norm"):
    found[key] = float(np.max(numbers(rows, f"{name}/{key}")))
  for label, some in (("ill", ill_conditioned(rows)), ("all", rows)):
    gaps = numbers(some, f"{name}/gap") if some else np.array([np.nan])
    found[f"gap_median_{label}"] = float(np.median(gaps))
    found[f"gap_max_{label}"] = float(np.max(gaps))
  return found


def _of_shape(
  shape: str, rows: Rows, found: dict[str, dict[str, float]]
) -> list[str]:
  n = min(rows[0]["shape"])
  lines = [
    f"## {shape}\n",
    "| solver | Gflop | units | ms | tangency, max | spectral norm, max | gap, "
    "ill-conditioned G: median | max | all G: median | max |",
    "| --- " * 10 + "|",
  ]
  for name, x in found.items():
    lines.append(
      f"| {name} | {x['flops'] / 1e9:.3g} | {x['flops'] / 2 / n**3:.0f} | "
      f"{x['ms']:.0f} | {x['tangency']:.4f} | {x['spectral_norm']:.4f} | "
      f"{x['gap_median_ill']:.4f} | {x['gap_max_ill']:.4f} | "
      f"{x['gap_median_all']:.4f} | {x['gap_max_all']:.4f} |"
    )
  where = dict.fromkeys((row["manifold"], row["spread"]) for row in rows)
  heads = [_place(*place) for place in where]
  lines += [
    "\nGap by where W is: median (largest) over all G\n",
    f"| solver | {' | '.join(heads)} |",
    "| --- " * (len(heads) + 1) + "|",
  ]
  for name in found:
    cells = []
    for place in where:
      mine = [r for r in rows if (r["manifold"], r["spread"]) == place]
      gaps = numbers(mine, f"{name}/gap")
      cells.append(f"{np.median(gaps):.4f} ({np.max(gaps):.4f})")
    lines.append(f"| {name} | {' | '.join(cells)} |")
  return [*lines, ""]


def _place(manifold: str, spread: float) -> str:
  return manifold if manifold == "stiefel" else f"{manifold}, spread {spread:g}"


def _beside(config: dict[str, Any], pairs: Rows) -> list[str]:
  """Where dual ascent is at its best."""
  easy = [row for row in pairs if "dual_ascent, easy/gap" in row]
  if not easy:
    return []
  auto, other, at_ease = (
    np.median(numbers(easy, f"{name}/gap"))
    for name in ("auto", "dual_ascent", "dual_ascent, easy")
  )
  return [
    f"- Gaussian G at W.T W = I, median gap: auto {auto:.4f}, dual_ascent "
    f"{other:.4f}, and {at_ease:.4f} if G has norm {config['easy_norm']:g}"
  ]

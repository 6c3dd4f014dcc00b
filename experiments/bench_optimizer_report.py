"""The report of `experiments.bench`, variant `optimizer`."""

import pathlib
from typing import Any

import numpy as np

from experiments import bench_machine
from geom import record

WHAT = {
  "euclidean": "`euclidean`, {steps} steps of msign, against optax's Muon of "
  "as many",
  "hetero": "hetero, `auto`, against `euclidean`",
  "dual_ascent": "hetero, `auto`, against dual ascent of {iterations} "
  "iterations ({layers} layers)",
}


def report(workdir: pathlib.Path) -> None:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  names = dict.fromkeys(
    row["condition"] for row in rows if row["event"] == "measured"
  )
  found = {
    name: _summary(name, config, [r for r in rows if r["condition"] == name])
    for name in names
  }
  machine = bench_machine.of_rows(rows)
  record.write_json(
    workdir / "summary.json", {"measured": found, "machine": machine}
  )
  layers, width = config["layers"], config["width"]
  lines = [
    "# Speed of the optimizer\n",
    f"Whole updates of {layers} layers of width {width}, medians of ratios of "
    "neighbours in time;\n`euclidean` and hetero are ours over theirs, dual "
    "ascent is theirs over ours.\nMilliseconds are of CPU time at one "
    "thread.\n",
    "| what | q, k, v | ours ms | theirs ms | ratio | spread | wanted | |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
    *(_line(name, config, x) for name, x in found.items()),
    "\nOf the peak of one square product in float32, by counted flops of "
    "matrix products:\n",
    "| what | Gflop | ours | theirs | wanted | |",
    "| --- | --- | --- | --- | --- | --- |",
    *(_of_peak(name, config, x) for name, x in found.items() if x["of_peak"]),
    "",
    *bench_machine.lines(machine),
  ]
  text = "\n".join(lines) + "\n"
  record.write_text(workdir / "report.md", text)
  print(text)


def _summary(
  name: str, config: dict[str, Any], rows: list[record.Row]
) -> dict[str, Any]:
  """Of the rows of one measurement."""
  what = name.split("/")[0]
  ours, theirs = (
    np.array([row[key] for row in rows]) for key in ("ours_ms", "theirs_ms")
  )
  faster = what == "dual_ascent"
  ratios = theirs / ours if faster else ours / theirs
  median, wanted = float(np.median(ratios)), config["wanted"][what]
  found = {
    "ours_ms": float(np.median(ours)),
    "theirs_ms": float(np.median(theirs)),
    "median": median,
    "least": float(ratios.min()),
    "largest": float(ratios.max()),
    "wanted": wanted,
    "met": median >= wanted if faster else median <= wanted,
    "flops": rows[0]["flops"],
    "their_flops": rows[0]["their_flops"],
  }
  for key in ("of_peak", "their_of_peak", "peak_gflops"):
    values = [row[key] for row in rows if key in row]
    found[key] = float(np.median(values)) if values else None
  return found


def _line(name: str, config: dict[str, Any], x: dict[str, Any]) -> str:
  what, layout = name.split("/")
  where = {**config["dual_ascent"], "steps": config["steps"]}
  sign = ">=" if what == "dual_ascent" else "<="
  return (
    f"| {WHAT[what].format(**where)} | {layout} | {x['ours_ms']:.0f} | "
    f"{x['theirs_ms']:.0f} | {x['median']:.2f} | {x['least']:.2f} to "
    f"{x['largest']:.2f} | {sign} {x['wanted']:g} | {_verdict(x['met'])} |"
  )


def _of_peak(name: str, config: dict[str, Any], x: dict[str, Any]) -> str:
  wanted = config["wanted"]["of_peak"]
  return (
    f"| {name}, peak {x['peak_gflops']:.0f} Gflop/s | {x['flops'] / 1e9:.0f} "
    f"| {x['of_peak']:.2f} | {x['their_of_peak']:.2f} | >= {wanted:g} | "
    f"{_verdict(x['of_peak'] >= wanted)} |"
  )


def _verdict(met: bool) -> str:
  return f"**{'met' if met else 'not met'}**"

"""The report of `experiments.bench`, variant `probes`."""

import pathlib
from typing import Any

import numpy as np

from experiments import bench_machine
from geom import record

WHAT = {
  "spectrum": "all triplets of a {layers} x {m} x {n} stack, both sides' "
  "vectors, against numpy.linalg.svd",
  "warm": "leading {k} triplets of it after a small change, warm, "
  "{iterations} iterations, against the same",
  "default_share": "default probes every {every} steps of training, against "
  "those steps",
  "full_share": "every probe, five stacks, every {full_every} steps of "
  "training, against those steps",
}


def report(workdir: pathlib.Path) -> None:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  where = {**config["stack"], **config["warm"], **config["training"]}
  found = {
    name: _summary(name, config, [r for r in rows if r["condition"] == name])
    for name in WHAT
  }
  machine = bench_machine.of_rows(rows)
  record.write_json(
    workdir / "summary.json", {"measured": found, "machine": machine}
  )
  lines = [
    "# Speed of the probes\n",
    "Milliseconds are medians. A ratio is theirs over ours, of neighbours in "
    "time, a share\nours over theirs; spread is from the least to the "
    "largest. A share is judged by\nthe sum over the run.\n",
    "| what | ours ms | theirs ms | median | spread | wanted | |",
    "| --- | --- | --- | --- | --- | --- | --- |",
  ]
  for name, x in found.items():
    share = name.endswith("share")
    show = "{:.1%}".format if share else "{:.1f}x".format
    total = f" (of all {show(x['total'])})" if share else ""
    lines.append(
      f"| {WHAT[name].format(**where)} | {x['ours_ms']:.1f} | "
      f"{x['theirs_ms']:.1f} | {show(x['median'])}{total} | "
      f"{show(x['least'])} to {show(x['largest'])} | "
      f"{'<=' if share else '>='} {show(x['wanted'])} | "
      f"**{'met' if x['met'] else 'not met'}** |"
    )
  lines.append("")
  for name, x in found.items():
    lines += [f"- `{name}`: {k} {v:.3g}" for k, v in x["notes"].items()]
  lines += bench_machine.lines(machine)
  record.write_text(workdir / "report.md", "\n".join(lines) + "\n")


def _summary(
  name: str, config: dict[str, Any], rows: list[record.Row]
) -> dict[str, Any]:
  """Of the rows of one measurement; the last row has notes."""
  ours = np.array([row["ours_ms"] for row in rows])
  theirs = np.array([row["theirs_ms"] for row in rows])
  share = name.endswith("share")
  ratios = ours / theirs if share else theirs / ours
  wanted = config["wanted"][name]
  judged = ours.sum() / theirs.sum() if share else np.median(ratios)
  notes = {
    key: max(row[key] for row in rows)
    for key in rows[0]
    if key.startswith("largest ")
  }
  met = judged <= wanted if share else judged >= wanted
  if name == "warm":
    met &= notes["largest residual"] <= config["warm"]["residual"]
  return {
    "ours_ms": float(np.median(ours)),
    "theirs_ms": float(np.median(theirs)),
    "median": float(np.median(ratios)),
    "least": float(ratios.min()),
    "largest": float(ratios.max()),
    **({"total": float(judged)} if share else {}),
    "wanted": wanted,
    "met": bool(met),
    "notes": notes,
  }

"""The report of `experiments.bench`, variant `language`."""

import pathlib
from typing import Any

import numpy as np

from experiments import bench_machine
from geom import record


def report(workdir: pathlib.Path) -> None:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  found = {
    name: _summary(
      [r for r in rows if r["condition"] == name and r["event"] == "measured"]
    )
    for name in config["sizes"]
  }
  machine = bench_machine.of_rows(rows)
  record.write_json(
    workdir / "summary.json", {"measured": found, "machine": machine}
  )
  lines = [
    "# Speed of training GPT-2\n",
    "Tokens a second of CPU at one thread, medians; ratios are medians of "
    "neighbours in time,\nwith the least and the largest. Tokens are random, "
    "their loss is of no meaning.\n",
    "| size | AdamW | torch | AdamW / torch | wanted | | MB | torch MB |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
    *(
      _against_torch(name, config["sizes"][name], x)
      for name, x in found.items()
    ),
    "",
    "MB: the most that the process had, of ours with AdamW alone in it.\n",
    "| size | a run's step / bare | wanted | | hetero | hetero / AdamW | "
    "bound by flops |",
    "| --- | --- | --- | --- | --- | --- | --- |",
    *(_against_ours(name, config, x) for name, x in found.items()),
    "\nA run's step has the watch, the guard against what is not finite, and "
    "metrics; bare is the\nsame optimizer in a plain loop, time over time. The "
    "bound is flops of AdamW's step over those of\nhetero's, of matrix "
    "products.\n",
    *bench_machine.lines(machine),
  ]
  text = "\n".join(lines) + "\n"
  record.write_text(workdir / "report.md", text)
  print(text)


def _summary(rows: list[record.Row]) -> dict[str, Any]:
  """Of the rows of one size."""

  def of(key: str) -> np.ndarray:
    return np.array([row[key] for row in rows])

  def spread(ratios: np.ndarray) -> dict[str, float]:
    values = (np.median(ratios), ratios.min(), ratios.max())
    names = ("median", "least", "largest")
    return {k: float(v) for k, v in zip(names, values, strict=True)}

  tokens = rows[0]["tokens"]
  found = {
    "tokens_per_s": {
      side: float(np.median(tokens / of(f"{side}_ms") * 1e3))
      for side in ("adamw", "bare", "hetero")
    },
    "run_over_bare": spread(of("adamw_ms") / of("bare_ms")),
    "hetero_share": spread(of("adamw_ms") / of("hetero_ms")),
    "bound": rows[0]["adamw_flops"] / rows[0]["hetero_flops"],
    "mb": float(of("mb").max()),
    "torch": None,
  }
  if "torch_ms" in rows[0]:
    found["torch"] = {
      "tokens_per_s": float(np.median(tokens / of("torch_ms") * 1e3)),
      "ratio": spread(of("torch_ms") / of("adamw_ms")),
      "mb": float(of("torch_mb").max()),
      "version": rows[0]["torch_torch"],
    }
  return found


def _against_torch(name: str, size: dict[str, Any], x: dict[str, Any]) -> str:
  ours, torch, wanted = x["tokens_per_s"]["adamw"], x["torch"], size["wanted"]
  if torch is None:
    return (
      f"| {name} | {ours:.0f} | not measured | – | {wanted:g} | – | – | – |"
    )
  return (
    f"| {name} | {ours:.0f} | {torch['tokens_per_s']:.0f} | "
    f"{_ratio(torch['ratio'])} | >= {wanted:g} | "
    f"{_verdict(torch['ratio']['median'] >= wanted)} | {x['mb']:.0f} | "
    f"{torch['mb']:.0f} |"
  )


def _against_ours(name: str, config: dict[str, Any], x: dict[str, Any]) -> str:
  wanted = config["run_over_bare"]
  return (
    f"| {name} | {_ratio(x['run_over_bare'])} | <= {wanted:g} | "
    f"{_verdict(x['run_over_bare']['median'] <= wanted)} | "
    f"{x['tokens_per_s']['hetero']:.0f} | {_ratio(x['hetero_share'])} | "
    f"{x['bound']:.2f} |"
  )


def _ratio(x: dict[str, float]) -> str:
  return f"{x['median']:.2f} ({x['least']:.2f} to {x['largest']:.2f})"


def _verdict(met: bool) -> str:
  return f"**{'met' if met else 'not met'}**"

"""How fast the parts are: against numpy, and beside training.

Measured in a process of its own at one thread, on one CPU where the system
can pin it, both sides in turns within one run. Nothing fails for being slow:
the report says "not met".
"""

import os
import pathlib
import subprocess
import sys
from typing import Annotated, Any, Literal

import numpy as np
from ml_collections import ConfigDict
from pydantic import Field

from geom import config as cfg
from geom import record
from geom.data import mnist

ROOT = pathlib.Path(__file__).parents[1]
ONE_THREAD = {
  "OPENBLAS_NUM_THREADS": "1",
  "OMP_NUM_THREADS": "1",
  "MKL_NUM_THREADS": "1",
  "VECLIB_MAXIMUM_THREADS": "1",
  "JAX_PLATFORMS": "cpu",
  "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


class StackSection(cfg.Section):
  layers: cfg.Count
  m: cfg.Count
  n: cfg.Count


class WarmSection(cfg.Section):
  k: cfg.Count
  block: cfg.Count
  iterations: cfg.Count
  residual: cfg.Positive
  change: cfg.NonNegative
  calls: cfg.Count


class TrainingSection(cfg.Section):
  width: Annotated[int, Field(ge=2)]
  depth: Annotated[int, Field(ge=2)]
  batch_size: Annotated[int, Field(ge=1, le=60_000)]
  lr: cfg.NonNegative
  num_steps: cfg.Count
  steps_per_dispatch: cfg.Count
  every: cfg.Count
  full_every: cfg.Count
  full_measured_every: cfg.Count
  num_examples: Annotated[int, Field(ge=1, le=60_000)]


class WantedSection(cfg.Section):
  spectrum: cfg.Positive
  warm: cfg.Positive
  default_share: cfg.Positive
  full_share: cfg.Positive


class Schema(cfg.Section):
  """A config of this experiment."""

  experiment: Literal["bench"]
  variant: Literal["probes"]
  repeats: cfg.Count
  stack: StackSection
  warm: WarmSection
  training: TrainingSection
  wanted: WantedSection


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says.
  """
  checked = cfg.check(config, Schema)
  warm, training = checked["warm"], checked["training"]
  most = min(checked["stack"]["m"], checked["stack"]["n"])
  if not warm["k"] <= warm["block"] <= most:
    raise cfg.ConfigError(
      f"config.warm.block: should be in {warm['k']}..{most}, "
      f"got {warm['block']}"
    )
  for key in ("full_measured_every", "num_steps"):
    if training[key] % training["every"]:
      raise cfg.ConfigError(
        f"config.training.{key}: should be a multiple of "
        f"{training['every']}, every, got {training[key]}"
      )
  return checked


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Measures, anew if a run was stopped half way, and reports.

  Returns:
    No failures.

  Raises:
    DataError: see `geom.data.mnist`.
    OSError: the measuring process failed.
  """
  del profile
  metrics = workdir / "metrics.jsonl"
  if any(row.get("event") == "end" for row in record.read(metrics)):
    print("measured before", file=sys.stderr)
    return report(workdir)
  mnist.load(data_dir)
  metrics.unlink(missing_ok=True)
  command = [
    sys.executable,
    "-m",
    "experiments.bench_probes",
    str(workdir.resolve()),
  ]
  done = subprocess.run(
    [*command, str(data_dir.resolve())],
    cwd=ROOT,
    env={**os.environ, **ONE_THREAD},
    check=False,
  )
  if done.returncode:
    raise OSError(f"the measuring process ended with {done.returncode}")
  return report(workdir)


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


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  where = {**config["stack"], **config["warm"], **config["training"]}
  found = {
    name: _summary(name, config, [r for r in rows if r["condition"] == name])
    for name in WHAT
  }
  machine = {
    row["event"]: {k: v for k, v in row.items() if k not in ("step", "kind")}
    for row in rows
    if row["condition"] == "machine"
  }
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
  lines += [f"- {k}: {v}" for x in machine.values() for k, v in x.items()]
  record.write_text(workdir / "report.md", "\n".join(lines) + "\n")
  return {}


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

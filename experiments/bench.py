"""How fast the parts are, and how good the solvers; by variant.

Measured in a process of its own at one thread, on one CPU where the system
can pin it, both sides in turns within one run. Nothing fails for being slow:
the report says "not met". What a variant measures is said in
`experiments.bench_VARIANT`, what may be in its config in
`experiments.bench_config`.
"""

import os
import pathlib
import subprocess
import sys
from typing import Any

from ml_collections import ConfigDict

from experiments import (
  bench_config,
  bench_language_report,
  bench_optimizer_report,
  bench_probes_report,
  bench_solvers_report,
)
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
# By variant: the measuring module, what reports, and whether a stopped run
# goes on where it was.
PARTS = {
  "probes": ("bench_probes", bench_probes_report.report, False),
  "solvers": ("bench_solvers", bench_solvers_report.report, True),
  "solvers_near_square": ("bench_solvers", bench_solvers_report.report, True),
  "optimizer": ("bench_optimizer", bench_optimizer_report.report, False),
  "language": ("bench_language", bench_language_report.report, False),
}


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says.
  """
  return bench_config.check(config)


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Measures and reports.

  If a run was stopped half way, `solvers` go on with the pairs that lack, the
  others measure anew.

  Returns:
    No failures.

  Raises:
    DataError: see `geom.data.mnist`.
    OSError: the measuring process failed.
  """
  del profile
  module, report, goes_on = PARTS[config["variant"]]
  metrics = workdir / "metrics.jsonl"
  if any(row["event"] == "end" for row in record.read(metrics)):
    print("measured before", file=sys.stderr)
    report(workdir)
    return {}
  if config["variant"] == "probes":
    mnist.load(data_dir)
  if not goes_on:
    metrics.unlink(missing_ok=True)
  command = [sys.executable, "-m", f"experiments.{module}"]
  done = subprocess.run(
    [*command, str(workdir.resolve()), str(data_dir.resolve())],
    cwd=ROOT,
    env={**_compiled_before(data_dir), **os.environ, **ONE_THREAD},
    check=False,
  )
  if done.returncode:
    raise OSError(f"the measuring process ended with {done.returncode}")
  report(workdir)
  return {}


def _compiled_before(data_dir: pathlib.Path) -> dict[str, str]:
  """Where compiled programs are kept: the folder that `launch.py` uses."""
  return {
    "JAX_COMPILATION_CACHE_DIR": str(data_dir.resolve() / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
  }

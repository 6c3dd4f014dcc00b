"""The machine that a benchmark ran on, and its clock."""

import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from geom import record
from geom.train.memory import keep_freed_memory


def pin() -> None:
  """Holds the process to one CPU, where the system can."""
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  keep_freed_memory()


def machine() -> dict[str, Any]:
  """What it is and how busy it is."""
  cpu = platform.processor()
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = text.split("model name")[1].split("\n")[0].strip("\t :")
  except (OSError, IndexError):
    pass
  pinned = getattr(os, "sched_getaffinity", lambda _: None)(0)
  blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
  return {
    "cpu": cpu,
    "cpus of the machine": os.cpu_count(),
    "pinned to": "nothing" if pinned is None else sorted(pinned),
    "threads": {k: v for k, v in os.environ.items() if "THREAD" in k},
    "python": platform.python_version(),
    "jax": jax.__version__,
    "numpy": f"{np.__version__}, {blas['name']} {blas['version']}",
    "load average before": os.getloadavg(),
  }


def ms(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Milliseconds until the result is there, and the result."""
  began = time.perf_counter()
  out = jax.block_until_ready(function(*args))
  return (time.perf_counter() - began) * 1e3, out


def cpu_ms(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Milliseconds that the CPU was at it, and the result.

  At one thread that is the time it takes on an idle machine: free of what
  others do on the same CPU, but for the caches they take.
  """
  began = time.process_time()
  out = jax.block_until_ready(function(*args))
  return (time.process_time() - began) * 1e3, out


def of_rows(rows: list[record.Row]) -> dict[str, dict[str, Any]]:
  """What the rows of a run say of the machine, by event."""
  return {
    row["event"]: {k: v for k, v in row.items() if k not in ("step", "kind")}
    for row in rows
    if row["condition"] == "machine"
  }


def lines(found: dict[str, dict[str, Any]]) -> list[str]:
  """The same, for a report."""
  return [f"- {k}: {v}" for x in found.values() for k, v in x.items()]


class Log:
  """Writes what was measured, row by row, to `metrics.jsonl`."""

  def __init__(self, workdir: pathlib.Path):
    self._writer = record.Writer(workdir / "metrics.jsonl")

  def __call__(
    self, step: int, condition: str, event: str, **values: Any
  ) -> None:
    where = {"step": step, "kind": "event", "condition": condition}
    self._writer.write([{**where, "event": event, **values}])

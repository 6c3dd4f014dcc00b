"""A workdir belongs to one config, and to one process at a time."""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator
from typing import Any

import geom
from geom import record


class WorkdirError(RuntimeError):
  """One line: why a run must not go into this workdir."""


@contextlib.contextmanager
def claimed(
  workdir: pathlib.Path, config: dict[str, Any], command: list[str]
) -> Iterator[None]:
  """Holds a workdir for a run of this config; writes `config.json` if new.

  A run that ended before it wrote anything, say for want of data, leaves its
  workdir to any other.

  Raises:
    WorkdirError: it cannot be made, holds a run of another config (the keys
      that differ are named), or another process is running in it.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    lock = (workdir / ".lock").open("w")
  except OSError as error:
    raise WorkdirError(f"--workdir={workdir}: {error.strerror}") from None
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise WorkdirError(
        f"--workdir={workdir}: another process is running in it"
      ) from None
    _settle(workdir / "config.json", record.plain(config), command)
    yield


def _settle(
  path: pathlib.Path, config: dict[str, Any], command: list[str]
) -> None:
  """Writes the config of a new workdir; refuses one that differs."""
  empty = {p.name for p in path.parent.iterdir()} <= {path.name, ".lock"}
  if not path.exists() or (empty and _differs(path, config)):
    record.write_json(
      path,
      {"config": config, "command": command, "geom": geom.__version__},
    )
    return
  changed = _differs(path, config)
  if changed:
    raise WorkdirError(
      f"{path.parent} holds a run of another config; it differs in "
      f"{', '.join(changed)}; choose another --workdir"
    )


def _differs(path: pathlib.Path, config: dict[str, Any]) -> list[str]:
  """Where a `config.json` says something else."""
  try:
    there = record.read_json(path)["config"]
  except (OSError, ValueError, KeyError, TypeError):
    raise WorkdirError(f"{path} is not a config.json of a run") from None
  return record.differing(there, config)

"""The files of a run: `metrics.jsonl`, `config.json`, `summary.json`.

`metrics.jsonl` holds one object a line:

    {"step": 100, "kind": "probe", "condition": "relu", "seed": 0,
     "weights/cos_input": [0.91, ...], "weights/cos_input_mean": 0.93}

| field       | meaning                                                        |
| ----------- | -------------------------------------------------------------- |
| `step`      | updates made when the numbers were taken                       |
| `kind`      | `train`: the batch of the step's update, before that update;   |
|             | `eval`, `probe`: the state after it; `event`: start, end, ...; |
|             | of weights that others trained: `matrix`, one kernel;          |
|             | `cosines`, all pairs of layers of a projection; `sharing`, a   |
|             | basis common to several; `loss`, of weights edited in a way    |
| `condition` | which of the compared settings                                 |
| `seed`      | of initialisation and data order (not in events of all seeds)  |
| the rest    | named numbers, or lists of them over layers or layer pairs;    |
|             | NaN and infinity are null                                      |
"""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Of weights that nobody here trained; their step is 0.
ANALYSED = ("matrix", "sharing", "cosines", "loss")
KINDS = ("train", "eval", "probe", "orbit", "event", *ANALYSED)
Row = dict[str, Any]


class RecordError(ValueError):
  """One line: what is wrong with a file of a run."""


def plain(value: Any) -> Any:
  """A value as JSON has it: numbers at full precision, non-finite as None."""
  if isinstance(value, dict):
    return {k: plain(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v) for v in value]
  if hasattr(value, "dtype"):
    array = np.asarray(value)
    if array.ndim:
      return [plain(v) for v in array]
    if np.issubdtype(array.dtype, np.floating):
      # The shortest decimal that gives this float32 back: 0.1 for 0.1.
      return plain(float(str(array)))
    return array.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def line(row: Row) -> str:
  """A row as one line of JSON.

  Raises:
    ValueError: `kind` is none of `KINDS`.
  """
  if row["kind"] not in KINDS:
    raise ValueError(f"kind {row['kind']!r} is none of {', '.join(KINDS)}")
  return json.dumps(plain(row), allow_nan=False) + "\n"


def read(path: pathlib.Path | str) -> list[Row]:
  """The rows of a `metrics.jsonl`; `[]` where there is none.

  A last line that a killed process left unfinished is passed over.

  Raises:
    RecordError: another line is not a JSON object.
  """
  path = pathlib.Path(path)
  if not path.exists():
    return []
  lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
  rows = []
  for i, text in enumerate(lines):
    try:
      row = json.loads(text or "{}")
    except json.JSONDecodeError:
      row = None
    if isinstance(row, dict):
      rows += [row] if row else []
    elif i < len(lines) - 1:
      raise RecordError(f"{path}:{i + 1} is not a row of numbers; mend it")
  return rows


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file whole or not at all."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file whole or not at all."""
  write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: pathlib.Path) -> Any:
  """The value of a JSON file."""
  return json.loads(path.read_text(encoding="utf-8"))


def differing(a: Any, b: Any, path: str = "config") -> list[str]:
  """The paths at which two nested dicts of plain values differ."""
  if isinstance(a, dict) and isinstance(b, dict):
    return [
      name
      for key in sorted({*a, *b})
      for name in (
        differing(a[key], b[key], f"{path}.{key}")
        if key in a and key in b
        else [f"{path}.{key}"]
      )
    ]
  return [] if a == b else [f"{path} ({a!r} there, {b!r} now)"]


class Writer:
  """Appends rows to `metrics.jsonl`."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    path.parent.mkdir(parents=True, exist_ok=True)

  def write(self, rows: Iterable[Row]) -> None:
    with self.path.open("a", encoding="utf-8") as file:
      file.writelines(line(row) for row in rows)

  def sync(self) -> None:
    """Returns when what was written would outlive a crash of the machine."""
    if self.path.exists():
      with self.path.open("a") as file:
        os.fsync(file.fileno())

  def rewind(
    self, condition: str, step: int, failed: Mapping[int, int]
  ) -> None:
    """Drops what was measured of a condition after a step.

    What a killed run measured after its last checkpoint is measured again.
    Kept are events of the whole condition, and what was measured of a seed
    that had failed by then, up to the step it failed at.
    """
    kept = []
    for row in read(self.path):
      seed = row.get("seed")
      last = max(step, failed.get(seed, step))
      other = row.get("condition") != condition or seed is None
      if other or row["step"] <= last:
        kept.append(row)
    if self.path.exists():
      write_text(self.path, "".join(line(row) for row in kept))

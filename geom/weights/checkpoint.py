"""Checkpoints of this project's runs: stacked kernels, a slice at a time."""

import ast
import json
import math
import pathlib
from typing import Any

import numpy as np
import tensorstore

from geom.weights.source import (
  Source,
  SourceError,
  Tensor,
  Unreadable,
  version_of,
)

_METADATA = "_METADATA"
# Modules of which a parameter has all layers, in our models.
STACKED = ("blocks", "hidden")


def is_checkpoint(path: pathlib.Path) -> bool:
  """Whether a folder is a checkpoint, or holds those of one condition."""
  return _state_of(path) is not None


def open_checkpoint(path: pathlib.Path, *, seed_index: int) -> Source:
  """The parameters of a checkpoint, those of stacks by layer.

  Args:
    path: `WORKDIR/checkpoints/CONDITION`, of which the newest step is taken,
      or a step in it.
    seed_index: which of the seeds that were trained side by side, from 0.

  Raises:
    SourceError: it cannot be read, or has fewer seeds.
  """
  state = _state_of(path)
  if state is None:
    raise SourceError(f"{path} is no checkpoint")
  try:
    tree = json.loads((state / _METADATA).read_text())["tree_metadata"]
    shapes = {
      ast.literal_eval(key): tuple(entry["value_metadata"]["write_shape"])
      for key, entry in tree.items()
      if entry["value_metadata"].get("write_shape") is not None
    }
  except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
    raise SourceError(f"{state} cannot be read: {error}") from None
  tensors: dict[str, Tensor] = {}
  for keys, shape in shapes.items():
    if keys[0] == "params":
      tensors |= _tensors(state, keys, shape, seed_index)
  if not tensors:
    raise SourceError(f"{state} has no parameters")
  return Source(state.parent, "checkpoint", tensors, {})


def _state_of(path: pathlib.Path) -> pathlib.Path | None:
  """The folder of the state; of several steps that of the newest."""
  for folder in (path, path / "state"):
    if (folder / _METADATA).is_file():
      return folder
  if not path.is_dir():
    return None
  steps = [p for p in path.iterdir() if p.name.isdigit()]
  whole = [p for p in steps if (p / "state" / _METADATA).is_file()]
  newest = max(whole, key=lambda p: int(p.name), default=None)
  return newest and newest / "state"


def _tensors(
  state: pathlib.Path,
  keys: tuple[str, ...],
  shape: tuple[int, ...],
  seed_index: int,
) -> dict[str, Tensor]:
  """A parameter `(seed, ...)`; of a stack `(seed, layer, ...)` every layer."""
  if seed_index >= shape[0]:
    raise SourceError(
      f"{state}: config.seed_index: {seed_index}, of {shape[0]} seeds"
    )
  name = "/".join(keys[1:])
  if keys[1] not in STACKED or len(shape) < 3:
    return {name: _tensor(state, keys, name, (seed_index,), shape[1:])}
  return {
    f"{name}/{layer}": _tensor(
      state, keys, f"{name}/{layer}", (seed_index, layer), shape[2:]
    )
    for layer in range(shape[1])
  }


def _tensor(
  state: pathlib.Path,
  keys: tuple[str, ...],
  name: str,
  index: tuple[int, ...],
  shape: tuple[int, ...],
) -> Tensor:
  def rows(start: int, stop: int) -> np.ndarray:
    try:
      array: Any = tensorstore.open(
        {
          "driver": "zarr",
          "kvstore": {
            "driver": "ocdbt",
            "base": f"file://{state.absolute()}/",
            "path": f"{'.'.join(keys)}/",
          },
        },
        open=True,
        read=True,
      ).result()
      found = array[(*index, slice(start, stop))].read().result()
    except Exception as error:  # Whatever a damaged file makes it say.
      reason = str(error).splitlines()[0][:200]
      raise Unreadable(f"{state}: {name}: {reason}") from None
    return np.asarray(found, np.float32)

  return Tensor(
    name, shape, "checkpoint", 4 * math.prod(shape), rows,
    version=version_of(state / _METADATA),
  )  # fmt: skip

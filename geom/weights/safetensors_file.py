"""Safetensors: one file, or a folder with an index of several.

The header is read here and not by the package `safetensors`: that one refuses
a truncated file as a whole, where most of its tensors may be there, and maps
files into memory, which counts as the process's own.
"""

import json
import math
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from geom.weights.source import (
  Source,
  SourceError,
  Tensor,
  Unreadable,
  broken,
  missing,
  version_of,
)

INDEX = "model.safetensors.index.json"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_MOST_FILES = 10_000
_LARGEST_HEADER = 100_000_000
# How a dtype is read: numpy's name for the bytes. bfloat16 is widened below.
_READ = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BITS = {
  "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32,
  "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
  "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6,
  "F4": 4,
}  # fmt: skip


class _Place(NamedTuple):
  path: pathlib.Path
  offset: int
  width: int  # Elements of a row.
  dtype: str


def open_file(path: pathlib.Path) -> Source:
  """One file of safetensors.

  Raises:
    SourceError: it is no such file, or its header is broken.
  """
  return Source(path, "safetensors", _tensors(path), _beside(path.parent))


def open_folder(folder: pathlib.Path) -> Source | None:
  """A folder as Hugging Face lays it out; None where it has no safetensors.

  A file that is missing or broken is a problem of its own tensors alone.

  Raises:
    SourceError: the index cannot be read, or no file can.
  """
  index = folder / INDEX
  if not index.is_file():
    found = sorted(folder.glob("*.index.json"))
    index = found[0] if len(found) == 1 else index
  if index.is_file():
    return _indexed(folder, index)
  files = sorted(folder.glob("*.safetensors"))
  if not files:
    return None
  return _joined(folder, dict.fromkeys(_whole([p.name for p in files])))


def _whole(names: list[str]) -> list[str]:
  """Files and those that should be beside them: a of b, by their names."""
  found = dict.fromkeys(names)
  for name in names:
    match = _PART.fullmatch(name)
    if match:
      stem, _, total = match.groups()
      for i in range(1, min(int(total), _MOST_FILES) + 1):
        found[f"{stem}-{i:05d}-of-{total}.safetensors"] = None
  return list(found)


def _indexed(folder: pathlib.Path, index: pathlib.Path) -> Source:
  try:
    named = json.loads(index.read_text())["weight_map"]
    files: dict[str, list[str] | None] = {}
    for tensor, name in named.items():
      if pathlib.PurePath(name).name != name:
        raise ValueError(f"{name!r} is not a file of this folder")
      files.setdefault(name, []).append(tensor)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise SourceError(f"{index} is not an index of tensors: {error}") from None
  return _joined(folder, files)


def _joined(folder: pathlib.Path, files: dict[str, list[str] | None]) -> Source:
  """Files together; of each the tensors that it should have, None: unknown."""
  tensors: dict[str, Tensor] = {}
  problems = []
  for name, wanted in sorted(files.items()):
    path = folder / name
    try:
      found = _tensors(path)
    except SourceError as error:
      problem = str(error)
      problems.append(
        f"{problem}; its {len(wanted)} tensors are left out"
        if wanted
        else problem
      )
      found = {}
    else:
      problem = f"{path} does not have it, though the index says so"
    tensors |= found
    for tensor in wanted or ():
      if tensor not in found:
        tensors[tensor] = missing(tensor, f"{tensor}: {problem}")
  if not any(t.problem is None for t in tensors.values()):
    raise SourceError(
      f"{folder}: no tensor can be read; {'; '.join(problems) or 'none named'}"
    )
  return Source(
    folder, "safetensors", tensors, _beside(folder), tuple(problems)
  )


def _beside(folder: pathlib.Path) -> dict[str, Any]:
  """The config.json of the folder, {} where there is none to be read."""
  try:
    found = json.loads((folder / "config.json").read_text())
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def _tensors(path: pathlib.Path) -> dict[str, Tensor]:
  try:
    size = path.stat().st_size
    with path.open("rb") as file:
      length = int.from_bytes(file.read(8), "little")
      if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
        raise SourceError(
          f"{path} is not safetensors, or cut off in its header"
        )
      header = json.loads(file.read(length))
    entries = {k: v for k, v in header.items() if k != "__metadata__"}
    return {
      name: _tensor(path, name, entry, 8 + length, size)
      for name, entry in entries.items()
    }
  except OSError as error:
    raise SourceError(f"{path}: {error.strerror}") from None
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise SourceError(
      f"{path}: its header is broken ({type(error).__name__}: {error})"
    ) from None


def _tensor(
  path: pathlib.Path, name: str, entry: dict[str, Any], base: int, size: int
) -> Tensor:
  dtype = str(entry["dtype"])
  shape = tuple(int(n) for n in entry["shape"])
  begin, end = (int(n) for n in entry["data_offsets"])
  if dtype not in _READ:
    return broken(
      name, shape, dtype,
      f"{name}: dtype {dtype} is not read; {', '.join(_READ)} are",
    )  # fmt: skip
  nbytes = math.prod(shape) * _BITS[dtype] // 8
  if min((0, begin, *shape)) < 0 or end - begin != nbytes:
    return broken(
      name, shape, dtype,
      f"{name}: {end - begin} bytes cannot hold {shape} of {dtype}",
    )  # fmt: skip
  if base + end > size:
    return broken(
      name, shape, dtype,
      f"{name}: {path} is truncated, {base + end - size} of the tensor's "
      f"{nbytes} bytes or more are missing" if base + begin < size else
      f"{name}: {path} is truncated before it",
    )  # fmt: skip
  width = math.prod(shape[1:])
  place = _Place(path, base + begin, width, dtype)

  def rows(start: int, stop: int) -> np.ndarray:
    return _rows(place, start, stop).reshape(stop - start, *shape[1:])

  return Tensor(name, shape, dtype, nbytes, rows, version=version_of(path))


def _rows(place: _Place, start: int, stop: int) -> np.ndarray:
  kind = np.dtype(_READ[place.dtype])
  with place.path.open("rb") as file:
    file.seek(place.offset + start * place.width * kind.itemsize)
    found = np.fromfile(file, kind, (stop - start) * place.width)
  if found.size != (stop - start) * place.width:
    raise Unreadable(f"{place.path} ends before the tensor does")
  if place.dtype == "BF16":
    wide = found.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
  with np.errstate(over="ignore"):  # An infinity is found and named later.
    return found.astype(np.float32, copy=False)

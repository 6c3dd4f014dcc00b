"""GGUF, one file or a split one, in any quantisation the package gguf knows."""

import math
import pathlib
import re
from typing import Any

import gguf
import numpy as np

from geom.weights.source import (
  Source,
  SourceError,
  Tensor,
  Unreadable,
  broken,
  version_of,
)

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_LONGEST_FIELD = 64


class _Reader(gguf.GGUFReader):
  """Knows where tensors are also where the file ends before they do."""

  def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
    self.places = []
    for field in fields:
      _, name, _, dims, kind, offset = field.parts
      shape = tuple(int(n) for n in reversed(dims.tolist()))
      start = int(start_offs + offset[0])
      self.places.append(
        (str(bytes(name), "utf-8"), shape, int(kind[0]), start)
      )


def open_file(path: pathlib.Path) -> Source:
  """A GGUF file; of a split one any part, whose others lie beside it.

  Raises:
    SourceError: it cannot be read, or no part of it.
  """
  match = _SPLIT.fullmatch(path.name)
  if not match:
    tensors, fields = _read(path)
    return Source(path, "gguf", tensors, fields)
  stem, _, total = match.groups()
  tensors, fields, problems = {}, {}, []
  for i in range(1, int(total) + 1):
    part = path.with_name(f"{stem}-{i:05d}-of-{total}.gguf")
    try:
      found, its_fields = _read(part)
    except SourceError as error:
      problems.append(f"{error}; its tensors are left out")
      continue
    tensors |= found
    fields = its_fields | fields
  if not tensors:
    raise SourceError("; ".join(problems))
  return Source(path, "gguf", tensors, fields, tuple(problems))


def fields_of(path: pathlib.Path, *names: str) -> dict[str, Any]:
  """Fields of the header by name, however long they are.

  Raises:
    SourceError: the file cannot be read, or a field is missing.
  """
  reader = _open(path)
  try:
    return {name: reader.fields[name].contents() for name in names}
  except KeyError as error:
    raise SourceError(f"{path} has no field {error}") from None


def _open(path: pathlib.Path) -> _Reader:
  try:
    return _Reader(path)
  except OSError as error:
    raise SourceError(f"{path}: {error.strerror or error}") from None
  except Exception as error:  # Whatever a damaged header makes the package say.
    raise SourceError(
      f"{path} is not GGUF, or cut off in its header "
      f"({type(error).__name__}: {error})"
    ) from None


def _read(path: pathlib.Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
  reader = _open(path)
  fields = {
    name: field.contents()
    for name, field in reader.fields.items()
    if len(field.data) <= _LONGEST_FIELD and not name.startswith("GGUF.")
  }
  size = path.stat().st_size
  tensors = {}
  for name, shape, kind, start in reader.places:
    tensors[name] = _tensor(path, name, shape, kind, start, size)
  return tensors, fields


def _tensor(
  path: pathlib.Path,
  name: str,
  shape: tuple[int, ...],
  kind: int,
  start: int,
  size: int,
) -> Tensor:
  try:
    quantisation = gguf.GGMLQuantizationType(kind)
  except ValueError:
    return broken(name, shape, str(kind), f"{name}: unknown GGUF type {kind}")
  dtype = quantisation.name
  if not shape:
    return broken(name, shape, dtype, f"{name}: a single number")
  if not _is_known(quantisation):
    return broken(
      name, shape, dtype, f"{name}: gguf does not dequantise {dtype}"
    )
  block, block_bytes = gguf.GGML_QUANT_SIZES[quantisation]
  width = math.prod(shape[1:])
  if len(shape) < 2:  # A vector is one row of the file.
    if shape[0] % block:
      return broken(name, shape, dtype, f"{name}: {shape} is not {dtype}")
    row_bytes = shape[0] // block * block_bytes
    n_rows = 1
  else:
    if shape[-1] % block:
      return broken(name, shape, dtype, f"{name}: {shape} is not {dtype}")
    row_bytes = width // block * block_bytes
    n_rows = shape[0]
  nbytes = n_rows * row_bytes
  if start + nbytes > size:
    return broken(
      name, shape, dtype,
      f"{name}: {path} is truncated, {start + nbytes - size} bytes or more "
      "are missing" if start < size else f"{name}: {path} is truncated before "
      "it",
    )  # fmt: skip

  def rows(first: int, stop: int) -> np.ndarray:
    lines = (0, 1) if len(shape) < 2 else (first, stop)
    with path.open("rb") as file:
      file.seek(start + lines[0] * row_bytes)
      raw = np.fromfile(file, np.uint8, (lines[1] - lines[0]) * row_bytes)
    if raw.size != (lines[1] - lines[0]) * row_bytes:
      raise Unreadable(f"{path} ends before {name} does")
    raw = raw.reshape(lines[1] - lines[0], row_bytes)
    # Not finite where a damaged scale is; found and named later.
    with np.errstate(all="ignore"):
      found = _dequantised(raw, quantisation)
    if len(shape) < 2:
      return found.reshape(shape)[first:stop]
    return found.reshape(stop - first, *shape[1:])

  return Tensor(name, shape, dtype, nbytes, rows, version=version_of(path))


def _is_known(quantisation: gguf.GGMLQuantizationType) -> bool:
  if quantisation == gguf.GGMLQuantizationType.F64:
    return True
  try:
    gguf.dequantize(np.zeros((0,), np.uint8), quantisation)
  except NotImplementedError:
    return False
  except Exception:  # An empty array may be refused for its shape.
    pass
  return True


def _dequantised(
  raw: np.ndarray, quantisation: gguf.GGMLQuantizationType
) -> np.ndarray:
  if quantisation == gguf.GGMLQuantizationType.F64:
    return raw.view(np.float64).astype(np.float32)
  return np.asarray(gguf.dequantize(raw, quantisation), np.float32)

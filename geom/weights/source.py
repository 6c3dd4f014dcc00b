"""Files of weights as named tensors, none of which is read before it is asked.

Safetensors, GGUF and checkpoints of this project look the same from here.
What is wrong with one tensor is that tensor's `problem`; the rest stays
readable.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from geom.data.fetch import DataError

CHUNK_BYTES = 1 << 26


class SourceError(DataError):
  """One line: why nothing of a source can be used."""


class Unreadable(RuntimeError):
  """One line: why one tensor cannot be used."""


class Tensor(NamedTuple):
  """A tensor of a source.

  Attributes:
    name: as the file has it.
    shape: row-major; of a linear layer as the file stores it.
    dtype: as the file names it.
    nbytes: in the file.
    rows: `rows(start, stop)` reads these of the first axis, as float32; it
      raises Unreadable or OSError.
    problem: why it cannot be read, or None.
    version: of its file; as long as it is the same, so is the tensor.
  """

  name: str
  shape: tuple[int, ...]
  dtype: str
  nbytes: int
  rows: Callable[[int, int], np.ndarray]
  problem: str | None = None
  version: str = ""


class Source(NamedTuple):
  """What a file, or a folder of files, holds.

  Attributes:
    path: where it is.
    format: `safetensors`, `gguf` or `checkpoint`.
    tensors: by name.
    metadata: what the files say about the model: config.json of Hugging Face,
      fields of GGUF, settings of a run of ours.
    problems: one line for every file that is missing or broken.
  """

  path: pathlib.Path
  format: str
  tensors: dict[str, Tensor]
  metadata: dict[str, Any]
  problems: tuple[str, ...] = ()


def version_of(path: pathlib.Path) -> str:
  """Size and time of the last change; "" where there is no such file."""
  try:
    found = path.stat()
  except OSError:
    return ""
  return f"{found.st_size} {found.st_mtime_ns}"


def missing(name: str, problem: str) -> Tensor:
  """A tensor of which nothing is known but that it should be there."""
  return broken(name, (), "?", problem)


def broken(
  name: str, shape: tuple[int, ...], dtype: str, problem: str
) -> Tensor:
  """A tensor that cannot be read."""

  def rows(start: int, stop: int) -> np.ndarray:
    del start, stop
    raise Unreadable(problem)

  return Tensor(name, shape, dtype, 0, rows, problem)


def chunks(tensor: Tensor) -> list[tuple[int, int]]:
  """Ranges of rows of about `CHUNK_BYTES` of float32 each."""
  wide = 4 * max(1, int(np.prod(tensor.shape[1:])))
  step = max(1, CHUNK_BYTES // wide)
  n = tensor.shape[0]
  return [(i, min(i + step, n)) for i in range(0, n, step)]


def read(tensor: Tensor) -> Float[np.ndarray, "..."]:
  """A whole tensor in float32.

  Raises:
    Unreadable: it has a problem, or holds NaN or infinity.
  """
  if tensor.problem:
    raise Unreadable(tensor.problem)
  out = np.empty(tensor.shape, np.float32)
  for start, stop in chunks(tensor) if tensor.shape else []:
    out[start:stop] = rows(tensor, start, stop)
  require_finite(out, tensor.name)
  return out


def rows(tensor: Tensor, start: int, stop: int) -> np.ndarray:
  """`tensor.rows`, with what the file system says as Unreadable."""
  try:
    return tensor.rows(start, stop)
  except (OSError, ValueError) as error:
    raise Unreadable(f"{tensor.name}: {error}") from error


def require_finite(values: np.ndarray, name: str) -> None:
  """Raises Unreadable where a number is not finite; copies a chunk at most."""
  flat = values.reshape(-1)
  bad = 0
  for i in range(0, flat.size, CHUNK_BYTES // 4):
    part = flat[i : i + CHUNK_BYTES // 4]
    bad += part.size - int(np.count_nonzero(np.isfinite(part)))
  if bad:
    raise Unreadable(f"{name}: {bad} of {flat.size} numbers are not finite")

"""One kernel of one layer, read as `(in, out)` whatever way it is stored."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from geom.weights import source as sources
from geom.weights.source import Tensor, Unreadable


class Piece(NamedTuple):
  """A part of a fused tensor.

  Attributes:
    span: its range along `out`; None: all of it.
    problem: why it cannot be told, or None.
  """

  span: tuple[int, int] | None
  problem: str | None = None


class Matrix(NamedTuple):
  """A kernel: where it lies, not yet read.

  Attributes:
    projection: its name.
    layer: from 0.
    tensor: that holds it.
    piece: which part of that.
    transposed: the tensor is `(out, in)`.
    fault: why it cannot be used, beside what the tensor says.
  """

  projection: str
  layer: int
  tensor: Tensor
  piece: Piece
  transposed: bool
  fault: str | None = None

  @property
  def problem(self) -> str | None:
    """Why it cannot be read, or None."""
    found = self.fault or self.tensor.problem or self.piece.problem
    if found is None and len(self.tensor.shape) != 2:
      found = f"{self.tensor.name}: {self.tensor.shape} is no matrix"
    if found is None and 0 in self.tensor.shape:
      found = f"{self.tensor.name}: {self.tensor.shape} is empty"
    return found

  @property
  def shape(self) -> tuple[int, int]:
    """`(in, out)`; (0, 0) where it cannot be read."""
    if self.problem is not None:
      return (0, 0)
    rows, columns = self.tensor.shape
    n_in, n_out = (columns, rows) if self.transposed else (rows, columns)
    if self.piece.span is not None:
      n_out = self.piece.span[1] - self.piece.span[0]
    return n_in, n_out

  @property
  def nbytes(self) -> int:
    """Bytes of the file that it takes up."""
    rows, columns = self.shape
    if not rows * columns:
      return 0
    whole = self.tensor.shape[0] * self.tensor.shape[1]
    return round(self.tensor.nbytes * rows * columns / whole)

  def with_problem(self, fault: str) -> "Matrix":
    return self._replace(fault=fault)


def read_kernel(matrix: Matrix) -> Float32[np.ndarray, "m n"]:
  """The kernel `(in, out)`; beside it a chunk of the file is in memory.

  Raises:
    Unreadable: it has a problem, or holds NaN or infinity.
  """
  if matrix.problem is not None:
    raise Unreadable(matrix.problem)
  tensor, span = matrix.tensor, matrix.piece.span
  n_in, n_out = matrix.shape
  first = span[0] if span else 0
  if matrix.transposed:
    out = np.empty((n_out, n_in), np.float32)
    at = tensor._replace(shape=(n_out, n_in))
    for start, stop in sources.chunks(at):
      out[start:stop] = sources.rows(tensor, first + start, first + stop)
    sources.require_finite(out, tensor.name)
    return out.T
  out = np.empty((n_in, n_out), np.float32)
  for start, stop in sources.chunks(tensor):
    rows = sources.rows(tensor, start, stop)
    out[start:stop] = rows[:, first : first + n_out]
  sources.require_finite(out, tensor.name)
  return out

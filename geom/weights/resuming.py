"""Which rows of an earlier start are of the weights as they lie there now."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from geom.weights import source
from geom.weights.families import Found
from geom.weights.kernels import Matrix, read_kernel
from geom.weights.source import Tensor, Unreadable

Row = dict[str, Any]


def checksum(kernel: np.ndarray) -> int:
  """CRC-32 of a kernel, by rows as they lie in memory."""
  lines = kernel.T if kernel.flags.f_contiguous else kernel
  found = 0
  step = max(1, source.CHUNK_BYTES // max(1, lines[:1].nbytes))
  for i in range(0, len(lines), step):
    found = zlib.crc32(np.ascontiguousarray(lines[i : i + step]), found)
  return found


def compare(
  found: Found, before: Sequence[Row], folded: bool
) -> tuple[set[tuple[str, int]], list[str]]:
  """Rows to keep, as projection and layer, and tensors that have changed.

  What could not be read before is tried again in a file that changed. A file
  of the same size and time as before is taken to be the same; another one is
  read, so that a copy is no other file.

  Args:
    found: the kernels.
    before: rows of earlier starts, of which the last one holds.
    folded: gains count.
  """
  rows = {
    (r["projection"], r["layer"]): r for r in before if r["kind"] == "matrix"
  }
  kept, changed = set(), []
  for (projection, layer), row in rows.items():
    stack = found.matrices.get(projection, [])
    if "problem" in row:
      if layer < len(stack) and _as_bad(row, stack[layer]):
        kept.add((projection, layer))
      continue
    if layer >= len(stack):
      changed.append(f"{projection} of layer {layer}")
      continue
    matrix = stack[layer]
    if not _same(row, matrix):
      changed.append(matrix.tensor.name)
    gain = found.gains.get((projection, layer)) if folded else None
    if "gain_crc" not in row and gain:
      if "gain_problem" in row and gain.version == row["gain_version"] != "":
        kept.add((projection, layer))
      continue
    if "gain_crc" in row and _gain(gain) != row["gain_crc"]:
      changed.append(gain.name if gain else f"the gain of {projection} {layer}")
    kept.add((projection, layer))
  return kept, list(dict.fromkeys(changed))


def _as_bad(row: Mapping[str, Any], matrix: Matrix) -> bool:
  if matrix.problem is not None:
    return matrix.problem == row["problem"]
  return matrix.tensor.version == row["version"] != ""


def _same(row: Mapping[str, Any], matrix: Matrix) -> bool:
  if list(matrix.shape) != row["shape"]:
    return False
  if matrix.tensor.version == row["version"]:
    return True
  try:
    return checksum(read_kernel(matrix)) == row["crc"]
  except Unreadable:
    return False


def _gain(tensor: Tensor | None) -> int | None:
  try:
    return None if tensor is None else zlib.crc32(source.read(tensor))
  except Unreadable:
    return None

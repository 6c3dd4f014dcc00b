"""One projection after another, one kernel at a time: the analysis itself.

What is done is kept: a row a kernel, its vectors in a file of their own, the
sum of Grams at every layer where no window is open; so that a run that was
broken off goes on there. Memory: a kernel, its Gram, a sum a window.
"""

import os
import pathlib
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from geom.data.fetch import replacing
from geom.weights import measure, sharing, source, trajectory
from geom.weights.families import Found
from geom.weights.kernels import Matrix, read_kernel
from geom.weights.measure import Measured
from geom.weights.resuming import checksum
from geom.weights.sharing import Sums
from geom.weights.source import Tensor, Unreadable

Row = dict[str, Any]
# Kernels up to this size are measured several at a time.
_SMALL_BYTES = 1 << 26


class Settings(NamedTuple):
  """How kernels are measured.

  Attributes:
    k: singular vectors kept on each side.
    ks: sizes of common bases, and of overlaps where below `k` or equal.
    windows: layers that share a basis, besides all.
    folded: measure diag(gain) K too.
    full_below: see `geom.weights.spectra.spectrum`.
    workers: small kernels at a time.
  """

  k: int
  ks: tuple[int, ...]
  windows: tuple[int, ...]
  folded: bool
  full_below: int
  workers: int


class Done(NamedTuple):
  """What one kernel gave: numbers or a problem, and its Gram."""

  matrix: Matrix
  measured: Measured | None
  gram: np.ndarray | None
  scale: float
  problem: str | None
  gain_problem: str | None = None  # Of the gain alone.
  crc: int = 0


def analyse(
  found: Found,
  projection: str,
  settings: Settings,
  *,
  vectors: pathlib.Path,
  before: Sequence[Row],
  current: Collection[tuple[str, int]],
  advance: Callable[[Matrix], None],
  stop: Callable[[], None],
) -> Iterator[Row]:
  """Rows of one projection, those of its kernels first.

  Args:
    found: the kernels.
    projection: of them.
    settings: how they are measured.
    vectors: a folder for this projection; made when missing.
    before: rows of an earlier start.
    current: projections and layers whose rows are right, see `kept`.
    advance: is told of every kernel that is done, or was done before.
    stop: is called where everything is kept; it may raise.

  Yields:
    Rows of kind `matrix`, `sharing`, and, in the end, `cosines`.
  """
  stack = found.matrices[projection]
  side = found.sides[projection]
  mine = [r for r in before if r.get("projection") == projection]
  gains = {m.layer: gain_of(found, m, settings) for m in stack}
  right = {m.layer for m in stack if (projection, m.layer) in current}
  if len(right) == len(stack) and any(r["kind"] == "cosines" for r in mine):
    for matrix in stack:
      advance(matrix)
    return
  vectors.mkdir(parents=True, exist_ok=True)
  kept = vectors / "sum.npz"
  sums, first = None, 0
  widths = [m.shape[side == "output"] for m in stack if m.problem is None]
  if widths:
    sums = Sums(widths[0], settings.windows, settings.ks, settings.full_below)
    first = sums.load(kept)
    if not right.issuperset(range(first)):
      sums = Sums(widths[0], settings.windows, settings.ks, settings.full_below)
      first = 0
  told = {
    (r["window"], r["start"])
    for r in mine
    if r["kind"] == "sharing"
    and r["window"] != sharing.ALL
    and r["start"] + r["window"] <= first
  }
  boundary = int(np.lcm.reduce(settings.windows)) if settings.windows else 1
  for matrix in stack[:first]:
    advance(matrix)
  for done in _measured(stack[first:], gains, side, settings, right):
    layer = done.matrix.layer
    if layer not in right:
      if done.measured is not None:
        _save(vectors / f"{layer:04d}.npz", done.measured)
      yield _row(done, gains[layer], settings)
    if sums is not None:
      if done.gram is not None:
        sums.add(done.gram)
      for share in sums.ended(layer, len(stack)):
        if (share.window, share.start) not in told:
          yield _share_row(projection, side, share)
      if (layer + 1) % boundary == 0 and layer + 1 < len(stack):
        sums.save(kept, layer)
    advance(done.matrix)
    del done
    stop()
  yield trajectory.of_projection(projection, stack, vectors, settings.ks)
  kept.unlink(missing_ok=True)


def _measured(
  stack: Sequence[Matrix],
  gains: Mapping[int, Tensor | None],
  side: str,
  settings: Settings,
  right: Collection[int],
) -> Iterator[Done]:
  """Kernels in their order; small ones several at a time."""

  def one(matrix: Matrix) -> Done:
    layer = matrix.layer
    return _one(matrix, gains[layer], side, settings, layer in right)

  small = all(4 * m.shape[0] * m.shape[1] <= _SMALL_BYTES for m in stack)
  if not small or settings.workers == 1:
    yield from map(one, stack)
    return
  # A thread a kernel, each with its share of the cores: threads of BLAS above
  # the cores wait for one another by spinning.
  threads = max(1, cores() // settings.workers)
  with (
    threadpoolctl.threadpool_limits(threads, user_api="blas"),
    ThreadPoolExecutor(settings.workers) as pool,
  ):
    waiting: deque[Future[Done]] = deque()
    try:
      for matrix in stack:
        waiting.append(pool.submit(one, matrix))
        if len(waiting) > settings.workers:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()


def gain_of(found: Found, matrix: Matrix, settings: Settings) -> Tensor | None:
  """The gain of the norm that a kernel reads, if that is wanted and there."""
  if not settings.folded:
    return None
  return found.gains.get((matrix.projection, matrix.layer))


def cores() -> int:
  """The cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):  # Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _one(
  matrix: Matrix,
  tensor: Tensor | None,
  side: str,
  settings: Settings,
  only_gram: bool,
) -> Done:
  try:
    kernel = read_kernel(matrix)
  except Unreadable as error:
    return Done(matrix, None, None, 1.0, str(error))
  gain, gain_problem = None, None
  if tensor is not None and not only_gram:
    try:
      gain = source.read(tensor)
      if gain.shape != kernel.shape[:1]:
        raise Unreadable(
          f"{tensor.name}: {gain.shape}, read by {matrix.tensor.name} of "
          f"{kernel.shape}"
        )
    except Unreadable as error:
      gain, gain_problem = None, str(error)
  crc = checksum(kernel)
  scale = measure.scale(kernel)
  gram = measure.gram(kernel, side)
  measured = None
  if not only_gram:
    measured = measure.measure(
      kernel,
      settings.k,
      full_below=settings.full_below,
      residual_gram=gram,
      side=side,
      gain=gain,
    )
  return Done(matrix, measured, gram, scale, None, gain_problem, crc)


def _row(done: Done, gain: Tensor | None, settings: Settings) -> Row:
  matrix, of = done.matrix, done.measured
  row: Row = {
    "step": 0,
    "kind": "matrix",
    "condition": "weights",
    "projection": matrix.projection,
    "layer": matrix.layer,
    "tensor": matrix.tensor.name,
    "dtype": matrix.tensor.dtype,
    "shape": list(matrix.shape),
    "version": matrix.tensor.version,
  }
  if of is None:
    return {**row, "problem": done.problem}
  row["crc"] = done.crc
  if done.gain_problem is not None:
    row["gain_problem"] = done.gain_problem
    row["gain_version"] = gain.version if gain else ""
  elif gain is not None:
    row["gain_crc"] = zlib.crc32(source.read(gain))
  second = float(of.s[1]) if len(of.s) > 1 else 0.0
  row |= {
    "s": [float(x) * done.scale for x in of.s],
    "norm": of.norm * done.scale,
    "gap": float(of.s[0]) / second if second else float("nan"),
    "defined": measure.defined(float(of.s[0]), second),
    "rank": of.rank,
    "rank_estimated": not of.full,
    "residual": of.residual,
    "own": {
      str(k): kept
      for k, kept in sharing.own(of.s, of.norm, settings.ks).items()
    },
  }
  if of.folded is not None:
    s = of.folded[2]
    row["folded_gap"] = float(s[0] / s[1]) if s[1] else float("nan")
    row["folded_defined"] = measure.defined(float(s[0]), float(s[1]))
  return row


def _share_row(projection: str, side: str, share: sharing.Share) -> Row:
  return {
    "step": 0,
    "kind": "sharing",
    "condition": "weights",
    "projection": projection,
    "side": side,
    "window": share.window,
    "start": share.start,
    "layers": share.layers,
    "kept": {str(k): kept for k, kept in share.kept.items()},
  }


def _save(path: pathlib.Path, of: Measured) -> None:
  folded = {}
  if of.folded is not None:
    v, u, s = of.folded
    folded = {"folded_input": v, "folded_output": u, "folded_s": s}
  with replacing(path) as temporary, temporary.open("wb") as file:
    np.savez(file, s=of.s, input=of.input, output=of.output, **folded)

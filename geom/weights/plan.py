"""How long an analysis will take on this machine, before it starts."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from geom.weights import source
from geom.weights.families import Found
from geom.weights.kernels import Matrix
from geom.weights.source import Unreadable
from geom.weights.streaming import Settings

# Products in a Krylov iteration of a large Gram, in passes over it, as seen;
# Lanczos' are few columns and bound by memory.
_KRYLOV_ROUNDS = 5
_LANCZOS_FLOPS = 4000
_BASE_MB = 450  # Python, jax and matplotlib, as seen.


class Rates(NamedTuple):
  """Of this machine, measured.

  Attributes:
    flops: of a product with half its entries computed, a second.
    eigh: n^3 a second of a full decomposition.
    read: bytes of the file a second, widened to float32.
  """

  flops: float
  eigh: float
  read: float


class Plan(NamedTuple):
  """What is to be done.

  Attributes:
    seconds: of every kernel, by projection and layer.
    gigabytes: to be read.
    memory_mb: the most that the process will hold, about.
  """

  seconds: dict[tuple[str, int], float]
  gigabytes: float
  memory_mb: float


def rates(found: Found) -> Rates:
  """Measures a product, a decomposition and a read; a second or so."""
  random = np.random.default_rng(0)
  wide = random.standard_normal((1024, 4096), np.float32)
  small = random.standard_normal((384, 512), np.float32)
  small = small @ small.T
  flops = 1024 * 1024 * 4096 / _seconds(lambda: wide @ wide.T)
  eigh = 384**3 / _seconds(lambda: np.linalg.eigh(small))
  return Rates(flops, eigh, _read_rate(found))


def plan(
  found: Found,
  settings: Settings,
  speed: Rates,
  done: Collection[tuple[str, int]] = (),
) -> Plan:
  """The time and memory that every kernel takes which is not done."""
  every = [
    m
    for of in found.matrices.values()
    for m in of
    if m.problem is None and (m.projection, m.layer) not in done
  ]
  seconds = {
    (m.projection, m.layer): cost(m, found.sides[m.projection], settings, speed)
    for m in every
  }
  largest = max((m.shape[0] * m.shape[1] for m in every), default=0)
  width = max(
    (m.shape[found.sides[m.projection] == "output"] for m in every), default=0
  )
  sums = (3 + len(settings.windows)) * width * width
  chunk = 3 * min(source.CHUNK_BYTES, 4 * largest)
  return Plan(
    seconds,
    sum(m.nbytes for m in every) / 1e9,
    _BASE_MB + (4 * (largest + sums) + chunk) / 1e6,
  )


def cost(matrix: Matrix, side: str, settings: Settings, speed: Rates) -> float:
  """Seconds that one kernel takes, about."""
  m, n = matrix.shape
  stream = m if side == "input" else n
  short = min(m, n)
  work = matrix.nbytes / speed.read + stream * m * n / speed.flops
  if short != stream:
    work += short * m * n / speed.flops
  work += _spectrum(short, settings.k + 1, settings, speed)
  work += 2 * settings.k * m * n / speed.flops
  windows = sum(1 / w for w in settings.windows)
  work += windows * _spectrum(stream, max(settings.ks), settings, speed)
  if settings.folded and side == "input":
    work += _KRYLOV_ROUNDS * 2 * 18 * short**2 / speed.flops
  return work


def _spectrum(n: int, k: int, settings: Settings, speed: Rates) -> float:
  if n <= settings.full_below:
    return n**3 / speed.eigh
  products = 2 * _KRYLOV_ROUNDS * (k + 16) + _LANCZOS_FLOPS
  return products * n**2 / speed.flops


def line(found: Found, of: Plan, speed: Rates) -> str:
  """The plan in a line."""
  return (
    f"{len(of.seconds)} kernels of {len(found.matrices)} projections in "
    f"{found.layers} layers ({found.family}), {of.gigabytes:.2f} GB to read; "
    f"about {span(sum(of.seconds.values()))} at {speed.flops / 1e9:.0f} "
    f"GFlop/s and {speed.read / 1e9:.2f} GB/s, memory about "
    f"{of.memory_mb / 1000:.1f} GB"
  )


def span(seconds: float) -> str:
  """Seconds as one says them."""
  if seconds < 90:
    return f"{seconds:.0f} s"
  if seconds < 5400:
    return f"{seconds / 60:.0f} min"
  return f"{seconds / 3600:.1f} h"


def _seconds(what: Callable[[], object], times: int = 3) -> float:
  """The median of several runs, after one that does not count."""
  what()
  taken = []
  for _ in range(times):
    start = time.perf_counter()
    what()
    taken.append(time.perf_counter() - start)
  return float(np.median(taken))


def _read_rate(found: Found) -> float:
  """Bytes of the file a second, of a chunk of the largest tensor."""
  tensors = sorted(
    (m.tensor for of in found.matrices.values() for m in of if not m.problem),
    key=lambda t: -t.nbytes,
  )
  for tensor in tensors[:3]:
    start, stop = source.chunks(tensor)[-1]
    began = time.perf_counter()
    try:
      source.rows(tensor, start, stop)
    except Unreadable:
      continue
    taken = time.perf_counter() - began
    return tensor.nbytes * (stop - start) / tensor.shape[0] / taken
  return 1e9

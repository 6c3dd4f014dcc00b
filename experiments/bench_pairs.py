"""Weights and gradients `(W, G)` of stated spectra, for the solvers."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
  """What a pair is made from.

  Attributes:
    shape: of W and G.
    manifold: `stiefel` or `dgram`; W is on it.
    spread: columns of a `dgram` W have lengths log-uniform in 1..spread; 1 on
      `stiefel`.
    spectrum: of G: `gaussian` entries; singular values of Haar-distributed
      vectors that are 1/i (`power`), exp(-12 i / n) (`exponential`), or the
      same `rank` times (`rank`).
    seed: of both.
  """

  shape: tuple[int, int]
  manifold: str
  spread: float
  spectrum: str
  seed: int

  @property
  def name(self) -> str:
    m, n = self.shape
    spread = f"-{self.spread:g}" if self.manifold == "dgram" else ""
    return f"{m}x{n}/{self.manifold}{spread}/{self.spectrum}/{self.seed}"


def all_pairs(config: dict[str, Any]) -> Iterator[Pair]:
  """Every pair that a config of the variant `solvers` asks for."""
  for shape, manifold, spectrum, seed in itertools.product(
    config["shapes"], config["manifolds"], config["spectra"], config["seeds"]
  ):
    spreads = config["spreads"] if manifold == "dgram" else (1.0,)
    for spread in spreads:
      yield Pair(tuple(shape), manifold, float(spread), spectrum, seed)


def make(pair: Pair, *, rank: int, norm: float) -> tuple[Any, Any]:
  """W and G in float32, G of Frobenius norm `norm`; tall ones, by turns."""
  digest = hashlib.sha256(pair.name.encode()).digest()
  rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
  m, n = max(pair.shape), min(pair.shape)
  w = _orthonormal(rng, m, n)
  if pair.manifold == "dgram":
    w = w * np.exp(rng.uniform(0, np.log(pair.spread), (1, n)))
  g = _gradient(rng, m, n, pair.spectrum, rank)
  g = g * norm / np.linalg.norm(g)
  if pair.shape[0] < pair.shape[1]:
    w, g = w.T, g.T
  return np.float32(w), np.float32(g)


def _gradient(
  rng: np.random.Generator, m: int, n: int, spectrum: str, rank: int
) -> np.ndarray:
  if spectrum == "gaussian":
    return rng.standard_normal((m, n))
  i = np.arange(n)
  values = {
    "power": 1 / (i + 1),
    "exponential": np.exp(-12 * i / n),
    "rank": np.where(i < rank, 1.0, 0.0),
  }[spectrum]
  left, right = _orthonormal(rng, m, n), _orthonormal(rng, n, n)
  return (left * values[None, :]) @ right.T


def _orthonormal(rng: np.random.Generator, m: int, n: int) -> np.ndarray:
  """Uniformly distributed."""
  q, r = np.linalg.qr(rng.standard_normal((m, n)))
  return q * np.sign(np.diagonal(r))[None, :]

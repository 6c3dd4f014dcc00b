"""Leading eigenpairs and effective rank of a Gram matrix, full or estimated.

A Gram matrix holds squares of singular values: in float32 they are good to
about 1e-7 of the largest, which is what leading vectors and energies need.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

# Krylov iterations; the residual is in what `leading` returns.
_MOST_ROUNDS = 12
_SPARE = 16
_TOLERANCE = 2e-6  # Of the first two pairs, which cosines are made of.
_LOOSE = 1e-4  # Of the others, of which energies are.
# Of stochastic Lanczos quadrature.
_PROBES = 8
_STEPS = 40


class Spectrum(NamedTuple):
  """Of a positive semidefinite matrix, largest first.

  Attributes:
    values: eigenvalues, `k` of them or all.
    vectors: of the first `k`, as columns.
    full: all eigenvalues are there.
    residual: the largest |G v - x v| of the first two, over the largest x.
  """

  values: Float[np.ndarray, " k"]
  vectors: Float[np.ndarray, "n k"]
  full: bool
  residual: float


def spectrum(
  gram: Float32[np.ndarray, "n n"], k: int, *, full_below: int
) -> Spectrum:
  """All eigenvalues up to a size, leading ones above; `k` vectors.

  Args:
    gram: symmetric, positive semidefinite.
    k: vectors wanted; fewer where `n` is less.
    full_below: the largest n that is decomposed as a whole.
  """
  n = len(gram)
  k = min(k, n)
  if n <= max(full_below, 4 * (k + _SPARE)):
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values[::-1], 0)
    return Spectrum(values, vectors[:, : -k - 1 : -1], True, 0.0)
  return leading(gram, k)


def leading(gram: Float32[np.ndarray, "n n"], k: int) -> Spectrum:
  """The leading `k` eigenpairs by block Krylov iteration (Musco, Musco 2015).

  Rounds are added until |G v - x v| is below 2e-6 of the largest value for the
  first two pairs, 1e-4 for the others. Where eigenvalues are close their
  vectors are any of their space, as they are for every method.
  """
  n = len(gram)
  block = k + _SPARE
  random = np.random.default_rng(0)
  basis = random.standard_normal((n, block), np.float32)
  basis, _ = np.linalg.qr(basis)
  span, image = basis, gram @ basis
  for _ in range(_MOST_ROUNDS):
    if span.shape[1] + block > min(n, 6 * block):
      # Start anew from the best of it.
      span, image = span @ all_turned, image @ all_turned
    new = _outside(image[:, :block], span, random)
    span = np.concatenate([new, span], axis=1)
    image = np.concatenate([gram @ new, image], axis=1)
    small = span.T @ image
    values, all_turned = np.linalg.eigh((small + small.T) / 2)
    values = np.maximum(values[: -k - 1 : -1], 0)
    turned = all_turned[:, : -k - 1 : -1]
    all_turned = all_turned[:, : -2 * block - 1 : -1]
    off = image @ turned - (span @ turned) * values
    residual = np.linalg.norm(off, axis=0) / max(values[0], 1e-38)
    if residual[:2].max() <= _TOLERANCE and residual.max() <= _LOOSE:
      break
  return Spectrum(values, span @ turned, False, float(residual[:2].max()))


def _outside(
  image: Float32[np.ndarray, "n b"],
  span: Float32[np.ndarray, "n s"],
  random: np.random.Generator,
) -> Float32[np.ndarray, "n b"]:
  """An orthonormal block off what is spanned already; twice is enough.

  Where the span is invariant nothing but rounding is left of the image; what
  is left then of random directions takes its place.
  """
  sizes = np.linalg.norm(image, axis=0)
  new = image - span @ (span.T @ image)
  spent = np.linalg.norm(new, axis=0) <= 1e-5 * np.maximum(sizes, 1e-38)
  new[:, spent] = random.standard_normal((len(new), spent.sum()), np.float32)
  for _ in range(3 if spent.any() else 2):
    new, _ = np.linalg.qr(new - span @ (span.T @ new))
  return new


def effective_rank(
  values: Float[np.ndarray, " n"], total: float | None = None
) -> float:
  """exp of the entropy of eigenvalues over their sum; NaN of a zero matrix."""
  values = np.asarray(values, np.float64)
  total = values.sum() if total is None else total
  if not total > 0:
    return float("nan")
  share = values[values > 0] / total
  return float(np.exp(-np.sum(share * np.log(share))))


def estimated_rank(gram: Float32[np.ndarray, "n n"], known: Spectrum) -> float:
  """The effective rank of a Gram matrix of which leading pairs are known.

  -tr(P log P), P = G / tr(G): the known part exactly, the rest, off the known
  vectors, by stochastic Lanczos quadrature (Ubaru, Chen, Saad 2017).
  """
  total = float(np.trace(gram, dtype=np.float64))
  if not total > 0:
    return float("nan")
  shares = np.asarray(known.values, np.float64) / total
  shares = shares[shares > 0]
  entropy = -np.sum(shares * np.log(shares))
  n = len(gram)
  rest = n - known.vectors.shape[1]
  random = np.random.default_rng(1)
  signs = random.choice(np.float32([-1, 1]), (n, _PROBES))
  nodes, weights = _lanczos(gram, known.vectors, signs, total)
  # The traces of P and 1 are known: what is linear in P at its mean is exact,
  # and only x - mean - x log(x / mean) is left to chance.
  left = max(1 - shares.sum(), 1e-12)
  mean = left / rest
  x = np.maximum(nodes, 1e-12 * mean)
  each = np.sum(weights * (x - mean - x * np.log(x / mean)), axis=1)
  entropy += -left * np.log(mean) + rest * each.mean()
  return float(np.exp(entropy))


def _lanczos(
  gram: Float32[np.ndarray, "n n"],
  off: Float[np.ndarray, "n k"],
  starts: Float32[np.ndarray, "n b"],
  total: float,
) -> tuple[Float[np.ndarray, "b s"], Float[np.ndarray, "b s"]]:
  """Quadrature nodes and weights of G / total, off some vectors, a start each.

  Every step is made orthogonal to all before it.
  """

  def outside(x: np.ndarray) -> np.ndarray:
    return x - off @ (off.T @ x)

  v = outside(starts)
  v /= np.linalg.norm(v, axis=0)
  steps = min(_STEPS, len(gram) - off.shape[1])
  history = [v]
  diagonal, beside = [], []
  for _ in range(steps):
    w = outside(gram @ history[-1]) / np.float32(total)
    diagonal.append(np.sum(w * history[-1], axis=0))
    for _ in range(2):
      for before in history:
        w = w - before * np.sum(before * w, axis=0)
    norms = np.linalg.norm(w, axis=0)
    beside.append(norms)
    w = np.divide(w, norms, out=np.zeros_like(w), where=norms > 1e-12)
    history.append(w)
  a = np.array(diagonal, np.float64).T
  b = np.array(beside[:-1], np.float64).T
  i = np.arange(steps)
  tridiagonal = np.zeros((len(a), steps, steps))
  tridiagonal[:, i, i] = a
  tridiagonal[:, i[1:], i[:-1]] = tridiagonal[:, i[:-1], i[1:]] = b
  nodes, vectors = np.linalg.eigh(tridiagonal)
  return nodes, vectors[:, 0, :] ** 2

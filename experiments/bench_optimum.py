"""The best that a direction can do, in float64 and with a certificate.

    f* = max <G, A> = min ||G + 2 W X||_*

over tangent A with `||A||_2 <= 1`, and over symmetric `X = P(X)`. Every X
gives an upper bound, every tangent A divided by `max(1, ||A||_2)` a lower one.
First iteratively reweighted least squares with conjugate directions, which is
good at upper bounds; then the alternating direction method of multipliers,
which is good at lower ones. Square Stiefel matrices have the closed form.
"""

import copy
from typing import NamedTuple

import numpy as np

# A round of reweighting halves the floor of the singular values, from START
# of the largest until it could cost a quarter of the tolerance.
START = 0.1
CG_ROUNDS, CG_TOLERANCE = 20, 0.05
EVERY = 10  # Rounds between two looks at the bounds.


class Optimum(NamedTuple):
  """f* is in `lower..upper`."""

  lower: float
  upper: float

  @property
  def uncertainty(self) -> float:
    """The certified gap, relative."""
    return (self.upper - self.lower) / self.upper


class Problem:
  """W and G, tall, in float64, on `stiefel` or `dgram`, at one scale.

  With `reduce` in a basis of the columns of both, if that has fewer rows.
  """

  def __init__(
    self, w: np.ndarray, g: np.ndarray, manifold: str, *, reduce: bool = True
  ):
    w, g = (np.float64(self.tall(x)) for x in (w, g))
    n = w.shape[1]
    if (
      reduce and w.shape[0] > 2 * n
    ):  # Both are in the span of their 2n columns.
      r = np.linalg.qr(np.concatenate([w, g], axis=1), mode="r")
      w, g = r[:, :n], r[:, n:]
    self.size = np.linalg.norm(g)
    self.w = w / np.sqrt(np.max(np.sum(w * w, axis=0)))
    self.g = g / self.size
    self.stiefel = manifold == "stiefel"
    self.d2 = np.sum(self.w * self.w, axis=0)[:, None]
    self.pairs = self.d2 + self.d2.T

  @staticmethod
  def tall(a: np.ndarray) -> np.ndarray:
    return a if a.shape[0] >= a.shape[1] else a.T

  def gram(self, s: np.ndarray) -> np.ndarray:
    """P."""
    return s if self.stiefel else s - np.diag(np.diagonal(s))

  def both_ways(self, a: np.ndarray) -> np.ndarray:
    """`P(W.T A + A.T W)`."""
    b = self.w.T @ a
    return self.gram(b + b.T)

  def tangent(self, a: np.ndarray) -> np.ndarray:
    return a - self.w @ (self.both_ways(a) / self.pairs)

  def near(self, m: np.ndarray) -> np.ndarray:
    """The nearest `G + 2 W X`."""
    off = m - self.g
    return self.g + off - self.tangent(off)

  def in_float32(self) -> "Problem":
    found = copy.copy(self)
    for name in ("w", "g", "d2", "pairs"):
      setattr(found, name, np.float32(getattr(self, name)))
    return found

  def lower(self, a: np.ndarray) -> float:
    """The bound from the tangent part of A."""
    a = self.tangent(a)
    return float(np.sum(self.g * a) / max(1.0, spectral_norm(a)))


def optimum(
  w: np.ndarray,
  g: np.ndarray,
  manifold: str,
  *,
  tolerance: float,
  irls_rounds: int,
  admm_rounds: int,
) -> Optimum:
  """f* of one pair, to a relative certified gap of `tolerance` or as far as
  the rounds go."""
  problem = Problem(w, g, manifold)
  if manifold == "stiefel" and w.shape[0] == w.shape[1]:
    best = float(np.sum(singular_values(problem.tangent(problem.g))))
    return Optimum(best * problem.size, best * problem.size)
  m, found = _irls(problem, tolerance, irls_rounds)
  if found.uncertainty > tolerance:
    found = _admm(problem, m, found, tolerance, admm_rounds)
  return Optimum(found.lower * problem.size, found.upper * problem.size)


def singular_values(a: np.ndarray) -> np.ndarray:
  """By the Gram matrix: to 1e-8 of the largest. In no order."""
  a = Problem.tall(a)
  return np.sqrt(np.maximum(np.linalg.eigvalsh(a.T @ a), 0))


def spectral_norm(a: np.ndarray) -> float:
  return float(np.max(singular_values(a)))


def _irls(
  p: Problem, tolerance: float, rounds: int
) -> tuple[np.ndarray, Optimum]:
  """`M = G + 2 W X` of the smallest nuclear norm seen, and the bounds."""
  m, floor, last = p.tangent(p.g), np.inf, None
  best, lower, upper = m, 0.0, np.inf
  for _ in range(rounds):
    s2, v = np.linalg.eigh(m.T @ m)
    s2 = np.maximum(s2, 0)
    nuclear = float(np.sum(np.sqrt(s2)))
    if nuclear < upper:
      best, upper = m, nuclear
    floor = min(floor / 2, START * np.sqrt(s2[-1]))
    floor = max(floor, tolerance * nuclear / 4 / len(s2))
    y = 1 / np.sqrt(s2 + floor**2)
    inverse = (v * y[None, :]) @ v.T
    z = m @ inverse
    lower = max(lower, p.lower(z))
    if upper - lower <= tolerance * upper:
      break
    h = p.both_ways(z)
    change = _reweighted(p, h, inverse, v, y)
    change, last = _conjugate(change, h, last)
    m = _moved(m, 2 * p.w @ change, np.sum(h * change), floor)
  return best, Optimum(lower, upper)


def _reweighted(
  p: Problem, h: np.ndarray, inverse: np.ndarray, v: np.ndarray, y: np.ndarray
) -> np.ndarray:
  """E of `P(K E Y + Y E K) = -H / 2`, K = W.T W being diagonal.

  To a few digits, so conjugate gradient steps are in float32.
  """
  if p.stiefel:  # The columns have one length: K is a multiple of I.
    turned = v.T @ h @ v / (y[:, None] + y[None, :])
    return -(v @ turned @ v.T) / (2 * p.d2[0, 0])

  h, inverse, d2 = (np.float32(x) for x in (h, inverse, p.d2))

  def operator(e: np.ndarray) -> np.ndarray:
    t = (d2 * e) @ inverse
    return p.gram(t + t.T)

  r = np.diagonal(inverse)[None, :]
  scale = d2 * r + r.T * d2.T
  e = -h / 2 / scale
  rest = -h / 2 - operator(e)
  enough = CG_TOLERANCE * np.linalg.norm(h / 2)
  z = rest / scale
  way, product = z, np.sum(rest * z)
  for _ in range(CG_ROUNDS):
    if np.linalg.norm(rest) <= enough:
      break
    image = operator(way)
    length = product / np.sum(way * image)
    e, rest = e + length * way, rest - length * image
    z = rest / scale
    before, product = product, np.sum(rest * z)
    way = z + product / before * way
  return e


def _conjugate(
  change: np.ndarray, h: np.ndarray, last: tuple | None
) -> tuple[np.ndarray, tuple]:
  """Polak and Ribiere's direction, if it is one of descent."""
  way = change
  if last is not None:
    h_before, change_before, way_before = last
    grown = np.sum(change * (h - h_before)) / np.sum(change_before * h_before)
    way = change + max(0.0, float(grown)) * way_before
    way = way if np.sum(way * h) < 0 else change
  return way, (h, change, way)


def _moved(
  m: np.ndarray, change: np.ndarray, slope: float, floor: float
) -> np.ndarray:
  """A step along `change` to about the least smoothed nuclear norm."""

  def value(t: float) -> float:
    s = singular_values(m + t * change)
    return float(np.sum(np.sqrt(s**2 + floor**2)))

  start, one = value(0.0), value(1.0)
  bend = one - start - slope
  t = float(np.clip(-slope / 2 / bend, 0.05, 4)) if bend > 0 else 1.0
  if abs(t - 1) < 0.15:
    t = 1.0
  elif value(t) > min(start, one):
    t = 1.0 if one < start else 0.1
  return m + t * change


def _admm(
  p: Problem, m: np.ndarray, found: Optimum, tolerance: float, rounds: int
) -> Optimum:
  """Splits M from the space it is in: A is the multiplier.

  Rounds are in float32, the bounds from what they find in float64.
  """
  lower, upper = found
  low = p.in_float32()
  m = np.float32(m)
  a, tau = np.zeros_like(m), np.float32(upper / m.shape[1])
  for k in range(1, rounds + 1):
    v = m + tau * a
    s2, q = np.linalg.eigh(v.T @ v)
    kept = 1 / np.maximum(tau, np.sqrt(np.maximum(s2, 0)))
    clipped = v @ ((q * kept[None, :]) @ q.T)
    shrunk = v - tau * clipped
    new = low.near(shrunk - tau * clipped)
    a, moved = clipped + (new - shrunk) / tau, np.linalg.norm(new - m)
    m = new
    if k % EVERY:
      continue
    lower = max(lower, p.lower(np.float64(clipped)))
    exact = singular_values(p.near(np.float64(m)))
    upper = min(upper, float(np.sum(exact)))
    if upper - lower <= tolerance * upper:
      break
    apart = np.linalg.norm(new - shrunk)
    if apart > 3 * moved:
      tau = tau / 2
    elif moved > 3 * apart:
      tau = tau * 2
  return Optimum(lower, upper)

"""Geometric continuity of a stack of kernels (arXiv 2605.04971).

Orientation. A Flax kernel K has shape (in, out) and acts as `y = x @ K`; the
papers write W = K.T. With `K = L diag(s) R.T`:

| paper                            | here                               |
| -------------------------------- | ---------------------------------- |
| v_i, right singular vector of W  | `input`: column i of L, length in  |
| u_i, left singular vector of W   | `output`: column i of R, length out |

Signs of singular vectors are arbitrary, so only absolute cosines are given.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geom.linalg import Triplets, matmul, unit_frobenius

# A singular vector counts as defined while an error of one float32 rounding
# in the Gram matrix turns it by less than this many radians.
TURN = 1e-3
EPS32 = 2.0**-23


def vectors(triplets: Triplets, side: str) -> Float[Array, "*s d k"]:
  """Singular vectors of one side, as columns.

  Raises:
    ValueError: `side` is neither `input` nor `output`.
  """
  if side not in ("input", "output"):
    raise ValueError(f"side {side!r} is neither input nor output")
  return triplets.left if side == "input" else triplets.right


class Adjacent(NamedTuple):
  """What the leading singular vectors of adjacent layers say.

  Attributes:
    cos_input: `|<v1(l), v1(l+1)>|`, NaN where either is not defined.
    cos_output: `|<u1(l), u1(l+1)>|`, likewise.
    gap: `s1 / s2` of every layer; of a matrix of rank one it is as large as
      rounding allows, or infinite, and NaN for zero.
  """

  cos_input: Float[Array, "*s pair"]
  cos_output: Float[Array, "*s pair"]
  gap: Float[Array, "*s layer"]


def chance_cosine(d: int) -> float:
  """Mean |cos| of two independent random directions in d dimensions.

  The limit `sqrt(2 / (pi d))` of large d: 0.0499 for d = 256 (the exact mean
  there is 0.0499 too).
  """
  return math.sqrt(2 / (math.pi * d))


def is_defined(
  s1: Float[Array, "*s"], s2: Float[Array, "*s"]
) -> Bool[Array, "*s"]:
  """Whether the leading singular vector is determined by the matrix at all.

  The rule is for float32: a matrix that was rounded to bfloat16 has singular
  values that are apart by its rounding, and is judged as it is.

  Equal singular values leave it free to turn: rounding turns it by about
  `eps s1^2 / (s1^2 - s2^2)`, which must stay below `TURN`. A zero or NaN
  matrix has none.
  """
  return TURN * (1 - (s2 / s1) ** 2) > EPS32


def adjacent_cosines(triplets: Triplets) -> Adjacent:
  """Continuity of the leading singular vectors of neighbouring layers.

  Args:
    triplets: at least two leading triplets of a stack of L kernels, layers
      on the last batch axis: `left` is `(*s, L, in, k)`.

  Returns:
    Pairs `(*s, L - 1)` and gaps `(*s, L)`. A degenerate or NaN layer gives
    NaN in its own pairs only.

  Raises:
    ValueError: fewer than two triplets or two layers.
  """
  s = triplets.values
  if s.shape[-1] < 2 or s.shape[-2] < 2:
    raise ValueError(
      f"needs two triplets of two layers at least, got values {s.shape}"
    )
  s1, s2 = s[..., 0], s[..., 1]
  defined = is_defined(s1, s2)
  pair = defined[..., :-1] & defined[..., 1:]

  def cosine(vectors: Float[Array, "*s layer d k"]) -> Float[Array, "*s pair"]:
    v = vectors[..., 0]
    cos = jnp.abs(jnp.sum(v[..., :-1, :] * v[..., 1:, :], axis=-1))
    return jnp.where(pair, jnp.minimum(cos, 1), jnp.nan)

  return Adjacent(cosine(triplets.left), cosine(triplets.right), s1 / s2)


def separated(triplets: Triplets) -> Bool[Array, "*s k"]:
  """Whether rounding leaves singular value i apart from the next one.

  The rule of `is_defined` between s_i and s_(i+1): the Gram matrix is rounded
  relative to s_1, so `eps s1^2 / (s_i^2 - s_(i+1)^2)` must be below `TURN`.
  The last of a partial decomposition has no known next one and counts as not
  separated; the last of a complete one has 0 for it.
  """
  s = triplets.values
  s1 = s[..., :1]
  relative = (s / s1) ** 2
  complete = s.shape[-1] == min(
    triplets.left.shape[-2], triplets.right.shape[-2]
  )
  last = jnp.zeros_like(s1) if complete else relative[..., -1:]
  following = jnp.concatenate([relative[..., 1:], last], axis=-1)
  return TURN * (relative - following) > EPS32


def overlap(triplets: Triplets, k: int, side: str) -> Float[Array, "*s pair"]:
  """`||V_k(l).T V_k(l+1)||_F^2 / k` of the leading k-dimensional subspaces.

  In [0, 1]; chance level `k / d`; for k = 1 the squared cosine.

  Args:
    triplets: of a stack `(*s, L, in, out)`, k + 1 of them or all.
    k: dimension of the subspaces.
    side: `input` or `output`.

  Returns:
    NaN where either subspace is not defined, because s_k and s_(k+1) are
    equal up to rounding.

  Raises:
    ValueError: fewer triplets than that, or another side.
  """
  v = vectors(triplets, side)
  if not 1 <= k <= v.shape[-1]:
    raise ValueError(f"k = {k} with {v.shape[-1]} triplets")
  v = v[..., :k]
  inner = matmul(jnp.swapaxes(v[..., :-1, :, :], -1, -2), v[..., 1:, :, :])
  value = jnp.minimum(jnp.sum(inner**2, axis=(-1, -2)) / k, 1)
  apart = separated(triplets)[..., k - 1]
  return jnp.where(apart[..., :-1] & apart[..., 1:], value, jnp.nan)


def chance_overlap(k: int, d: int) -> float:
  """Mean overlap of two independent random k-dimensional subspaces."""
  return min(k / d, 1.0)


def same_index_cosines(
  triplets: Triplets, side: str
) -> Float[Array, "*s pair k"]:
  """`|<v_i(l), v_i(l+1)>|` of every index i; chance `chance_cosine(d)`.

  NaN where v_i of either layer is not defined: s_i equals a neighbour up to
  rounding. The last of a partial decomposition is always NaN.

  Raises:
    ValueError: another side.
  """
  v = vectors(triplets, side)
  cos = jnp.abs(jnp.sum(v[..., :-1, :, :] * v[..., 1:, :, :], axis=-2))
  alone = index_defined(triplets)
  both = alone[..., :-1, :] & alone[..., 1:, :]
  return jnp.where(both, jnp.minimum(cos, 1), jnp.nan)


def index_defined(triplets: Triplets) -> Bool[Array, "*s k"]:
  """Whether singular vector i is determined: s_i is apart on both sides."""
  below = separated(triplets)
  above = jnp.concatenate(
    [jnp.ones_like(below[..., :1]), below[..., :-1]], axis=-1
  )
  return below & above


def _frobenius(stack: Float[Array, "*s m n"]) -> Float[Array, "*s"]:
  """The Frobenius norm, 0 for a zero matrix, NaN for one with a NaN."""
  zero = jnp.all(stack == 0, axis=(-1, -2))
  return jnp.where(zero, 0, unit_frobenius(stack)[1])


def flattened_cosine(
  stack: Float[Array, "*s layer m n"],
) -> Float[Array, "*s pair"]:
  """Cosine of neighbouring matrices as long vectors; chance level 0.

  Signed, and blind to which singular vector carries the likeness: beside a
  low v1 it tells a flat spectrum from lost alignment. NaN for a zero matrix.
  """
  unit, _ = unit_frobenius(stack)
  return jnp.sum(unit[..., :-1, :, :] * unit[..., 1:, :, :], axis=(-1, -2))


def spectral_dominance(
  update: Float[Array, "*s layer"], start: Float[Array, "*s layer"]
) -> Float[Array, "*s layer"]:
  """`s1(W - W(0)) / s1(W(0))`, from spectral norms; NaN where W(0) = 0."""
  positive = jnp.asarray(start) > 0
  return jnp.where(positive, update / jnp.where(positive, start, 1), jnp.nan)


def frobenius_dominance(
  update: Float[Array, "*s layer m n"], start: Float[Array, "*s layer m n"]
) -> Float[Array, "*s layer"]:
  """`||W - W(0)||_F / ||W(0)||_F` of every layer; NaN where W(0) = 0."""
  return _frobenius(update) / unit_frobenius(start)[1]

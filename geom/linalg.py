"""Linear algebra on stacks of matrices `(..., m, n)`.

On a CPU, batched LAPACK calls that may run at the same time inside one
compiled program can hang (jax 0.10; jax issues 36927 and 39292). Every function
here makes one, or, `refine_triplets`, a second that waits for the first; a
program should call at most one of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def matmul(
  a: Float[Array, "*s m k"], b: Float[Array, "*s k n"]
) -> Float[Array, "*s m n"]:
  """The product at full precision: GPUs and TPUs round float32 otherwise."""
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def unit_frobenius(
  matrices: Float[Array, "*s m n"],
) -> tuple[Float[Array, "*s m n"], Float[Array, "*s"]]:
  """Matrices of Frobenius norm 1, and the norms, at any scale; 0 gives NaN."""
  a = matrices.astype(jnp.promote_types(matrices.dtype, jnp.float32))
  size = jnp.max(jnp.abs(a), axis=(-1, -2), keepdims=True)
  norm = jnp.linalg.norm(a / size, axis=(-1, -2), keepdims=True)
  return a / size / norm, (size * norm)[..., 0, 0]


class Triplets(NamedTuple):
  """The k leading singular triplets of each matrix of a stack.

  For `K = L diag(s) R.T`, singular values descending. The sign of a column
  of L and of the same column of R is arbitrary, jointly.
  """

  left: Float[Array, "... m k"]
  values: Float[Array, "... k"]
  right: Float[Array, "... n k"]


def leading_triplets(matrices: Float[Array, "... m n"], k: int) -> Triplets:
  """The k leading singular triplets, by `eigh` of the smaller Gram matrix.

  Works in float32 (or wider) whatever the input, at any scale: each matrix
  is first divided by its largest entry. Vectors whose singular value is far
  from its neighbours are right to about 1e-6; singular values below about
  3e-4 of the largest are below the floor of a float32 Gram matrix, and the
  vectors that come with them are noise on the longer side (for square
  matrices: on the right).

  Degenerate matrices spoil only themselves: a matrix with a NaN or an
  infinity gives NaN throughout; singular values of zero come with NaN in the
  vectors of the longer side.

  Args:
    matrices: a stack of matrices, any floating dtype.
    k: how many triplets, 1 <= k <= min(m, n).

  Raises:
    ValueError: k is outside that range.
  """
  _require_k(matrices, k)
  m, n = matrices.shape[-2:]
  if m > n:
    return _flip(leading_triplets(jnp.swapaxes(matrices, -1, -2), k))
  a, size, spoil = _scaled(matrices)
  return _unscaled(_gram_triplets(a, k), size, spoil)


def exact_triplets(matrices: Float[Array, "... m n"], k: int) -> Triplets:
  """The k leading singular triplets by LAPACK's SVD: the reference.

  Like `leading_triplets` in everything but time and the floor, which is 1e-7
  of the largest singular value; the vectors of a zero singular value are an
  arbitrary orthonormal basis here.

  Raises:
    ValueError: k is not in 1..min(m, n).
  """
  _require_k(matrices, k)
  a, size, spoil = _scaled(matrices)
  left, values, right_t = jnp.linalg.svd(a, full_matrices=False)
  right = jnp.swapaxes(right_t, -1, -2)
  found = Triplets(left[..., :k], values[..., :k], right[..., :k])
  return _unscaled(found, size, spoil)


# Columns of a basis that are drawn anew at each refinement: they notice a
# direction that has grown outside the span of the others.
GUARDS = 4


class Refined(NamedTuple):
  """What a warm start made of a basis.

  Attributes:
    triplets: the k leading ones.
    basis: to start from next time, `(..., d, b)` with d = min(m, n).
    residual: the largest `||A v_i - s_i u_i|| / s_1` of the wanted ones,
      before any fallback.
    fell_back: whether the residual was too large somewhere in the stack and
      all of it was decomposed by `leading_triplets` instead.
  """

  triplets: Triplets
  basis: Float[Array, "... d b"]
  residual: Float[Array, "..."]
  fell_back: Bool[Array, ""]


def refine_triplets(
  matrices: Float[Array, "... m n"],
  basis: Float[Array, "... d b"],
  k: int,
  *,
  wanted: int | None = None,
  iterations: int = 2,
  tolerance: float = 1e-3,
) -> Refined:
  """The k leading triplets by block subspace iteration from a warm basis.

  For stacks that have changed little since the basis was made: matrix
  products and one small `eigh`, instead of a large one. Each iteration is
  `Q <- polar factor of A A.T Q`, then Rayleigh-Ritz. A single vector would
  stall at equal singular values and miss what grows beside it; the block has
  b of them, `GUARDS` drawn anew each time. Where the residual is above the
  tolerance the stack is decomposed exactly, inside the same program.

  Args:
    matrices: the stack.
    basis: of an earlier call, or `start_basis`; b >= k + GUARDS.
    k: how many triplets.
    wanted: how many of them must meet the tolerance; None for all. A value
      is right to about the square of its vector's error, so that s_2 may be
      good enough for a gap where v_2 is not.
    iterations: of the block, each two products with the stack.
    tolerance: on the residual, relative to the largest singular value; the
      error of a vector is about the residual over the relative gap.

  Raises:
    ValueError: k is out of range, or the basis is too small or of another
      stack.
  """
  _require_k(matrices, k)
  m, n = matrices.shape[-2:]
  if m > n:
    flipped = jnp.swapaxes(matrices, -1, -2)
    refined = refine_triplets(
      flipped,
      basis,
      k,
      wanted=wanted,
      iterations=iterations,
      tolerance=tolerance,
    )
    return refined._replace(triplets=_flip(refined.triplets))
  b = basis.shape[-1]
  if basis.shape[:-1] != (*matrices.shape[:-2], m) or b < min(k + GUARDS, m):
    raise ValueError(
      f"basis {basis.shape} does not serve {k} triplets of {matrices.shape}"
    )
  a, size, spoil = _scaled(matrices)
  a_t = jnp.swapaxes(a, -1, -2)
  q = jnp.concatenate([basis[..., : b - GUARDS], _guards(basis)], axis=-1)
  for _ in range(iterations):
    q = _orthonormal(matmul(a, matmul(a_t, q)))
  z = matmul(a_t, q)
  squares, w = jnp.linalg.eigh(matmul(jnp.swapaxes(z, -1, -2), z))
  w = w[..., ::-1]
  values = jnp.sqrt(jnp.maximum(squares[..., ::-1], 0))
  left = matmul(q, w)
  right = matmul(z, w)[..., :k] / values[..., None, :k]
  error = matmul(a, right) - left[..., :k] * values[..., None, :k]
  errors = jnp.linalg.norm(error, axis=-2)[..., :wanted]
  residual = jnp.max(errors, axis=-1) / values[..., 0]
  nonzero = size[..., 0, 0] > 0
  bad = jnp.any(nonzero & ~(residual <= tolerance))
  # Nothing can be learnt from a zero matrix: its basis stays.
  left = jnp.where(nonzero[..., None, None], left, basis)
  found, basis = jax.lax.cond(
    bad,
    lambda: _split(_gram_triplets(a, b), k),
    lambda: _split(Triplets(left, values, right), k),
  )
  return Refined(_unscaled(found, size, spoil), basis, residual, bad)


def start_basis(
  matrices: Float[Array, "... m n"], b: int
) -> Float[Array, "... d b"]:
  """A basis to begin with: the b leading vectors of the shorter side."""
  m, n = matrices.shape[-2:]
  triplets = leading_triplets(matrices, b)
  left = triplets.left if m <= n else triplets.right
  return jnp.nan_to_num(left)


def _require_k(matrices: Float[Array, "... m n"], k: int) -> None:
  m, n = matrices.shape[-2:]
  if not 1 <= k <= min(m, n):
    raise ValueError(f"k = {k} must be in 1..{min(m, n)} for ({m}, {n})")


def _flip(t: Triplets) -> Triplets:
  """The triplets of the transposed matrices."""
  return Triplets(t.right, t.values, t.left)


def _scaled(
  matrices: Float[Array, "... m n"],
) -> tuple[
  Float[Array, "... m n"], Float[Array, "... 1 1"], Float[Array, "... 1 1"]
]:
  """Matrices with largest entry 1, that entry, and NaN for the unusable.

  LAPACK must never see a NaN, nor a Gram matrix that over- or underflows: a
  matrix with a NaN or an infinity becomes 0, and NaN is added at the end.
  """
  a = matrices.astype(jnp.promote_types(matrices.dtype, jnp.float32))
  size = jnp.max(jnp.abs(a), axis=(-1, -2), keepdims=True)
  usable = jnp.isfinite(size)
  a = jnp.where(usable, a / jnp.where(size > 0, size, 1), 0)
  return a, size, jnp.where(usable, 0, jnp.nan)


def _unscaled(
  t: Triplets, size: Float[Array, "... 1 1"], spoil: Float[Array, "... 1 1"]
) -> Triplets:
  values = t.values * size[..., 0] + spoil[..., 0]
  return Triplets(t.left + spoil, values, t.right + spoil)


def _gram_triplets(a: Float[Array, "... m n"], k: int) -> Triplets:
  """Of scaled matrices with m <= n, by `eigh` of A A.T."""
  a_t = jnp.swapaxes(a, -1, -2)
  _, vectors = jnp.linalg.eigh(matmul(a, a_t), symmetrize_input=False)
  left = vectors[..., ::-1][..., :k]
  scaled = matmul(a_t, left)
  # The norm of a_t left is exact where the root of an eigenvalue is not.
  values = jnp.linalg.norm(scaled, axis=-2)
  return Triplets(left, values, scaled / values[..., None, :])


def _split(t: Triplets, k: int) -> tuple[Triplets, Float[Array, "... d b"]]:
  """The k leading triplets, and all left vectors."""
  top = Triplets(t.left[..., :k], t.values[..., :k], t.right[..., :k])
  return top, t.left


def _guards(basis: Float[Array, "... d b"]) -> Float[Array, "... d g"]:
  """Random directions, the same at every call."""
  shape = (*basis.shape[:-1], GUARDS)
  return jax.random.normal(jax.random.key(0), shape, basis.dtype)


def _orthonormal(y: Float[Array, "... d b"]) -> Float[Array, "... d b"]:
  """Columns of norm 1, then their polar factor by Newton-Schulz.

  Matrix products only. Columns that are nearly orthogonal, as those of a warm
  basis are, become so to rounding; where they are not, the residual tells.
  """
  norm = jnp.linalg.norm(y, axis=-2, keepdims=True)
  y = y / jnp.where(norm > 0, norm, 1)
  gram = matmul(jnp.swapaxes(y, -1, -2), y)
  bound = jnp.max(jnp.sum(jnp.abs(gram), axis=-1), axis=-1)
  y = y / jnp.sqrt(jnp.where(bound > 0, bound, 1))[..., None, None]
  eye = jnp.broadcast_to(jnp.eye(y.shape[-1], dtype=y.dtype), gram.shape)
  for _ in range(5):
    gram = matmul(jnp.swapaxes(y, -1, -2), y)
    y = matmul(y, 15 / 8 * eye - 5 / 4 * gram + 3 / 8 * matmul(gram, gram))
  return y

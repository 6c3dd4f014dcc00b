"""Linear algebra on stacks of matrices `(..., m, n)`.

On a CPU, several batched LAPACK calls inside one compiled program can hang
(jax 0.10; jax issues 36927 and 39292), so every function here makes at most
one, and a program should call at most one of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def matmul(
  a: Float[Array, "*s m k"], b: Float[Array, "*s k n"]
) -> Float[Array, "*s m n"]:
  """The product at full precision: GPUs and TPUs round float32 otherwise."""
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


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
  3e-4 of the largest are below the floor of a float32 Gram matrix.

  Degenerate matrices spoil only themselves: a matrix with a NaN or an
  infinity gives NaN throughout; singular values of zero come with NaN in the
  vectors of the longer side.

  Args:
    matrices: a stack of matrices, any floating dtype.
    k: how many triplets, 1 <= k <= min(m, n).

  Raises:
    ValueError: k is outside that range.
  """
  m, n = matrices.shape[-2:]
  if not 1 <= k <= min(m, n):
    raise ValueError(f"k = {k} must be in 1..{min(m, n)} for ({m}, {n})")
  if m > n:
    return _flip(leading_triplets(jnp.swapaxes(matrices, -1, -2), k))
  a = matrices.astype(jnp.promote_types(matrices.dtype, jnp.float32))
  size = jnp.max(jnp.abs(a), axis=(-1, -2), keepdims=True)
  usable = jnp.isfinite(size)
  # LAPACK must never see a NaN, nor a Gram matrix that over- or underflows.
  a = jnp.where(usable, a / jnp.where(size > 0, size, 1), 0)
  a_t = jnp.swapaxes(a, -1, -2)
  _, vectors = jnp.linalg.eigh(matmul(a, a_t), symmetrize_input=False)
  left = vectors[..., ::-1][..., :k]
  scaled = matmul(a_t, left)
  # The norm of a_t left is exact where the root of an eigenvalue is not.
  values = jnp.linalg.norm(scaled, axis=-2)
  right = scaled / values[..., None, :]
  spoil = jnp.where(usable, 0, jnp.nan)
  return Triplets(
    left + spoil,
    values * size[..., 0] + spoil[..., 0],
    right + spoil,
  )


def _flip(t: Triplets) -> Triplets:
  """The triplets of the transposed matrices."""
  return Triplets(t.right, t.values, t.left)

"""Linear algebra on stacks of matrices `(..., m, n)`.

On a CPU, batched LAPACK calls that may run at the same time inside one
compiled program can hang (jax 0.10; jax issues 36927 and 39292). Every function
here makes one at most, and a program should call at most one of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGE = 512  # Rows from which a matrix is worked on by itself, in pieces.


def matmul(
  a: Float[Array, "*s m k"], b: Float[Array, "*s k n"]
) -> Float[Array, "*s m n"]:
  """The product at full precision: GPUs and TPUs round float32 otherwise."""
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def after(x: Array, *before: Array) -> Array:
  """`x` unchanged, but not to be had before all of `before` are.

  So that LAPACK calls come one after the other. An optimization barrier does
  not hold XLA's CPU compiler; a dependence on data does, if it does not see
  through it.
  """
  first = [b[(0,) * b.ndim] for b in before if b.size]
  never = functools.reduce(jnp.logical_or, [b > jnp.inf for b in first], False)
  return jnp.where(never, jnp.zeros_like(x), x)


def identity_like(s: Float[Array, "*s n n"]) -> Float[Array, "*s n n"]:
  """A stack of identities."""
  return jnp.broadcast_to(jnp.eye(s.shape[-1], dtype=s.dtype), s.shape)


def unit_frobenius(
  matrices: Float[Array, "*s m n"],
) -> tuple[Float[Array, "*s m n"], Float[Array, "*s"]]:
  """Matrices of Frobenius norm 1, and the norms, at any scale; 0 gives NaN."""
  a = matrices.astype(jnp.promote_types(matrices.dtype, jnp.float32))
  size = jnp.max(jnp.abs(a), axis=(-1, -2), keepdims=True)
  norm = jnp.linalg.norm(a / size, axis=(-1, -2), keepdims=True)
  return a / size / norm, (size * norm)[..., 0, 0]


def unit_max(matrices: Float[Array, "*s m n"]) -> Float[Array, "*s m n"]:
  """Matrices of largest entry 1, in float32 or wider; zero stays zero.

  A matrix with a NaN or an infinity becomes NaN throughout.
  """
  a, _, spoil = scaled(matrices)
  return a + spoil


def one_by_one(
  f: Callable[[Array], Array], stack: Float[Array, "..."], *, rank: int = 2
) -> Any:
  """`f` of a stack of matrices; on a CPU of one large matrix after the other.

  So each stays in the CPU's cache, which the stack does not.

  Args:
    f: of arrays `(..., m, n)`, or with one axis more before m for each
      above 2 of `rank`.
    stack: what it is applied to.
    rank: axes of one member.
  """
  lead = stack.shape[: stack.ndim - rank]
  if not lead or min(stack.shape[-2:]) < LARGE:
    return f(stack)

  def mapped(stack: Float[Array, "..."]) -> Any:
    found = jax.lax.map(f, stack.reshape(-1, *stack.shape[len(lead) :]))
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), found)

  return jax.lax.platform_dependent(stack, cpu=mapped, default=f)


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
  require_k(matrices, k)
  m, n = matrices.shape[-2:]
  if m > n:
    return flip(leading_triplets(jnp.swapaxes(matrices, -1, -2), k))

  def all_at_once(matrices: Float[Array, "... m n"]) -> Triplets:
    a, size, spoil = scaled(matrices)
    return unscaled(gram_triplets(a, k), size, spoil)

  return one_by_one(all_at_once, matrices)


def exact_triplets(matrices: Float[Array, "... m n"], k: int) -> Triplets:
  """The k leading singular triplets by LAPACK's SVD: the reference.

  Like `leading_triplets` in everything but time and the floor, which is 1e-7
  of the largest singular value; the vectors of a zero singular value are an
  arbitrary orthonormal basis here.

  Raises:
    ValueError: k is not in 1..min(m, n).
  """
  require_k(matrices, k)
  a, size, spoil = scaled(matrices)
  left, values, right_t = jnp.linalg.svd(a, full_matrices=False)
  right = jnp.swapaxes(right_t, -1, -2)
  found = Triplets(left[..., :k], values[..., :k], right[..., :k])
  return unscaled(found, size, spoil)


def require_k(matrices: Float[Array, "... m n"], k: int) -> None:
  m, n = matrices.shape[-2:]
  if not 1 <= k <= min(m, n):
    raise ValueError(f"k = {k} must be in 1..{min(m, n)} for ({m}, {n})")


def flip(t: Triplets) -> Triplets:
  """The triplets of the transposed matrices."""
  return Triplets(t.right, t.values, t.left)


def scaled(
  matrices: Float[Array, "... m n"],
) -> tuple[
  Float[Array, "... m n"], Float[Array, "... 1 1"], Float[Array, "... 1 1"]
]:
  """Matrices with largest entry 1, that entry, and NaN for the unusable.

  LAPACK must never see a NaN, nor a Gram matrix that over- or underflows: a
  matrix with a NaN or an infinity becomes 0, and NaN is added at the end.
  """
  a = matrices.astype(jnp.promote_types(matrices.dtype, jnp.float32))
  # On a CPU a maximum may pass over a NaN, not over an infinity.
  entries = jnp.where(jnp.isfinite(a), jnp.abs(a), jnp.inf)
  size = jnp.max(entries, axis=(-1, -2), keepdims=True)
  usable = size < jnp.inf
  a = jnp.where(usable, a / jnp.where(size > 0, size, 1), 0)
  return a, size, jnp.where(usable, 0, jnp.nan)


def unscaled(
  t: Triplets, size: Float[Array, "... 1 1"], spoil: Float[Array, "... 1 1"]
) -> Triplets:
  values = t.values * size[..., 0] + spoil[..., 0]
  return Triplets(t.left + spoil, values, t.right + spoil)


def gram_triplets(a: Float[Array, "... m n"], k: int) -> Triplets:
  """Of scaled matrices with m <= n, by `eigh` of A A.T."""
  a_t = jnp.swapaxes(a, -1, -2)
  _, vectors = jnp.linalg.eigh(_gram(a), symmetrize_input=False)
  left = vectors[..., ::-1][..., :k]
  scaled = matmul(a_t, left)
  # The norm of a_t left is exact where the root of an eigenvalue is not.
  values = jnp.linalg.norm(scaled, axis=-2)
  return Triplets(left, values, scaled / values[..., None, :])


def _gram(a: Float[Array, "... m n"]) -> Float[Array, "... m m"]:
  """`A A.T`; of large matrices in quarters, one of which is a transpose."""
  m, n = a.shape[-2:]
  if m % 2 or m < LARGE:
    return matmul(a, jnp.swapaxes(a, -1, -2))
  halves = a.reshape(*a.shape[:-2], 2, m // 2, n)
  same = matmul(halves, jnp.swapaxes(halves, -1, -2))
  first, second = halves[..., 0, :, :], halves[..., 1, :, :]
  below = matmul(second, jnp.swapaxes(first, -1, -2))
  above = jnp.swapaxes(below, -1, -2)
  return jnp.concatenate(
    [
      jnp.concatenate([same[..., 0, :, :], above], axis=-1),
      jnp.concatenate([below, same[..., 1, :, :]], axis=-1),
    ],
    axis=-2,
  )

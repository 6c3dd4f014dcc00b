"""Leading singular triplets of stacks that change little between calls.

    warm = cold(kernels, 12)
    found = refine_triplets(kernels, warm, 2)
    ...
    found = refine_triplets(changed, found.warm, 2)

Block subspace iteration from the last basis, matrix products and one small
`eigh`; every matrix whose residual is too large is decomposed anew by
`geom.linalg.leading_triplets`, inside the same program.

What may be missed. A residual says that a triplet is one, not that it is the
leading one: a direction that was not in the basis and has become the leading
one shows only through the fresh random directions, reliably where it stands
out of the bulk, not where the bulk is close below it. So every matrix is
decomposed anew at one in `EXACT_EVERY` calls whatever its residual, and
nothing is missed for longer. Until then s_1, s_2 and their gap are those of
what the block holds: a second direction that has come up to the first is not
seen either, and v_1 is given where it is no longer defined.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from geom import linalg
from geom.linalg import Triplets, matmul

FRESH = 4  # Random directions beside the basis, others at every call.
EXACT_EVERY = 32  # Calls; matrices of a stack take turns.
ITERATIONS = 3
# The error of a vector in radians, 1e-5 in |cos|, at residual / gap. Gaps
# above 1 - 1 / 1.05^2 count as that: a direction outside of the block may be
# as close; those below GAPS[0] are not resolved.
TURN = 4e-3
GAPS = (1e-2, 0.093)
LOOSE = 5e-3  # Residual of the others.
BARRIER_FROM = 8  # Rows of the block, and of the matrices.


class Warm(NamedTuple):
  """What is kept between calls.

  Attributes:
    basis: leading singular vectors on the shorter side, d = min(m, n); zero
      where nothing is known.
    count: calls so far.
  """

  basis: Float[Array, "... d b"]
  count: Int[Array, ""]


class Refined(NamedTuple):
  """What `refine_triplets` found.

  Attributes:
    triplets: the k leading ones.
    warm: for the next call.
    residual: the largest `||A v_i - s_i u_i|| / s_1` of the wanted ones, NaN
      for a zero or unusable matrix; before any exact decomposition.
    fell_back: whether a residual was too large.
    exact: whether the matrix was decomposed anew: fell back, or its turn.
  """

  triplets: Triplets
  warm: Warm
  residual: Float[Array, "..."]
  fell_back: Bool[Array, "..."]
  exact: Bool[Array, "..."]


def cold(matrices: Float[Array, "... m n"], b: int) -> Warm:
  """Nothing known yet: the first call decomposes everything anew.

  Args:
    matrices: a stack of the shape to come.
    b: columns to keep, k <= b <= min(m, n); more converge faster.
  """
  *layers, m, n = matrices.shape
  basis = jnp.zeros((*layers, min(m, n), b), jnp.float32)
  return Warm(basis, jnp.zeros((), jnp.int32))


def refine_triplets(
  matrices: Float[Array, "... m n"],
  warm: Warm,
  k: int,
  *,
  wanted: int = 1,
  iterations: int = ITERATIONS,
  tolerance: float | None = None,
  exact_every: int = EXACT_EVERY,
) -> Refined:
  """The k leading triplets from those of the call before.

  By default a wanted vector is accepted where its residual over its relative
  gap is at most `TURN`: within 1e-5 of the true one in |cos|, if
  s_1 > 1.05 s_2. Residuals of the others are at most `LOOSE`, which leaves
  about 1e-4 in their values. Degenerate matrices spoil only themselves, as in
  `leading_triplets`; their basis stays what it was.

  Args:
    matrices: the stack, m and n in any order.
    warm: of the call before, or `cold`.
    k: how many triplets.
    wanted: of how many of them the vectors count.
    iterations: each two products of the block with the stack; two more
      products are made in the end.
    tolerance: a residual to accept the wanted at, whatever the gap.
    exact_every: each matrix is decomposed anew at one in so many calls.

  Raises:
    ValueError: k, wanted or the basis does not fit.
  """
  linalg.require_k(matrices, k)
  m, n = matrices.shape[-2:]
  if m > n:
    how = {"wanted": wanted, "iterations": iterations}
    refined = refine_triplets(
      jnp.swapaxes(matrices, -1, -2),
      warm,
      k,
      **how,
      tolerance=tolerance,
      exact_every=exact_every,
    )
    return refined._replace(triplets=linalg.flip(refined.triplets))
  b = warm.basis.shape[-1]
  alike = warm.basis.shape[:-1] == (*matrices.shape[:-2], m) and k <= b <= m
  if not alike or not 1 <= wanted <= k:
    raise ValueError(
      f"basis {warm.basis.shape} does not serve {k} triplets, {wanted} "
      f"wanted, of {matrices.shape}"
    )
  a, size, spoil = linalg.scaled(matrices)
  q = _iterated(a, warm, iterations)
  found, errors, left, spectrum = _ritz(a, q, b, k)
  residual = jnp.max(errors[..., :wanted], axis=-1)
  # Nothing can be learnt from a zero or unusable matrix.
  learns = (size > 0)[..., 0, 0] & jnp.isfinite(size[..., 0, 0])
  fits = jnp.all(errors <= _allowed(spectrum, k, wanted, tolerance), axis=-1)
  fell_back = learns & ~fits
  turns = jnp.arange(residual.size, dtype=jnp.int32).reshape(residual.shape)
  exact = learns & (fell_back | ((turns + warm.count) % exact_every == 0))
  found, left = _exact_where(exact, a, found, left)
  basis = jnp.where(learns[..., None, None], left, warm.basis)
  return Refined(
    linalg.unscaled(found, size, spoil),
    Warm(basis, warm.count + 1),
    jnp.where(learns, residual, jnp.nan),
    fell_back,
    exact,
  )


def _iterated(
  a: Float[Array, "... m n"], warm: Warm, iterations: int
) -> Float[Array, "... c m"]:
  """Orthonormal rows after `q <- q A A.T`, basis first, fresh after it."""
  *layers, m, b = warm.basis.shape
  key = jax.random.fold_in(jax.random.key(0), warm.count)
  fresh = jax.random.normal(key, (min(FRESH, m - b), m), a.dtype)
  fresh = jnp.broadcast_to(fresh, (*layers, *fresh.shape))
  kept = jnp.swapaxes(warm.basis, -1, -2).astype(a.dtype)
  q = jnp.concatenate([kept, fresh], axis=-2)
  for _ in range(iterations):
    q = _orthonormal(_products(q, a)[1])
  return q


def _products(
  q: Float[Array, "... c m"], a: Float[Array, "... m n"]
) -> tuple[Float[Array, "... c n"], Float[Array, "... c m"]]:
  """`q A` and `q A A.T`.

  Each in the order that is fastest on a CPU; without the barriers XLA
  transposes the stack instead of the rows, which takes half as long again.
  With them it (jax 0.10.2) cannot compile the smallest products.
  """
  if min(q.shape[-2], *a.shape[-2:]) < BARRIER_FROM:
    z = matmul(q, a)
    return z, matmul(z, jnp.swapaxes(a, -1, -2))
  barrier = jax.lax.optimization_barrier
  z = barrier(matmul(q, a))
  columns = barrier(matmul(a, jnp.swapaxes(z, -1, -2)))
  return z, jnp.swapaxes(columns, -1, -2)


def _ritz(
  a: Float[Array, "... m n"], q: Float[Array, "... c m"], b: int, k: int
) -> tuple[
  Triplets,
  Float[Array, "... k"],
  Float[Array, "... m b"],
  Float[Array, "... c"],
]:
  """The best k triplets of a subspace, b left vectors and all values.

  Beside the triplets their residuals, `||A v_i - s_i u_i|| / s_1`.
  """
  z, y = _products(q, a)
  gram = matmul(z, jnp.swapaxes(z, -1, -2))
  # Of a bad basis: LAPACK must see no NaN; what comes is not accepted.
  gram = jnp.where(jnp.isfinite(gram), gram, 0)
  _, w = jnp.linalg.eigh(gram, symmetrize_input=False)
  w_t = jnp.swapaxes(w[..., ::-1], -1, -2)
  left, z, y = matmul(w_t, q), matmul(w_t, z), matmul(w_t, y)
  # Norms are exact where roots of eigenvalues are not.
  values = jnp.linalg.norm(z, axis=-1)
  s = values[..., :k, None]
  error = y[..., :k, :] / jnp.where(s > 0, s, 1) - s * left[..., :k, :]
  residuals = jnp.linalg.norm(error, axis=-1) / values[..., :1]
  columns = partial(jnp.swapaxes, axis1=-1, axis2=-2)
  found = Triplets(
    columns(left[..., :k, :]), s[..., 0], columns(z[..., :k, :] / s)
  )
  return found, residuals, columns(left[..., :b, :]), values


def _allowed(
  values: Float[Array, "... c"], k: int, wanted: int, tolerance: float | None
) -> Float[Array, "... k"]:
  """Residuals at which the k leading are accepted."""
  energy = (values / values[..., :1]) ** 2
  # Beyond the block there is at most what is in it last, or nothing at all.
  steps = -jnp.diff(energy, axis=-1, append=jnp.zeros_like(energy[..., :1]))
  above = jnp.concatenate([jnp.ones_like(steps[..., :1]), steps], axis=-1)
  gap = jnp.minimum(above[..., :k], steps[..., :k])
  strict = TURN * jnp.clip(gap, *GAPS)
  if tolerance is not None:
    strict = jnp.full_like(gap, tolerance)
  return jnp.where(jnp.arange(k) < wanted, strict, jnp.maximum(strict, LOOSE))


def _exact_where(
  exact: Bool[Array, "..."],
  a: Float[Array, "... m n"],
  found: Triplets,
  left: Float[Array, "... m b"],
) -> tuple[Triplets, Float[Array, "... m b"]]:
  """What was found, or a new decomposition, of each matrix.

  One after the other: a batched `eigh` is a loop on a CPU anyway, and few of
  many matrices need it.
  """
  k, b = found.values.shape[-1], left.shape[-1]

  def anew(
    a: Float[Array, "m n"], *_: Array | Triplets
  ) -> tuple[Triplets, Float[Array, "m b"]]:
    t = linalg.gram_triplets(a, b)
    return Triplets(t.left[:, :k], t.values[:k], t.right[:, :k]), t.left

  def one(xs: tuple) -> tuple[Triplets, Float[Array, "m b"]]:
    return jax.lax.cond(xs[0], anew, lambda _, *old: old, *xs[1:])

  layers = exact.shape
  flat = jax.tree.map(
    lambda x: x.reshape(exact.size, *x.shape[len(layers) :]),
    (exact, a, found, left),
  )
  out = jax.lax.cond(
    jnp.any(exact),
    lambda xs: jax.lax.map(one, xs),
    lambda xs: (xs[2], xs[3]),
    flat,
  )
  return jax.tree.map(lambda x: x.reshape(*layers, *x.shape[1:]), out)


def _orthonormal(y: Float[Array, "... c m"]) -> Float[Array, "... c m"]:
  """Orthonormal rows by Gram-Schmidt, twice each; zero stays zero.

  In this order: the fresh rows have turned to what leads, as the basis has,
  and must be freed of it, not it of them.
  """

  def row(
    i: Int[Array, ""], q: Float[Array, "... c m"]
  ) -> Float[Array, "... c m"]:
    v = _unit(jax.lax.dynamic_slice_in_dim(y, i, 1, axis=-2))
    for _ in range(2):
      v = _unit(v - matmul(matmul(v, jnp.swapaxes(q, -1, -2)), q))
    return jax.lax.dynamic_update_slice_in_dim(q, v, i, axis=-2)

  return jax.lax.fori_loop(0, y.shape[-2], row, jnp.zeros_like(y))


def _unit(y: Float[Array, "... c m"]) -> Float[Array, "... c m"]:
  """Rows of norm 1; zero stays zero."""
  norm = jnp.linalg.norm(y, axis=-1, keepdims=True)
  return y / jnp.where(norm > 0, norm, 1)

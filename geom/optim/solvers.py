"""Steepest ascent under the spectral norm, along a manifold.

    maximise <G, A>  subject to  ||A||_2 <= 1,  P(W.T A + A.T W) = 0

With symmetric X = P(X) and `M = G + 2 W X`, the dual is to minimise the
nuclear norm `||M||_*`, and at its minimum `A = msign(M)` is tangent. (arXiv
2606.13276, equation 6; Bernstein, *Modular manifolds*, 2025.)

A `Solver` is a value; `solve(solver, manifold, w, g)` gives the direction A of
a stack of matrices. All but `dual_ascent` are free of scale: G may be as small
as clipping leaves it, and the columns of W as long as they grow.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.linalg import matmul, one_by_one, unit_max
from geom.manifolds import Manifold, tangent
from geom.polar import clip_singular_values, msign

Matrices = Float[Array, "*s m n"]


class Solver(NamedTuple):
  """A way to the direction of steepest ascent.

  Attributes:
    name: for tables and messages.
    solve: `solve(manifold, W, G) -> A` of tall matrices, in float32 or wider.
    scale_free: whether G is first divided by its largest entry.
    lapack: whether it calls LAPACK (see `geom.manifolds.Manifold`).
  """

  name: str
  solve: Callable[[Manifold, Matrices, Matrices], Matrices]
  scale_free: bool = True
  lapack: bool = False


class Quality(NamedTuple):
  """How good directions A are; free of scale and size.

  Attributes:
    tangency: `||A - A_T||_F / ||A||_F`, A_T the tangent projection: 0 is best.
    alignment: `<G, A_T> / (max(1, ||A_T||_2) ||P_T G||_*)`; the best that
      can be reached is below 1, so 1 - alignment bounds the gap from above.
    spectral_norm: of A.
  """

  tangency: Float[Array, "*s"]
  alignment: Float[Array, "*s"]
  spectral_norm: Float[Array, "*s"]


# Tangent parts of G below this share of it are rounding: no direction.
STATIONARY = 4e-6
# The solver `auto`: see there.
RELAX = (1.25, 1.35)
NORMAL = 1.3


def solve(
  solver: Solver, manifold: Manifold, w: Matrices, g: Matrices
) -> Matrices:
  """The direction A, `+msign(G + 2 W X)`, of every matrix of a stack.

  Args:
    solver: one of this module.
    manifold: one that W is on.
    w: weights, tall, square or wide.
    g: gradients of the same shape.

  Returns:
    The type of g. Zero where G is zero or, up to rounding, normal to the
    manifold; NaN throughout a matrix where either has a NaN or an infinity.
  """
  if w.shape != g.shape:
    raise ValueError(f"shapes differ: weights {w.shape}, gradients {g.shape}")
  if 0 in g.shape:
    return g
  wide = jnp.promote_types(jnp.promote_types(w.dtype, g.dtype), jnp.float32)
  both = jnp.stack([w, g], axis=-3).astype(wide)
  if g.shape[-2] < g.shape[-1]:
    both = jnp.swapaxes(both, -1, -2)

  def one(both: Float[Array, "*t 2 m n"]) -> Float[Array, "*t m n"]:
    w, g = both[..., 0, :, :], both[..., 1, :, :]
    w = w + 0 * jnp.sum(w, axis=(-1, -2), keepdims=True)
    return solver.solve(manifold, w, unit_max(g) if solver.scale_free else g)

  a = one_by_one(one, both, rank=3)
  if g.shape[-2] < g.shape[-1]:
    a = jnp.swapaxes(a, -1, -2)
  return a.astype(g.dtype)


def quality(
  manifold: Manifold,
  w: Matrices,
  g: Matrices,
  a: Matrices,
  *,
  exact: bool = True,
) -> Quality:
  """How good the directions A are.

  Args:
    manifold, w, g: as in `solve`.
    a: what it returned.
    exact: by LAPACK, on a CPU to be compiled by itself; else by matrix
      products, to about a percent, the norms by power iteration, which does
      not exceed them.
  """
  tangent_a = tangent(manifold, w, a)
  tangent_g = tangent(manifold, w, unit_max(g))
  size = jnp.linalg.norm(a, axis=(-1, -2))
  off = jnp.linalg.norm(a - tangent_a, axis=(-1, -2))
  if exact:
    values = jnp.linalg.svd(
      jnp.stack([a, tangent_a, tangent_g]), compute_uv=False
    )
    norm, tangent_norm = values[0, ..., 0], values[1, ..., 0]
    nuclear = jnp.sum(values[2], axis=-1)
  else:
    norm, tangent_norm = (
      spectral_norm(x, iterations=20) for x in (a, tangent_a)
    )
    nuclear = jnp.sum(msign(tangent_g) * tangent_g, axis=(-1, -2))
  inner = jnp.sum(unit_max(g) * tangent_a, axis=(-1, -2))
  return Quality(
    off / size, inner / (jnp.maximum(1, tangent_norm) * nuclear), norm
  )


def auto(
  *, rounds: int = 4, steps: int = 8, dtype: Any = jnp.float32
) -> Solver:
  """The closed form where there is one, else projections and clips.

  Where the polar factor of the tangent part of G is tangent (`euclidean`;
  square `stiefel`) that is it. Elsewhere, with G_T the tangent part and V =
  G_T / ||G_T||_2,

      A = msign(G_T) + V, then `rounds` times:
      A = clip(A + r (A_T - A)), with V added once more before the second,

  where clip sets the singular values above 1 to 1 and r = 1.25 goes a little
  beyond the tangent space, 1.35 after the second. Matrix products only.

  If the normal part of G is no larger than chance, `A = msign(G) + 3 V` is the
  start: G has a low rank where G_T need not, as the projection leaks into
  other directions, which msign makes as large as the rest. (Nearer to a
  stationary point the normal part grows, and says nothing about A.) Constants
  were chosen on random pairs of stated spectra at width 64 to 96.

  Args:
    rounds: of projection and clip; a solution is tangent to .02 after four,
      and should not be had with fewer than three.
    steps: of msign.
    dtype: of the factors in the products of msign.
  """

  def solve(manifold: Manifold, w: Matrices, g: Matrices) -> Matrices:
    g_t = _tangent_part(manifold, w, g)
    if manifold.closed_form(*g.shape[-2:]):
      # Projected once more: rounding in the null space of G_T grew.
      return manifold.tangent(w, msign(g_t, steps=steps, dtype=dtype))
    size = spectral_norm(g_t)[..., None, None]
    v = g_t / jnp.where(size == 0, 1, size)
    generic = _share(g - g_t, g) <= NORMAL * _normal_share(manifold, g.shape)
    a = msign(jnp.where(generic, g, g_t), steps=steps, dtype=dtype)
    a = a + jnp.where(generic, 3, 1) * v

    def closer(a: Matrices, relax: float, root_steps: int) -> Matrices:
      a = a + relax * (manifold.tangent(w, a) - a)
      return clip_singular_values(a, root_steps=root_steps)

    for k in range(min(rounds, 2)):  # These meet singular values of up to 6.
      a = closer(a + v if k else a, RELAX[0], 4 if k else 5)
    a = jax.lax.fori_loop(2, rounds, lambda _, a: closer(a, RELAX[1], 3), a)
    return jnp.where(size == 0, 0, a)

  return Solver("auto", solve)


def projected(*, steps: int = 8, dtype: Any = jnp.float32) -> Solver:
  """`msign` of the tangent part of G: no rounds, and not quite tangent."""

  def solve(manifold: Manifold, w: Matrices, g: Matrices) -> Matrices:
    return msign(_tangent_part(manifold, w, g), steps=steps, dtype=dtype)

  return Solver("projected", solve)


def dual_ascent(
  *,
  iterations: int = 20,
  alpha: float = 0.1,
  steps: int = 10,
  dtype: Any = jnp.bfloat16,
  tolerance: float = 1e-6,
) -> Solver:
  """The reference: gradient steps on the dual, for comparison with the paper.

  From `X = -P(W.T G + G.T W) / 4`, for k = 0, ..., K - 1: `A = msign(G + 2 W
  X)`, `H = P(W.T A + A.T W)`, and `X -= alpha (1 - k / K) H` unless the rms
  entry of H is below the tolerance. Defaults are those of arXiv 2606.13276;
  Bernstein has K = 100 and alpha = .01.

  Not free of scale: alpha is absolute, while the best X grows with G and
  falls with the lengths of W's columns.
  """

  def solve(manifold: Manifold, w: Matrices, g: Matrices) -> Matrices:
    def both_ways(a: Matrices) -> Array:
      wa = matmul(_t(w), a)
      return manifold.gram(wa + _t(wa))

    def body(k: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
      x, _ = carry
      a = msign(g + 2 * matmul(w, x), steps=steps, dtype=dtype)
      h = both_ways(a)
      rms = jnp.sqrt(jnp.mean(h * h, axis=(-1, -2), keepdims=True))
      step = alpha * (1 - k / iterations) * h
      return jnp.where(rms < tolerance, x, x - step), a

    x = -both_ways(g) / 4
    return jax.lax.fori_loop(0, iterations, body, (x, jnp.zeros_like(g)))[1]

  return Solver("dual_ascent", solve, scale_free=False)


def irls(*, rounds: int = 8, clips: int = 0, floor: float = 1e-2) -> Solver:
  """Iteratively reweighted least squares on the dual, by `eigh`.

  From X = 0, each round freezes `Y = (M.T M + e^2 I)^(-1/2)`, e being `floor`
  of the largest singular value of M, and solves `P(K E Y + Y E K) = -H / 2`,
  `K = W.T W`, for the change E of X, by a few conjugate gradient steps
  preconditioned with the diagonal. The direction is `M Y`: where the best M is
  rank-deficient, A is not a partial isometry, and `msign(M)` far from tangent.
  Near-square `dgram` is slow to converge: a tangency of .2 after 8 rounds.

  Args:
    rounds: of reweighting.
    clips: of {tangent projection; clip} after them.
    floor: singular values of M are resolved down to this share.
  """

  def solve(manifold: Manifold, w: Matrices, g: Matrices) -> Matrices:
    size = jnp.linalg.norm(w, axis=-2)
    w = w / jnp.max(size, axis=-1)[..., None, None]
    g_t = _tangent_part(manifold, w, g)
    m = g
    for _ in range(rounds):
      x = jnp.vectorize(
        lambda w, m: _reweighted(manifold, w, m, floor),
        signature="(m,n),(m,n)->(n,n)",
      )(w, m)
      m = m + 2 * matmul(w, x)
    a = matmul(m, _inverse_modulus(m, floor))
    for _ in range(clips):
      a = clip_singular_values(manifold.tangent(w, a))
    return jnp.where(jnp.all(g_t == 0, axis=(-1, -2), keepdims=True), 0, a)

  return Solver("irls_clip" if clips else "irls", solve, lapack=True)


def irls_clip(*, rounds: int = 2, clips: int = 3) -> Solver:
  """Two rounds of `irls`, then three of projection and clip."""
  return irls(rounds=rounds, clips=clips)


SOLVERS: dict[str, Callable[..., Solver]] = {
  "auto": auto,
  "irls": irls,
  "irls_clip": irls_clip,
  "dual_ascent": dual_ascent,
  "projected": projected,
}


def spectral_norm(a: Matrices, *, iterations: int = 6) -> Float[Array, "*s"]:
  """The largest singular value from below, by power iteration; 0 for 0.

  From the longest row: within a factor of 1.5 for Gaussian matrices, much
  nearer where the largest stands out.
  """
  longest = jnp.argmax(jnp.sum(a * a, axis=-1), axis=-1)
  v = jnp.take_along_axis(a, longest[..., None, None], axis=-2)
  v = jax.lax.fori_loop(
    0, iterations, lambda _, v: matmul(matmul(_unit(v), _t(a)), a), v
  )
  return jnp.linalg.norm(matmul(_unit(v), _t(a)), axis=(-1, -2))


def _tangent_part(manifold: Manifold, w: Matrices, g: Matrices) -> Matrices:
  """The tangent projection of G; exactly zero if there is only rounding."""
  g_t = manifold.tangent(w, g)
  sizes = [jnp.linalg.norm(x, axis=(-1, -2), keepdims=True) for x in (g_t, g)]
  return jnp.where(sizes[0] <= STATIONARY * sizes[1], 0, g_t)


def _share(part: Matrices, whole: Matrices) -> Float[Array, "*s 1 1"]:
  """Of the squared Frobenius norm."""
  a, b = (jnp.sum(x * x, axis=(-1, -2), keepdims=True) for x in (part, whole))
  return a / jnp.where(b == 0, 1, b)


def _normal_share(manifold: Manifold, shape: tuple[int, ...]) -> float:
  """The part of all directions that is normal: chance level of a share.

  Of P that keep some entries of a matrix and drop the others.
  """
  m, n = shape[-2:]
  with jax.ensure_compile_time_eval():
    kept = manifold.gram(jnp.ones((n, n)))
    return float(jnp.sum(kept) + jnp.trace(kept)) / (2 * m * n)


def _reweighted(
  manifold: Manifold, w: Matrices, m: Matrices, floor: float
) -> Array:
  """The change of the multiplier X that one round of IRLS makes."""
  y = _inverse_modulus(m, floor)
  k = matmul(_t(w), w)
  wz = matmul(_t(w), matmul(m, y))
  h = manifold.gram(wz + _t(wz))

  def operator(e: Array) -> Array:
    key = matmul(matmul(k, e), y)
    return manifold.gram(key + _t(key))

  d, r = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (k, y))
  scale = d[..., :, None] * r[..., None, :] + r[..., :, None] * d[..., None, :]
  scale = jnp.where(scale > 0, scale, 1)
  found, _ = jax.scipy.sparse.linalg.cg(
    operator, -h / 2, M=lambda x: x / scale, maxiter=8, tol=1e-3
  )
  return found


def _inverse_modulus(m: Matrices, floor: float) -> Array:
  """`(M.T M + e^2 I)^(-1/2)`, e = floor s1(M); 0 for M = 0."""
  size = jnp.linalg.norm(m, axis=(-1, -2), keepdims=True)
  m = m / jnp.where(size == 0, 1, size)
  spoil = jnp.sum(0 * m, axis=(-1, -2), keepdims=True)
  gram = matmul(_t(m), m)
  values, vectors = jnp.linalg.eigh(
    jnp.where(jnp.isfinite(gram), gram, 0), symmetrize_input=False
  )
  values = jnp.maximum(values, 0) + floor**2 * values[..., -1:]
  root = jnp.where(values > 0, 1 / jnp.sqrt(values), 0)[..., None, :]
  y = matmul(vectors * root, _t(vectors))
  return y / jnp.where(size == 0, 1, size) + spoil


def _unit(v: Array) -> Array:
  norm = jnp.linalg.norm(v, axis=(-1, -2), keepdims=True)
  return v / jnp.where(norm == 0, 1, norm)


def _t(a: Array) -> Array:
  return jnp.swapaxes(a, -1, -2)

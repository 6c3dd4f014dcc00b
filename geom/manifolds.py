"""Manifolds of matrices, as values of pure functions.

A manifold is given by a projection P on Gram space: matrices W with
`P(W.T W)` held fixed, and tangent directions A with `P(W.T A + A.T W) = 0`.

| name | set | P |
| --- | --- | --- |
| `euclidean` | all W | 0 |
| `stiefel` | `W.T W = I` | identity |
| `scaled_stiefel` | `W.T W = c^2 I` | identity |
| `dgram` | `W.T W` diagonal: `W = Q D`, orthonormal Q | off-diagonal part |
| `oblique` | columns of length 1 | diagonal part |

The functions of this module take stacks `(..., m, n)`, tall, square or wide; a
wide matrix is on a manifold if its transpose is. Those inside a `Manifold` see
only tall and square ones, in float32 or wider. Sources: arXiv 2606.13276,
section 3; Bernstein, *Modular manifolds* (2025); Keigwin et al., *Gram-space
Manifold Muon* (2025).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.linalg import identity_like, matmul, one_by_one
from geom.polar import msign, polar

Matrices = Float[Array, "*s m n"]
Square = Float[Array, "*s n n"]


class Manifold(NamedTuple):
  """A set of tall matrices, and how to move on it.

  Attributes:
    name: for tables and messages.
    gram: `gram(S) -> P(S)` of symmetric S (..., n, n).
    tangent: `tangent(W, A)`: the orthogonal projection of A onto the tangent
      space at W.
    retract: `retract(X)`: a point of the manifold near X, one step away from
      it. X itself if X is on it; equal to X up to the second order of a
      tangent step.
    project: `project(X)`: the point nearest to X in the Frobenius norm. Need
      not be fast: it is for initialisation and diagnostics.
    cone: whether t W is on the manifold with W, for t > 0. Weight decay keeps
      to a cone and leaves everything else.
    closed_form: `closed_form(m, n)`: whether for matrices of that shape the
      polar factor of the tangent part of G is tangent, hence the direction of
      steepest ascent.
    lapack: whether `retract` calls LAPACK: of such calls only one may be
      ready at a time in a compiled program on a CPU.
  """

  name: str
  gram: Callable[[Square], Square]
  tangent: Callable[[Matrices, Matrices], Matrices]
  retract: Callable[[Matrices], Matrices]
  project: Callable[[Matrices], Matrices]
  cone: bool
  closed_form: Callable[[int, int], bool]
  lapack: bool = False


def tangent(manifold: Manifold, w: Matrices, a: Matrices) -> Matrices:
  """The orthogonal projection of A onto the tangent space at W."""
  return _tall(manifold.tangent, w, a)


def retract(manifold: Manifold, x: Matrices) -> Matrices:
  """A point of the manifold near X: X plus a tangent step, up to O(step^2)."""
  return _tall(manifold.retract, x)


def project(manifold: Manifold, x: Matrices) -> Matrices:
  """The point of the manifold nearest to X in the Frobenius norm.

  By LAPACK where the manifold needs a polar factor, so on a CPU compile it by
  itself or not at all. A matrix with a NaN or an infinity gives NaN.
  """
  return _tall(manifold.project, x)


def distance(manifold: Manifold, x: Matrices) -> Float[Array, "*s"]:
  """`||X - nearest point||_F / ||X||_F`; for X = 0 either 0, on it, or 1."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return moved(wide, project(manifold, wide))


def moved(x: Matrices, to: Matrices) -> Float[Array, "*s"]:
  """`||X - to||_F / ||X||_F` at any scale; for X = 0 either 0 or 1."""
  x, to = (y.astype(jnp.promote_types(y.dtype, jnp.float32)) for y in (x, to))
  off = x - to
  zero = jnp.all(x == 0, axis=(-1, -2), keepdims=True)
  return _share(off, jnp.where(zero, off, x))


def violation(manifold: Manifold, w: Matrices) -> Float[Array, "*s"]:
  """How far P(W.T W) is from where it is held, by matrix products.

  `||P(W.T W) - P(R.T R)||_F / ||W.T W||_F`, R the retraction of W: about twice
  the `distance` of Stiefel matrices.
  """

  def gram(w: Matrices) -> Square:
    return matmul(_t(w), w)

  def share(w: Matrices) -> Float[Array, "*s 1 1"]:
    r = manifold.retract(w)
    size = jnp.maximum(_largest(w), _largest(r))
    full = gram(_ratio(w, size))
    off = manifold.gram(full - gram(_ratio(r, size)))
    return _share(off, full)[..., None, None]

  if 0 in w.shape:
    return jnp.zeros(w.shape[:-2], w.dtype)
  return _tall(share, w)[..., 0, 0]


def euclidean() -> Manifold:
  """All matrices: no constraint."""
  return Manifold(
    "euclidean",
    gram=jnp.zeros_like,
    tangent=lambda w, a: a,
    retract=lambda x: x,
    project=lambda x: x,
    cone=True,
    closed_form=lambda m, n: True,
  )


def stiefel() -> Manifold:
  """`W.T W = I`: every singular value is 1."""
  return scaled_stiefel(1.0)._replace(name="stiefel")


def scaled_stiefel(c: float) -> Manifold:
  """`W.T W = c^2 I`: every singular value is c.

  Raises:
    ValueError: c is not positive.
  """
  if not c > 0:
    raise ValueError(f"c = {c} must be positive")

  def tangent(w: Matrices, a: Matrices) -> Matrices:
    return a - matmul(w, sym(matmul(_t(w), a))) / c**2

  return Manifold(
    f"stiefel({c:g})",
    gram=lambda s: s,
    tangent=tangent,
    retract=lambda x: c * nearby_polar(x / c),
    project=lambda x: c * polar(x, complete=True),
    cone=False,
    closed_form=lambda m, n: m == n,
  )


def dgram(retraction: str = "column") -> Manifold:
  """`W.T W` diagonal: orthogonal columns of any length, `W = Q D`.

  Args:
    retraction: which point near X,
      `column`: `polar(X / norms) * norms`, norms those of X's columns;
      `procrustes`: the nearest, by turns of Q towards a symmetric `Q.T X D`,
      `D = diag(Q.T X)`;
      `sorted_svd`: `U V.T * s` of `X = U diag(s) V.T`, descending, as in the
      code of arXiv 2606.13276. Not a retraction: it moves points that are on
      the manifold, as it sorts the lengths. For comparison with the paper.

  Raises:
    ValueError: an unknown retraction.
  """
  retractions = {
    "column": _column,
    "procrustes": _procrustes(nearby_polar, rounds=20),
    "sorted_svd": _sorted_svd,
  }
  if retraction not in retractions:
    raise ValueError(
      f"retraction {retraction!r} is none of {', '.join(retractions)}"
    )
  return Manifold(
    "dgram",
    gram=off_diagonal,
    tangent=_dgram_tangent,
    retract=retractions[retraction],
    project=_procrustes(polar, rounds=100),
    cone=True,
    closed_form=lambda m, n: False,
    lapack=retraction == "sorted_svd",
  )


def oblique() -> Manifold:
  """Every column has length 1. A column of zeros stays one."""

  def tangent(w: Matrices, a: Matrices) -> Matrices:
    along = jnp.sum(w * a, axis=-2, keepdims=True)
    return a - w * _ratio(along, jnp.sum(w * w, axis=-2, keepdims=True))

  return Manifold(
    "oblique",
    gram=lambda s: s - off_diagonal(s),
    tangent=tangent,
    retract=lambda x: _unit_columns(x)[0],
    project=lambda x: _unit_columns(x)[0],
    cone=False,
    closed_form=lambda m, n: False,
  )


MANIFOLDS: dict[str, Callable[[], Manifold]] = {
  "euclidean": euclidean,
  "stiefel": stiefel,
  "dgram": dgram,
  "oblique": oblique,
}


def sym(s: Square) -> Square:
  """The symmetric part."""
  return (s + _t(s)) / 2


def off_diagonal(s: Square) -> Square:
  """The off-diagonal part: Off in the papers."""
  return jnp.where(identity_like(s) == 1, 0, s)


# How far a Gram matrix may be from I for a series in their difference: with
# five terms it leaves .25 NEAR^5 = 2e-7.
NEAR = 0.06
# How far, in radians, the nearest Q may still turn.
SYMMETRIC = 3e-6


def nearby_polar(x: Matrices) -> Matrices:
  """The polar factor of tall matrices: cheap if they are nearly orthonormal.

  With `E = X.T X - I` spectrally below .06 it is `X (I + E)^(-1/2)` by the
  binomial series, four matrix products; else `msign` with 10 steps. Columns of
  zeros stay zero.
  """
  return one_by_one(_nearby_polar, x)


def _nearby_polar(x: Matrices) -> Matrices:
  gram = matmul(_t(x), x)
  empty = jnp.diagonal(gram, axis1=-2, axis2=-1)[..., None] == 0
  e = gram - jnp.where(empty, 0, identity_like(gram))
  # The largest sum of a row bounds the spectral norm, as the Frobenius norm.
  rows = jnp.max(jnp.sum(jnp.abs(e), axis=-1), axis=-1)
  bound = jnp.minimum(rows, jnp.linalg.norm(e, axis=(-1, -2)))

  def series(x: Matrices) -> Matrices:
    e2 = matmul(e, e)
    tail = matmul(e2, 35 / 128 * e2 - 5 / 16 * e)
    return x + matmul(x, 3 / 8 * e2 - e / 2 + tail)

  return jax.lax.cond(jnp.all(bound < NEAR), series, msign_exact, x)


def msign_exact(x: Matrices) -> Matrices:
  """`msign` to float32 rounding."""
  return msign(x, steps=10)


def _dgram_tangent(w: Matrices, a: Matrices) -> Matrices:
  """`A + 2 W X`, `X_ij = -Off(W.T A + A.T W)_ij / (2 (d_i^2 + d_j^2))`.

  Written with `W = Q D` and b = `Q.T A`, so that it is free of W's scale:
  `A - Q c`, `c_ij = d_i (d_i b_ij + d_j b_ji) / (d_i^2 + d_j^2)`.
  """
  q, d = _unit_columns(w)
  largest = jnp.max(d, axis=-1, keepdims=True)
  d = _ratio(d, largest)
  b = matmul(_t(q), a)
  rows, columns = jnp.swapaxes(d, -1, -2), d
  c = rows * _ratio(rows * b + columns * _t(b), rows**2 + columns**2)
  return a - matmul(q, off_diagonal(c))


def _column(x: Matrices) -> Matrices:
  q, norms = _unit_columns(x)
  return nearby_polar(q) * norms


def _procrustes(
  polar_factor: Callable[[Matrices], Matrices], rounds: int
) -> Callable[[Matrices], Matrices]:
  """Minimises `||X - Q D||_F`, D = diag(Q.T X), from the Q of `column`.

  At the minimum `Q.T X D` is symmetric. A turn is `Q = polar(Q + Q E)`, with
  the skew E that makes it so to first order if `Q.T X` is nearly diagonal: a
  Newton step there, and an ascent of `||D||^2 = ||X||^2 - ||X - Q D||^2`
  everywhere, halved where it went too far. Short columns count as much as long
  ones, as E has no scale; `polar(X D)` loses them.
  """

  def nearest(x: Matrices) -> Matrices:
    unit, norms = _unit_columns(x)
    size = jnp.max(norms, axis=-1, keepdims=True)
    norms = _ratio(norms, size)
    eps = jnp.finfo(x.dtype).eps

    def inner(q: Matrices) -> tuple[Array, Array, Array]:
      """Q.T times the unit columns, the lengths D, and ||D||^2."""
      c = matmul(_t(q), unit)
      d = jnp.diagonal(c, axis1=-2, axis2=-1)[..., None, :] * norms
      return c, d, jnp.sum(d**2, axis=(-1, -2), keepdims=True)

    def skew(q: Matrices) -> Array:
      c, d, _ = inner(q)
      pull = c * (norms * d)
      return _ratio(pull - _t(pull), d**2 + _t(d) ** 2)

    def turn(carry: tuple) -> tuple:
      i, q, e, share, _ = carry
      new = nearby_polar(q + share * matmul(q, e))
      gain = inner(new)[2] / inner(q)[2] - 1
      good = gain >= -8 * eps
      q = jnp.where(good, new, q)
      e = skew(q)
      share = jnp.where(good, jnp.minimum(2 * share, 1), share / 2)
      # What a small turn does not better, after some, is rounding.
      idle = (i > 8) & good & (gain < 2 * eps) & (_largest(e) < 0.01)
      return i + 1, q, e, share, moving(e) & (share > 0.01) & ~idle

    def moving(e: Array) -> Array:
      return _largest(e) > SYMMETRIC

    def frozen(carry: tuple) -> tuple:
      *_, going = carry
      i, *rest = turn(carry)
      kept = (jnp.where(going, *x) for x in zip(rest, carry[1:], strict=True))
      return (i, *kept)

    def unfinished(carry: tuple) -> Array:
      return (carry[0] < rounds) & jnp.any(carry[-1])

    q = polar_factor(unit)
    e, share = skew(q), jnp.ones_like(size)
    start = (0, q, e, share, moving(e))
    q = jax.lax.while_loop(unfinished, frozen, start)[1]
    return q * (size * inner(q)[1])

  return nearest


def _sorted_svd(x: Matrices) -> Matrices:
  spoil = jnp.sum(0 * x, axis=(-1, -2), keepdims=True)
  finite = jnp.where(jnp.isfinite(x), x, 0)
  u, s, v_t = jnp.linalg.svd(finite, full_matrices=False)
  return matmul(u, v_t) * s[..., None, :] + spoil


def _unit_columns(
  x: Matrices,
) -> tuple[Matrices, Float[Array, "*s 1 n"]]:
  """Columns of length 1, or 0, and their lengths, at any scale."""
  size = jnp.max(jnp.abs(x), axis=-2, keepdims=True)
  scaled = _ratio(x, size)
  length = jnp.linalg.norm(scaled, axis=-2, keepdims=True)
  return _ratio(scaled, length), size * length


def _share(a: Matrices, b: Matrices) -> Float[Array, "*s"]:
  """`||a||_F / ||b||_F` at any scale; 0 for a = 0, NaN if b has a NaN."""
  sizes = _largest(a), _largest(b)
  norms = (
    jnp.linalg.norm(_ratio(x, size), axis=(-1, -2), keepdims=True)
    for x, size in zip((a, b), sizes, strict=True)
  )
  norm_a, norm_b = norms
  share = sizes[0] / sizes[1] * (norm_a / norm_b)
  return jnp.where(norm_a == 0, 0 * norm_b, share)[..., 0, 0]


def _largest(x: Matrices) -> Float[Array, "*s 1 1"]:
  return jnp.max(jnp.abs(x), axis=(-1, -2), keepdims=True)


def _ratio(a: Array, b: Array) -> Array:
  """`a / b`, 0 where b is 0."""
  return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def _t(a: Array) -> Array:
  return jnp.swapaxes(a, -1, -2)


def _tall(f: Callable[..., Array], *matrices: Matrices) -> Array:
  """`f` of tall matrices, in float32 or wider; of empty ones the first."""
  first = matrices[0]
  if 0 in first.shape:
    return first
  wide = first.shape[-2] < first.shape[-1]
  as_wide = jnp.promote_types(first.dtype, jnp.float32)
  given = [(_t(x) if wide else x).astype(as_wide) for x in matrices]
  out = f(*given)
  return (_t(out) if wide else out).astype(first.dtype)

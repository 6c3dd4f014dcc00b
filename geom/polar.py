"""Polar factors and spectral clips of stacks of matrices `(..., m, n)`.

`msign(A)` is the polar factor `U V.T` of `A = U diag(s) V.T`: every singular
value becomes 1, those that are zero stay zero. It is made of matrix products
only, by the composition of odd polynomials that is best in the worst case on an
interval of singular values (Polar Express, arXiv 2505.16932). `polar` has it
exactly, by LAPACK.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from geom.linalg import identity_like, matmul, one_by_one, unit_max

# Singular values from this share of the largest come out as 1, by steps: see
# `msign`. In float32 more steps resolve nothing smaller, as rounding grows
# with them.
FLOORS = {6: 1e-3, 7: 3e-4, 8: 2e-4, 9: 1e-4}
CUSHION = 0.024  # No polynomial is made for a wider interval: it overshoots.
CLIP_FLOOR = 0.015
# Room above 1 for values that rounding enlarges: above its interval every
# polynomial magnifies what is too much, tenfold and more.
MARGIN, BF16_MARGIN = 1 + 1e-5, 1.03


def msign(
  a: Float[Array, "*s m n"], *, steps: int = 8, dtype: Any = jnp.float32
) -> Float[Array, "*s m n"]:
  """The polar factor by `steps` polynomials of degree 5.

  Every matrix is first divided by its largest entry and then by its Schatten-4
  norm b, s1 <= b <= s1 min(m, n)^(1/4), so its scale does not matter (1e-30 to
  1e30). Singular values from `floor * b` on come out within `error` of 1, in
  exact arithmetic (`worst_error`):

  | steps | 4    | 5    | 6      | 7      | 8    | 9     | 10    |
  | ----- | ---- | ---- | ------ | ------ | ---- | ----- | ----- |
  | floor | 1e-3 | 1e-3 | 1e-3   | 3e-4   | 2e-4 | 1e-4  | 1e-4  |
  | error | .57  | .13  | 1.2e-3 | 3.2e-4 | 2e-8 | 2e-14 | 3e-16 |

  To the singular values rounding adds 1e-6 in float32, and in bfloat16 2e-2
  (5 steps: 8e-2). Singular vectors turn by rounding over the share of b that
  their value is. Smaller singular values come out smaller than 1, with the
  right sign and vectors. Those of a rank-deficient matrix that are zero up to
  float32 rounding stay below .02 in up to ten steps in float32; in bfloat16
  they may come out as large as the others.

  Args:
    a: any floating type. Zero gives zero; a matrix with a NaN or an infinity
      gives NaN throughout, and spoils no other.
    steps: at least 1.
    dtype: of the factors of every product; sums are float32 at least.

  Returns:
    The type of `a`.
  """
  m, n = a.shape[-2:]
  if 0 in a.shape:
    return a
  if m < n:
    wide = jnp.swapaxes(a, -1, -2)
    return jnp.swapaxes(msign(wide, steps=steps, dtype=dtype), -1, -2)
  coefficients = polar_express(steps, margin=_margin(dtype))
  one = functools.partial(_msign, coefficients=coefficients, dtype=dtype)
  return one_by_one(one, a).astype(a.dtype)


def _msign(
  a: Float[Array, "*s m n"],
  coefficients: tuple[tuple[float, float, float], ...],
  dtype: Any,
) -> Float[Array, "*s m n"]:
  """Of tall matrices."""
  times = functools.partial(product, dtype=dtype)
  x = unit_max(a)
  gram = times(_t(x), x)
  # The square of the Schatten-4 norm.
  norm = jnp.linalg.norm(gram, axis=(-1, -2), keepdims=True)
  norm = jnp.where(norm == 0, 1, norm)
  x, gram = x * jax.lax.rsqrt(norm), gram / norm

  def step(x: Any, gram: Any, abc: Any) -> Any:
    a, b, c = abc
    return a * x + times(x, b * gram + c * times(gram, gram))

  def body(carry: Any, abc: Any) -> Any:
    x = step(*carry, abc)
    return (x, times(_t(x), x)), None

  first = jnp.asarray(coefficients[:-1], x.dtype).reshape(-1, 3)
  (x, gram), _ = jax.lax.scan(body, (x, gram), first)
  return step(x, gram, coefficients[-1])


def polar(
  a: Float[Array, "*s m n"], *, complete: bool = False
) -> Float[Array, "*s m n"]:
  """The polar factor by LAPACK's SVD: the reference.

  Singular values below `max(m, n) eps` of the largest count as zero, as in
  numpy's `matrix_rank`, and stay zero, or become 1 as well if the factor is to
  be `complete`: one of the nearest orthonormal matrices then. A matrix with a
  NaN or an infinity gives NaN.
  """
  if 0 in a.shape:
    return a
  x = unit_max(a)
  spoil = jnp.sum(0 * x, axis=(-1, -2), keepdims=True)
  u, s, v_t = jnp.linalg.svd(jnp.where(jnp.isnan(x), 0, x), full_matrices=False)
  floor = max(a.shape[-2:]) * jnp.finfo(x.dtype).eps * s[..., :1]
  kept = jnp.where((s > floor) | complete, u.dtype.type(1), 0)
  return (matmul(u * kept[..., None, :], v_t) + spoil).astype(a.dtype)


def clip_singular_values(
  a: Float[Array, "*s m n"], *, root_steps: int = 3
) -> Float[Array, "*s m n"]:
  """Singular values above 1 become 1, the others stay, by matrix products.

  With `C = A.T A` and `E = C - I` the part of E that is positive,
  `E+ = (I + sign(E)) E / 2`, gives `A (I + E+)^(-1/2)`.

  Args:
    a: tall or square, in float32 or wider. With singular values of at most
      1.5, as tangent projections of polar factors have, all come out within
      .01 of min(s, 1).
    root_steps: Newton-Schulz steps; larger values want more: five for up to 6
      if no more than a 24th of them are above 1, seven if most are (to .03).
  """
  if 0 in a.shape:
    return a
  gram = matmul(_t(a), a)
  e = gram - identity_like(gram)
  sign = polar_express(4, margin=MARGIN, floor=CLIP_FLOOR)
  sign = _msign(e, sign, e.dtype)
  above = (e + matmul(sign, e)) / 2
  return matmul(a, _inverse_root(above, steps=root_steps))


def _inverse_root(
  s: Float[Array, "*s n n"], *, steps: int
) -> Float[Array, "*s n n"]:
  """`(I + S)^(-1/2)` for symmetric positive semidefinite S.

  By coupled Newton-Schulz steps, scaled so that the eigenvalues of
  `(I + S) / scale` lie around 1 and below 2, where the steps converge.
  """
  eye = identity_like(s)
  s2 = matmul(s, s)
  most = jnp.sqrt(jnp.linalg.norm(s2, axis=(-1, -2), keepdims=True))
  scale = 1 + most / 2
  # y goes to the root, z to its inverse; the first step, from y = (I + S) /
  # scale and z = I, needs no product but S^2.
  z = (1.5 - 0.5 / scale) * eye - s / (2 * scale)
  linear, square = 1.5 / scale - 1 / scale**2, -0.5 / scale**2
  y = (1.5 / scale - 0.5 / scale**2) * eye + linear * s + square * s2
  for step in range(1, steps):
    t = 1.5 * eye - 0.5 * matmul(z, y)
    y = matmul(y, t) if step < steps - 1 else y
    z = matmul(t, z)
  return z / jnp.sqrt(scale)


def product(a: Array, b: Array, *, dtype: Any) -> Array:
  """`a @ b`, factors rounded to `dtype`, sums in float32 or wider."""
  wide = jnp.promote_types(a.dtype, jnp.float32)
  if jnp.finfo(dtype).bits >= jnp.finfo(wide).bits:
    return matmul(a, b)
  return jnp.matmul(
    a.astype(dtype), b.astype(dtype), preferred_element_type=wide
  )


def _t(a: Array) -> Array:
  return jnp.swapaxes(a, -1, -2)


def _margin(dtype: Any) -> float:
  return MARGIN if jnp.finfo(dtype).bits >= 32 else BF16_MARGIN


@functools.cache
def polar_express(
  steps: int, *, margin: float = 1.0, floor: float | None = None
) -> tuple[tuple[float, float, float], ...]:
  """Coefficients of `a x + b x^3 + c x^5`, step by step.

  Each polynomial is the one nearest to 1 in the worst case on the interval
  that the ones before it leave (arXiv 2505.16932, theorem 3.1), from
  `[floor, 1]`.

  Args:
    steps: at least 1.
    margin: room above 1 that each but the last leaves for rounding.
    floor: by default that of `msign`.

  Raises:
    ValueError: steps < 1.
  """
  if steps < 1:
    raise ValueError(f"steps = {steps} must be at least 1")
  low, high, found = floor or floor_of(steps), 1.0, []
  for step in range(steps):
    abc = _nearest_to_one(max(low, CUSHION * high), high)
    # Centred on 1 over the whole interval, if only a part was asked for.
    abc = abc * 2 / (_value(abc, low) + _value(abc, high))
    if step < steps - 1:
      abc = abc / margin ** np.array([1, 3, 5])
    found.append(tuple(float(x) for x in abc))
    low = _value(abc, low)
    high = 2 - low
  return tuple(found)


def floor_of(steps: int) -> float:
  """Of the singular values that `msign` resolves, as a share of the norm."""
  return FLOORS[min(max(steps, min(FLOORS)), max(FLOORS))]


def worst_error(steps: int) -> float:
  """Largest |1 - s| that `msign` leaves above the floor, but for rounding."""
  x = np.geomspace(floor_of(steps), 1, 100_000)
  for abc in polar_express(steps):
    x = _value(np.array(abc), x)
  return float(np.max(np.abs(x - 1)))


def _value(abc: np.ndarray, x: Any) -> Any:
  a, b, c = abc
  return a * x + b * x**3 + c * x**5


def _nearest_to_one(low: float, high: float) -> np.ndarray:
  """The a, b, c nearest to 1 on [low, high] (Remez: four alternating ends)."""
  if low / high > 1 - 5e-6:
    return np.array([15 / 8, -10 / 8, 3 / 8]) / high ** np.array([1, 3, 5])
  inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
  error = np.inf
  while True:
    points = np.array([low, *inner, high])
    system = np.stack(
      [points, points**3, points**5, np.array([1, -1, 1, -1])], axis=1
    )
    *abc, new = np.linalg.solve(system, np.ones(4))
    if abs(new - error) < 1e-15:
      return np.array(abc)
    error = new
    a, b, c = abc
    root = np.sqrt(9 * b * b - 20 * a * c)
    inner = np.sqrt((-3 * b + np.array([-1, 1]) * root) / (10 * c))

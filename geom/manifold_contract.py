"""What every `geom.manifolds.Manifold` promises, as a check of one value.

    check(my_manifold())

raises an AssertionError that names the manifold, the shape and the clause that
does not hold. The clauses are those of `CLAUSES`; what a clause computes it
takes from the manifold's own functions, by way of `geom.manifolds`, and holds
against float64 in numpy.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from geom import manifolds
from geom.manifolds import Manifold
from geom.polar import polar

SHAPES = ((9, 6), (6, 6), (7, 1))
LENGTHS = (1.0, 3.0, 0.5, 2.0, 4.0)  # Of columns, unsorted.
LAPACK = ("svd", "eigh", "householder", "qr[", "lu[", "schur", "eig[")


class Case:
  """A manifold at one shape: its functions compiled, points on it and off it.

  Attributes:
    manifold: what is checked.
    shape: (m, n), tall or square.
    off: a stack of matrices that are not on the manifold.
    on: a stack of matrices that are.
    steps: of the walk.
  """

  def __init__(
    self, manifold: Manifold, points: list[Any], shape: Any, steps: int
  ):
    self.manifold, self.shape, self.steps = manifold, shape, steps
    m, n = shape
    off = self.random().standard_normal((3 + len(points), m, n)) / np.sqrt(m)
    off[1] *= np.resize(LENGTHS, n)
    self.off = jnp.asarray(off, jnp.float32)
    self.tangent, self.retract, self.project, self.distance, self.violation = (
      jax.jit(functools.partial(f, manifold))
      for f in (
        manifolds.tangent,
        manifolds.retract,
        manifolds.project,
        manifolds.distance,
        manifolds.violation,
      )
    )
    self.on = self.project(self.off)
    if points:
      self.on = self.on.at[3:].set(jnp.asarray(np.array(points), jnp.float32))

  def away(self, x: Any) -> np.ndarray:
    """`distance`, of columns."""
    return columns(wide(x) - wide(self.project(x)), x)

  def random(self, seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, *self.shape])

  def gaussian(self, seed: int, *shape: int) -> Any:
    drawn = self.random(seed).standard_normal(shape or self.on.shape)
    return jnp.asarray(drawn, jnp.float32)

  def gram(self, s: Any) -> np.ndarray:
    return wide(self.manifold.gram(jnp.asarray(s, jnp.float32)))


def check(
  manifold: Manifold,
  *,
  shapes: Sequence[tuple[int, int]] = SHAPES,
  points: Sequence[Any] = (),
  clauses: Sequence[str] | None = None,
  steps: int = 1000,
) -> None:
  """Raises if the manifold breaks a clause of the contract.

  Args:
    manifold: the value to check.
    shapes: (m, n) with m >= n, each checked.
    points: matrices on the manifold to check at besides random ones, of some
      of those shapes.
    clauses: names of `CLAUSES`; None for all.
    steps: how long the walk along the manifold is.

  Raises:
    AssertionError: a clause does not hold; the message names it.
    KeyError: an unknown clause.
  """
  chosen = [CLAUSES[name] for name in (CLAUSES if clauses is None else clauses)]
  for shape in shapes:
    here = [np.asarray(p) for p in points if np.shape(p) == tuple(shape)]
    case = Case(manifold, here, tuple(shape), steps)
    for clause in chosen:
      try:
        clause(case)
      except AssertionError as error:
        name = clause.__name__
        told = f"{manifold.name} {shape[0]} x {shape[1]}: {name}: {error}"
        raise AssertionError(told) from None


# The Gram space.


def gram_is_an_orthogonal_projection(case: Case) -> None:
  n = case.shape[1]
  s, t = (manifolds.sym(case.gaussian(seed, 2, n, n)) for seed in (1, 2))
  ps, pt = case.gram(s), case.gram(t)
  small(case.gram(ps) - ps, 1e-6, "P(P(S)) is not P(S)")
  small(ps - transpose(ps), 1e-6, "P(S) is not symmetric")
  small(inner(ps, t) - inner(s, pt), 1e-5 * n, "<P(S), T> is not <S, P(T)>")


# The tangent space.


def tangent_is_in_the_tangent_space(case: Case) -> None:
  a = wide(case.tangent(case.on, case.gaussian(3)))
  w = wide(case.on)
  normal = case.gram(both_ways(w, a))
  # An entry is small if both its columns are short.
  lengths = np.linalg.norm(w, axis=-2)
  size = np.linalg.norm(a, axis=(-1, -2), keepdims=True) * (
    lengths[..., :, None] + lengths[..., None, :]
  )
  small(share(normal, size), 3e-6, "P(W.T A + A.T W) is not zero")


def tangent_is_idempotent(case: Case) -> None:
  a = case.tangent(case.on, case.gaussian(3))
  small(case.tangent(case.on, a) - a, 5e-6, "A_TT is not A_T")


def tangent_is_self_adjoint(case: Case) -> None:
  a, b = case.gaussian(3), case.gaussian(4)
  left = inner(case.tangent(case.on, a), b)
  right = inner(a, case.tangent(case.on, b))
  small(left - right, 1e-5 * case.on[0].size, "<A_T, B> is not <A, B_T>")


def tangent_is_that_of_least_squares(case: Case) -> None:
  a = case.gaussian(3)
  found = wide(case.tangent(case.on, a))
  for w, one, mine in zip(wide(case.on), wide(a), found, strict=True):
    small(mine - least_squares(case, w, one), 1e-5, "A_T is not the nearest")


def least_squares(case: Case, w: np.ndarray, a: np.ndarray) -> np.ndarray:
  """A less its part in the span of the constraints, in float64."""
  basis = np.eye(a.size).reshape(a.size, *a.shape)
  rows = case.gram(both_ways(w, basis)).reshape(a.size, -1).T
  length = np.linalg.norm(rows, axis=1)
  rows = rows[length > 0] / length[length > 0, None]
  _, s, v_t = np.linalg.svd(rows, full_matrices=False)
  kept = v_t[s > 1e-4 * s.max(initial=0)]
  return a - (kept.T @ (kept @ a.ravel())).reshape(a.shape)


# The retraction.


def retract_keeps_the_manifold(case: Case) -> None:
  off = columns(case.retract(case.on) - case.on, case.on)
  small(off, 2e-6, "R(W) is not W")


def retract_reaches_the_manifold(case: Case) -> None:
  once = case.retract(case.off)
  small(columns(case.retract(once) - once, once), 3e-6, "R(R(X)) is not R(X)")
  small(case.away(once), 3e-6, "R(X) is not on the manifold")


def retract_is_first_order(case: Case) -> None:
  """An error of at most .55 t of the step, A being as large as W is small."""
  w = wide(case.on)
  values = np.linalg.svd(w, compute_uv=False)
  conditioned = values[:, -1] > 0.02 * values[:, 0]
  a = wide(case.tangent(case.on, case.gaussian(5)))
  a *= (values[:, -1] / norm2(a))[:, None, None]
  ts, errors = (0.1, 0.03), []
  for t in ts:
    x = jnp.asarray(w + t * a, jnp.float32)
    error = share(
      np.linalg.norm(wide(case.retract(x)) - wide(x), axis=(-1, -2)),
      np.linalg.norm(t * a, axis=(-1, -2)),
    )[conditioned]
    small(error, 0.55 * t, f"||R(W + tA) - (W + tA)|| / ||tA||, t = {t}")
    errors.append(error)
  both = np.maximum(errors, 1e-5)
  slope = 1 + np.log(both[0] / both[1]) / np.log(ts[0] / ts[1])
  # Where rounding, of the size of W, is not what is measured.
  rounding = 3e-7 * np.linalg.norm(w, axis=(-1, -2))
  rounding = share(rounding, np.linalg.norm(ts[1] * a, axis=(-1, -2)))
  slow = (slope < 1.9) & (both[1] > 20 * rounding[conditioned])
  require(not slow.any(), f"the error falls as t^{np.min(slope):.2f} only")


def retract_calls_lapack_only_if_it_says_so(case: Case) -> None:
  traced = str(jax.make_jaxpr(case.manifold.retract)(case.on))
  called = [name for name in LAPACK if name in traced]
  require(case.manifold.lapack or not called, f"calls {called}")


def walks_stay_on_the_manifold(case: Case) -> None:
  x = walk(case.manifold, case.off, case.gaussian(6, 8, *case.shape), case)
  require(np.isfinite(x).all(), f"not finite after {case.steps} steps")
  small(case.away(x)[:1], 1e-5, f"off the manifold after {case.steps} steps")


def walk(manifold: Manifold, x: Any, directions: Any, case: Case) -> Any:
  """Many small tangent steps, in directions that come again and again."""

  def step(i: Any, x: Any) -> Any:
    a = manifolds.tangent(manifold, x, directions[i % len(directions)][None])
    return manifolds.retract(manifold, x - 0.01 * a)

  walked = jax.lax.fori_loop(0, case.steps, step, case.project(x)[:1])
  return jnp.tile(walked, (len(x), 1, 1))


# The nearest point.


def project_reaches_the_manifold(case: Case) -> None:
  off = columns(case.project(case.on) - case.on, case.on)
  small(off, 5e-6, "the point nearest to W is not W")
  small(case.away(case.project(case.off)), 5e-6, "not on the manifold")


def project_is_nearest(case: Case) -> None:
  """No point around it, nor the retraction's, is nearer."""
  x, nearest = wide(case.off), case.project(case.off)
  size = np.linalg.norm(x, axis=(-1, -2))
  best = np.linalg.norm(wide(nearest) - x, axis=(-1, -2))
  others = [case.retract(case.off)]
  for i, t in enumerate((1, 0.3, 0.1, 0.1, 0.03, 0.03, 0.01)):
    a = t * size[:, None, None] * case.gaussian(10 + i, *x.shape)
    others.append(case.retract(nearest + a / np.sqrt(x[0].size)))
  for other in others:
    nearer = best - np.linalg.norm(wide(other) - x, axis=(-1, -2))
    small(np.maximum(nearer, 0) / size, 3e-6, "another point is nearer by")
  along = wide(case.tangent(nearest, case.off - nearest))
  along = np.linalg.norm(along, axis=(-1, -2)) / size
  small(along, 3e-3, "what is left is not normal to the manifold")


def distance_and_violation_are_zero_on_the_manifold(case: Case) -> None:
  small(case.distance(case.on), 2e-6, "distance of W")
  small(case.violation(case.on), 5e-6, "violation of W")


def distance_is_to_the_nearest_point(case: Case) -> None:
  x = wide(case.off)
  away = np.linalg.norm(x - wide(case.project(case.off)), axis=(-1, -2))
  away /= np.linalg.norm(x, axis=(-1, -2))
  small(wide(case.distance(case.off)) - away, 1e-5, "distance of X is off by")


def violation_grows_with_the_distance(case: Case) -> None:
  """A step of .01 along the normal is about as far off as it is long."""
  w, a = wide(case.on), case.gaussian(7)
  a = wide(a) - wide(case.tangent(case.on, a))
  if np.linalg.norm(a[0]) < 1e-4:
    return
  sizes = np.linalg.norm(w[0]), np.linalg.norm(a[0])
  x = jnp.asarray(w + 0.01 * sizes[0] / sizes[1] * a, jnp.float32)
  distance, violation = case.distance(x)[0], case.violation(x)[0]
  require(0.003 < distance < 0.011, f"distance {distance:.1e} at .01")
  require(0.001 < violation < 0.1, f"violation {violation:.1e} at .01")


def cone_says_whether_it_is_one(case: Case) -> None:
  off = np.concatenate([case.away(t * case.on) for t in (0.5, 3)])
  on = bool((off < 5e-6).all())
  told = f"cone = {case.manifold.cone}, and t W is {off.max():.1e} off"
  require(on == case.manifold.cone, told)


def closed_form_is_tangent(case: Case) -> None:
  if case.manifold.closed_form(*case.shape):
    a = jax.jit(polar)(case.tangent(case.on, case.gaussian(8)))
    off = a - case.tangent(case.on, a)
    small(off, 1e-4, "the polar factor of the tangent part is not tangent")


# Stacks, shapes, types and what is degenerate.


def a_stack_is_a_loop(case: Case) -> None:
  w, a, x = case.on, case.gaussian(3), near(case)
  for f, given in (
    (case.retract, (x,)),
    (case.project, (x,)),
    (case.tangent, (w, a)),
  ):
    parts = [f(*(y[i : i + 1] for y in given)) for i in range(3)]
    small(
      wide(f(*given))[:3] - wide(jnp.concatenate(parts)),
      1e-6 * float(np.max(np.abs(x))),
      "a stack is not its matrices",
    )


def near(case: Case) -> Any:
  """One step off the manifold; far off, the nearest point may be vague."""
  return case.on + 0.01 * case.tangent(case.on, case.gaussian(3))


def a_wide_matrix_is_its_transpose(case: Case) -> None:
  if case.shape[0] == case.shape[1]:
    return
  w, a = case.on, case.gaussian(3)
  for f in (case.retract, case.project):
    off = columns(transpose(f(transpose(w))) - f(w), w)
    small(off, 1e-6, "f(X.T) is not f(X).T")
  small(
    transpose(case.tangent(transpose(w), transpose(a))) - case.tangent(w, a),
    1e-6,
    "f(X.T) is not f(X).T",
  )


def degenerate_matrices_give_finite_values(case: Case) -> None:
  x = np.array(case.off)
  x[0, :, 0] = 0
  x[1] = 0
  x[2] = x[2][:, :1] * x[2][:1]
  tiny, huge = 1e-20 * case.off, 1e15 * case.off
  for name, y in {"zero or low rank": x, "tiny": tiny, "huge": huge}.items():
    y = jnp.asarray(y, jnp.float32)
    for f in (case.retract, case.project, case.distance):
      require(np.isfinite(f(y)).all(), f"{name} X: not finite")
    a = case.tangent(y, case.gaussian(3))
    require(np.isfinite(a).all(), f"{name} W: the tangent part is not finite")
    a = case.tangent(case.on, y)
    require(np.isfinite(a).all(), f"{name} A: the tangent part is not finite")
    require(not np.isnan(case.violation(y)).any(), f"{name}: violation is NaN")


def a_nan_stays_in_its_matrix(case: Case) -> None:
  a, sound = case.gaussian(3), near(case)
  for bad in (np.nan, np.inf):
    x, w, b = (y.at[1, -1, 0].set(bad) for y in (sound, case.on, a))
    for f in (case.retract, case.project):
      spoils_only_itself(f(x), f(sound))
    spoils_only_itself(case.tangent(w, b), case.tangent(case.on, a))
    spoils_only_itself(case.distance(x), case.distance(sound))
    spoils_only_itself(case.violation(x), case.violation(sound))


def spoils_only_itself(spoilt: Any, sound: Any) -> None:
  spoilt, sound = wide(spoilt), wide(sound)
  hidden = np.isfinite(spoilt[1]).all()
  require(not hidden, "a NaN or an infinity is not seen")
  rest = np.arange(len(sound)) != 1
  require(np.isfinite(spoilt[rest]).all(), "a NaN spoils another matrix")
  size = 1e-5 * float(np.max(np.abs(sound), initial=1))
  small(spoilt[rest] - sound[rest], size, "a NaN moves another matrix")


def the_type_and_the_shape_stay(case: Case) -> None:
  half = jnp.bfloat16
  w, a = case.on.astype(half), case.gaussian(3).astype(half)
  for f in (case.retract, case.project):
    require(f(w).dtype == half, "bfloat16 does not stay bfloat16")
    small(columns(f(w) - w, w), 0.03, "R(W) is not W in bfloat16")
  require(case.tangent(w, a).dtype == half, "bfloat16 does not stay bfloat16")
  none = jnp.zeros((0, *case.shape))
  for f in (case.retract, case.project):
    require(f(none).shape == none.shape, "an empty stack has another shape")
  for f in (case.distance, case.violation):
    require(f(none).shape == (0,), "an empty stack has another shape")


CLAUSES: dict[str, Callable[[Case], None]] = {
  clause.__name__: clause
  for clause in (
    gram_is_an_orthogonal_projection,
    tangent_is_in_the_tangent_space,
    tangent_is_idempotent,
    tangent_is_self_adjoint,
    tangent_is_that_of_least_squares,
    retract_keeps_the_manifold,
    retract_reaches_the_manifold,
    retract_is_first_order,
    retract_calls_lapack_only_if_it_says_so,
    walks_stay_on_the_manifold,
    project_reaches_the_manifold,
    project_is_nearest,
    distance_and_violation_are_zero_on_the_manifold,
    distance_is_to_the_nearest_point,
    violation_grows_with_the_distance,
    cone_says_whether_it_is_one,
    closed_form_is_tangent,
    a_stack_is_a_loop,
    a_wide_matrix_is_its_transpose,
    degenerate_matrices_give_finite_values,
    a_nan_stays_in_its_matrix,
    the_type_and_the_shape_stay,
  )
}


def require(holds: Any, told: str) -> None:
  if not holds:
    raise AssertionError(told)


def small(x: Any, most: float, told: str) -> None:
  """No entry above `most`, and none that is not a number."""
  largest = np.max(np.abs(wide(x)), initial=0)
  require(largest <= most, f"{told} ({largest:.1e}, at most {most:.1e})")


def wide(x: Any) -> np.ndarray:
  return np.array(x, np.float64)


def transpose(x: Any) -> Any:
  return x.swapaxes(-1, -2)


def inner(a: Any, b: Any) -> np.ndarray:
  return np.sum(wide(a) * wide(b), axis=(-1, -2))


def norm2(a: np.ndarray) -> np.ndarray:
  return np.maximum(np.linalg.norm(a, 2, axis=(-1, -2)), 1e-30)


def share(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """`|a| / b`, 0 where both are 0."""
  return np.where(a == 0, 0, np.abs(a) / np.where(b == 0, 1e-30, b))


def columns(x: Any, of: Any) -> np.ndarray:
  """Lengths of the columns, as shares of those of another matrix."""
  return share(*(np.linalg.norm(wide(y), axis=-2) for y in (x, of)))


def both_ways(w: np.ndarray, a: np.ndarray) -> np.ndarray:
  wa = transpose(w) @ a
  return wa + transpose(wa)

"""geom.manifolds: the contract of every manifold, and what each is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import manifolds as mf
from geom.manifold_contract import CLAUSES, check

MANIFOLDS = {
  "euclidean": mf.euclidean(),
  "stiefel": mf.stiefel(),
  "scaled_stiefel": mf.scaled_stiefel(2.5),
  "column": mf.dgram(),
  "procrustes": mf.dgram("procrustes"),
  "oblique": mf.oblique(),
}
DGRAM = {name: MANIFOLDS[name] for name in ("column", "procrustes")}
# What does not go through the shape again.
AT_EVERY_SHAPE = [
  name for name in CLAUSES if not name.startswith(("a_", "the"))
]
AT_EVERY_SHAPE.remove("walks_stay_on_the_manifold")
UNSORTED = [1, 3, 0.5, 2, 4, 0.7]
TIED = [1, 1, 2, 2, 2, 1]
WITH_ZEROS = [1, 0, 2, 0, 1, 3]
FAR_APART = [1e-3, 1e3, 1, 1e2, 1e-2, 10]


def orthonormal(m, n, seed=0):
  return np.linalg.qr(np.random.default_rng(seed).standard_normal((m, n)))[0]


def gaussian(*shape, seed=0):
  drawn = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(drawn, jnp.float32)


def points(name):
  if name not in DGRAM:
    return []
  lengths = (UNSORTED, TIED, WITH_ZEROS, FAR_APART)
  return [orthonormal(9, 6) * np.array(d) for d in lengths]


QUICK = ("euclidean", "stiefel", "column")


@pytest.mark.parametrize(
  "name",
  [
    *QUICK,
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in MANIFOLDS
      if name not in QUICK
    ),
  ],
)
def test_the_contract(name):
  """Of tall matrices; with ten thousand steps along the manifold."""
  check(MANIFOLDS[name], shapes=[(9, 6)], points=points(name), steps=10_000)


@pytest.mark.parametrize("shape", [(6, 6), (7, 1)])
@pytest.mark.parametrize("name", ["stiefel", "column", "oblique"])
def test_the_contract_of_square_matrices_and_columns(name, shape):
  check(MANIFOLDS[name], shapes=[shape], clauses=AT_EVERY_SHAPE)


def test_the_dgram_of_the_paper_is_no_retraction():
  paper = mf.dgram("sorted_svd")
  w = jnp.asarray(orthonormal(9, 5) * np.array([1, 3, 0.5, 2, 4]), jnp.float32)
  moved = jnp.linalg.norm(mf.retract(paper, w), axis=0)
  np.testing.assert_allclose(moved, [4, 3, 2, 1, 0.5], rtol=1e-5)
  with pytest.raises(AssertionError, match="retract_keeps_the_manifold"):
    check(paper, shapes=[(9, 6)], clauses=["retract_keeps_the_manifold"])
  q = jnp.asarray(orthonormal(9, 5), jnp.float32)
  a = mf.tangent(paper, q, gaussian(9, 5))
  for t in (0.1, 0.01, 0.001):
    off = mf.retract(paper, q + t * a) - (q + t * a)
    assert jnp.linalg.norm(off) > 0.3 * t * jnp.linalg.norm(a)


def broken(**changes):
  return mf.stiefel()._replace(name="broken", **changes)


def euclidean_tangent(w, a):
  return a


def half_a_tangent(w, a):
  return mf.stiefel().tangent(w, a) / 2


def skewed_tangent(w, a):
  return a - w @ jnp.swapaxes(w, -1, -2) @ a


def drifting(x):
  return mf.stiefel().retract(x) * (1 + 1e-5)


def one_step(x):
  """One Newton-Schulz step: exact near the manifold, and there only."""
  return 1.5 * x - 0.5 * x @ (jnp.swapaxes(x, -1, -2) @ x)


def of_the_second(x):
  return mf.stiefel().retract(x) + 0 * x[1:2]


def by_lapack(x):
  return mf.polar(x)


BROKEN = {
  "tangent_is_in_the_tangent_space": {"tangent": euclidean_tangent},
  "tangent_is_idempotent": {"tangent": half_a_tangent},
  "tangent_is_that_of_least_squares": {"tangent": skewed_tangent},
  "retract_keeps_the_manifold": {"retract": drifting},
  "retract_reaches_the_manifold": {"retract": one_step},
  "retract_is_first_order": {"retract": lambda x: mf.polar(x**3)},
  "retract_calls_lapack_only_if_it_says_so": {"retract": by_lapack},
  "walks_stay_on_the_manifold": {"retract": lambda x: x},
  "project_is_nearest": {"project": lambda x: mf.polar(x * UNSORTED_ROW)},
  "cone_says_whether_it_is_one": {"cone": True},
  "closed_form_is_tangent": {"closed_form": lambda m, n: True},
  "a_nan_stays_in_its_matrix": {"retract": of_the_second},
  "gram_is_an_orthogonal_projection": {"gram": lambda s: 2 * s},
}
UNSORTED_ROW = jnp.asarray(UNSORTED)[None, None]


@pytest.mark.parametrize("clause", BROKEN)
def test_a_broken_manifold_is_caught_by_the_clause(clause):
  with pytest.raises(AssertionError, match=f"broken 9 x 6: {clause}: "):
    check(broken(**BROKEN[clause]), shapes=[(9, 6)], clauses=[clause])


def test_the_first_broken_clause_is_named_of_them_all():
  with pytest.raises(AssertionError, match="tangent_is_in_the_tangent_space"):
    check(broken(tangent=euclidean_tangent), shapes=[(9, 6)])


def test_the_nearest_stiefel_matrix_is_the_polar_factor():
  x = gaussian(4, 9, 6)
  u, _, v_t = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
  for c in (1.0, 2.5):
    found = mf.project(mf.scaled_stiefel(c), x)
    np.testing.assert_allclose(found, c * u @ v_t, atol=3e-6)


@pytest.mark.parametrize("shape", [(9, 6), (6, 6)])
def test_the_nearest_dgram_matrix_is_that_of_float64(shape):
  """By another way: `Q = polar(X D)` by turns, to the end."""
  x = np.random.default_rng(1).standard_normal((12, *shape))
  found = np.asarray(mf.project(mf.dgram(), jnp.asarray(x, jnp.float32)))
  column = np.asarray(mf.retract(mf.dgram(), jnp.asarray(x, jnp.float32)))
  for one, mine, other in zip(x, found, column, strict=True):
    d = np.linalg.norm(one, axis=0)
    for _ in range(500):
      u, _, v_t = np.linalg.svd(one * d, full_matrices=False)
      d = np.sum(u @ v_t * one, axis=0)
    best = np.linalg.norm(one - u @ v_t * d)
    assert np.linalg.norm(one - mine) < best * (1 + 1e-4)
    assert np.linalg.norm(one - mine) < 0.99 * np.linalg.norm(one - other)


@pytest.mark.parametrize("name", DGRAM)
def test_short_columns_survive_beside_long_ones(name):
  w = jnp.asarray(orthonormal(9, 6) * np.array(FAR_APART), jnp.float32)
  for f in (mf.retract, mf.project):
    off = jnp.linalg.norm(f(DGRAM[name], w) - w, axis=0)
    assert np.all(off < 2e-6 * np.array(FAR_APART))


@pytest.mark.parametrize("scale", [1e-20, 1, 1e15])
def test_distance_and_violation_of_a_cone_have_no_scale(scale):
  x = gaussian(2, 9, 6)
  for f in (mf.distance, mf.violation):
    wanted = f(mf.dgram(), x)
    assert np.all(wanted > 0.05)
    np.testing.assert_allclose(f(mf.dgram(), scale * x), wanted, rtol=1e-4)


def test_violation_is_about_twice_the_distance_of_stiefel_matrices():
  w = jnp.asarray(orthonormal(9, 6), jnp.float32)
  x = w + 0.01 * (w @ mf.sym(gaussian(6, 6)))
  share = mf.violation(mf.stiefel(), x) / mf.distance(mf.stiefel(), x)
  np.testing.assert_allclose(share, 2, rtol=0.1)


def test_zero_is_on_a_cone_and_off_no_scale():
  zero = jnp.zeros((2, 9, 6))
  for name in ("euclidean", "column", "procrustes"):
    for f in (mf.distance, mf.violation):
      np.testing.assert_array_equal(f(MANIFOLDS[name], zero), 0)
    for f in (mf.retract, mf.project):
      np.testing.assert_array_equal(f(MANIFOLDS[name], zero), 0)


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match="must be positive"):
    mf.scaled_stiefel(0.0)
  with pytest.raises(ValueError, match=r"'qr' is none of column, procrustes"):
    mf.dgram("qr")


def test_the_table_makes_what_it_names():
  assert {make().name for make in mf.MANIFOLDS.values()} == set(mf.MANIFOLDS)
  assert mf.scaled_stiefel(2.5).name == "stiefel(2.5)"


@pytest.mark.parametrize("size", [0.05, 0.07])
def test_both_ways_to_a_nearby_polar_factor_are_exact(size):
  """Below NEAR by a series, above it by msign."""
  values = np.sqrt(1 + np.linspace(-size, size, 6))
  u, v = orthonormal(9, 6), orthonormal(6, 6, seed=1)
  x = jnp.asarray(u * values @ v.T, jnp.float32)
  found = jax.jit(mf.nearby_polar)(x)
  np.testing.assert_allclose(found, u @ v.T, atol=1e-6)

"""Overlaps of leading subspaces, and cosines of vectors of the same index."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import Triplets
from geom.probes.continuity import (
  chance_overlap,
  index_defined,
  overlap,
  same_index_cosines,
  separated,
  vectors,
)

SIDES = ("input", "output")
overlaps = jax.jit(overlap, static_argnums=(1, 2))
cosines = jax.jit(same_index_cosines, static_argnums=1)
apart = jax.jit(separated)
defined = jax.jit(index_defined)
EPS = 2.0**-23


def orthonormal(*shape, seed=0):
  draw = np.random.default_rng(seed).standard_normal(shape)
  return np.linalg.qr(draw)[0]


def stack(layers=4, m=24, n=18, values=None, seed=0):
  """Exact triplets in float32, all of them unless values are fewer."""
  values = np.arange(n, 0, -1.0) if values is None else np.asarray(values)
  k = values.shape[-1]
  return Triplets(
    jnp.asarray(orthonormal(layers, m, k, seed=(seed, 0)), jnp.float32),
    jnp.asarray(np.broadcast_to(values, (layers, k)), jnp.float32),
    jnp.asarray(orthonormal(layers, n, k, seed=(seed, 1)), jnp.float32),
  )


def of(values, m=6, n=5):
  """What `separated` needs: values of layers, and the sides' lengths."""
  values = np.asarray(values, np.float32)
  layers, k = values.shape
  left, right = (np.ones((layers, d, k), np.float32) for d in (m, n))
  return Triplets(*map(jnp.asarray, (left, values, right)))


def side_of(t, side):
  return np.asarray(t.left if side == "input" else t.right, np.float64)


def test_vectors():
  t = stack()
  np.testing.assert_array_equal(vectors(t, "input"), t.left)
  np.testing.assert_array_equal(vectors(t, "output"), t.right)


def test_another_side():
  for function in (vectors, lambda t, s: overlaps(t, 1, s), same_index_cosines):
    with pytest.raises(ValueError, match="'left' is neither input nor output"):
      function(stack(), "left")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_overlap_is_that_of_projectors(k, side):
  t = stack()
  v = side_of(t, side)[..., :k]
  p = v @ np.swapaxes(v, -1, -2)
  wanted = np.trace(p[:-1] @ p[1:], axis1=-2, axis2=-1) / k
  assert 0 < wanted.max() < 0.9
  np.testing.assert_allclose(overlaps(t, k, side), wanted, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_overlap_of_one_is_the_squared_cosine(side):
  t = stack()
  cos = np.asarray(cosines(t, side))[:, 0]
  np.testing.assert_allclose(overlaps(t, 1, side), cos**2, rtol=1e-5)


@pytest.mark.parametrize("k", [2, 5])
def test_a_basis_of_the_subspace_does_not_matter(k):
  """Neither signs nor a rotation within it."""
  t = stack()
  wanted = overlaps(t, k, "input")
  turn = np.asarray(orthonormal(4, k, k, seed=7), np.float32)
  signs = np.where(np.random.default_rng(0).random((4, 1, k)) < 0.5, -1, 1)
  for leading in (t.left[..., :k] @ turn, t.left[..., :k] * signs):
    turned = t._replace(left=t.left.at[..., :k].set(leading))
    np.testing.assert_allclose(overlaps(turned, k, "input"), wanted, atol=1e-6)


def test_the_same_and_orthogonal_subspaces():
  """1, not more by rounding, then 0, then half."""
  e = np.eye(8, dtype=np.float32) * (1 + 1e-6)
  columns = [[0, 1], [1, 0], [2, 3], [2, 4]]
  left = jnp.asarray(np.stack([e[:, c] for c in columns]))
  t = Triplets(left, jnp.full((4, 2), 2.0).at[:, 1].set(1), left[:, :2])
  np.testing.assert_allclose(overlaps(t, 2, "output").shape, (3,))
  np.testing.assert_allclose(overlaps(t, 2, "input"), [1, 0, 0.5], rtol=1e-5)
  assert overlaps(t, 2, "input")[0] <= 1


@pytest.mark.parametrize("k", [1, 3])
def test_chance_overlap_is_that_of_random_subspaces(k):
  t = stack(2000, 24, 3, [3, 2, 1])
  found = np.asarray(overlaps(t, k, "input"))
  np.testing.assert_allclose(found.mean(), chance_overlap(k, 24), rtol=0.07)


def test_chance_overlap_is_at_most_one():
  assert chance_overlap(1, 4) == 0.25 and chance_overlap(3, 12) == 0.25
  assert chance_overlap(5, 5) == chance_overlap(6, 5) == 1


def test_overlap_needs_separate_values_at_k_alone():
  """Equal values within the subspace, or outside, leave it defined."""
  values = np.array([[5, 4, 3, 2, 1]] * 5, float)
  values[2, :3] = 4, 4, 3
  t = stack(5, 6, 5, values)
  for k, spoilt in ((1, [0, 1, 1, 0]), (2, [0] * 4), (3, [0] * 4)):
    for side in SIDES:
      found = np.isnan(overlaps(t, k, side))
      np.testing.assert_array_equal(found, np.array(spoilt, bool))


def test_overlap_of_all_of_a_side():
  """Complete decompositions are followed by 0."""
  t = stack(3, 6, 4)
  wanted = side_of(t, "input")
  inner = np.swapaxes(wanted[:-1], -1, -2) @ wanted[1:]
  np.testing.assert_allclose(
    overlaps(t, 4, "input"), np.sum(inner**2, axis=(-1, -2)) / 4, atol=1e-6
  )
  np.testing.assert_allclose(overlaps(t, 4, "output"), 1, atol=1e-6)


def test_overlap_of_the_last_of_some_is_not_defined():
  t = stack(3, 6, 5, [4, 3, 2, 1])
  assert np.isnan(overlaps(t, 4, "input")).all()
  assert np.isfinite(overlaps(t, 3, "input")).all()


@pytest.mark.parametrize("k", [-1, 0, 5])
def test_more_dimensions_than_triplets(k):
  with pytest.raises(ValueError, match=f"k = {k} with 4 triplets"):
    overlaps(stack(3, 6, 5, [4, 3, 2, 1]), k, "input")


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_separated(scale):
  values = [[3, 2, 2, 1, 0], [3, 3, 2, 1, 1], [0] * 5, [np.nan] * 5]
  found = apart(of(np.array(values) * scale))
  wanted = [[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [0] * 5, [0] * 5]
  np.testing.assert_array_equal(found, np.array(wanted, bool))


def test_boundary_of_the_rule():
  """Defined where eps s1^2 / (s_i^2 - s_(i+1)^2) is below 1e-3."""
  turn = np.array([0.98e-3, 1.02e-3])
  s1, s2 = 2.0, 1.0
  s3 = np.sqrt(s2**2 - EPS * s1**2 / turn)
  values = [[s1, s2, s, 0.1] for s in s3]
  found = apart(of(values))
  np.testing.assert_array_equal(found[:, 1], [True, False])
  last = np.sqrt(EPS * s1**2 / turn)
  found = apart(of([[s1, s] for s in last], n=2))
  np.testing.assert_array_equal(found[:, 1], [True, False])


@pytest.mark.parametrize(("m", "n"), [(5, 9), (9, 5), (5, 5)])
def test_complete_is_the_shorter_side(m, n):
  values = [[5, 4, 3, 2, 1]]
  assert apart(of(values, m, n)).all()
  found = apart(of([[5, 4, 3, 2]], m, n))
  np.testing.assert_array_equal(found, [[True, True, True, False]])


def test_index_defined():
  """Apart from the one before and from the one behind."""
  values = [[6, 5, 5, 4, 3], [5, 5, 3, 2, 1], [5, 4, 3, 2, 2], [5, 4, 3, 1, 0]]
  wanted = [[1, 0, 0, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
  found = defined(of(values))
  np.testing.assert_array_equal(found, np.array(wanted, bool))


@pytest.mark.parametrize("side", SIDES)
def test_same_index_cosines(side):
  t = stack()
  v = side_of(t, side)
  wanted = np.abs(np.einsum("pdk,pdk->pk", v[:-1], v[1:]))
  assert wanted.shape == (3, 18)
  found = cosines(t, side)
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  flipped = jax.tree.map(lambda x: x.at[1].multiply(-1), t)
  flipped = flipped._replace(values=t.values)
  np.testing.assert_allclose(cosines(flipped, side), found, atol=1e-6)


def test_same_index_cosines_where_defined():
  values = np.array([[5, 4, 3, 2, 1]] * 5, float)
  values[1, 1:3] = 4
  values[4] = np.nan
  t = stack(5, 6, 5, values)
  nan = np.isnan(cosines(t, "input"))
  wanted = np.array([[0, 1, 1, 0, 0]] * 2 + [[0] * 5] + [[1] * 5], bool)
  np.testing.assert_array_equal(nan, wanted)


def test_same_index_cosine_of_the_last_of_some_is_not_defined():
  found = cosines(stack(3, 6, 5, [4, 3, 2, 1]), "output")
  np.testing.assert_array_equal(np.isnan(found), [[0, 0, 0, 1]] * 2)


def test_rounding_makes_no_cosine_above_one():
  e = (1 + 1e-6) * jnp.stack([jnp.eye(3, 2)] * 2)
  t = Triplets(e, jnp.asarray([[2.0, 1.0]] * 2), e[:, :2])
  assert overlaps(t, 1, "input")[0] == overlaps(t, 2, "input")[0] == 1
  np.testing.assert_array_equal(cosines(t, "input"), [[1, 1]])


def test_seeds_are_each_seed():
  one, two = stack(seed=1), stack(seed=2)
  both = jax.tree.map(lambda *x: jnp.stack(x), one, two)
  for i, t in enumerate((one, two)):
    np.testing.assert_allclose(
      overlaps(both, 3, "input")[i], overlaps(t, 3, "input"), atol=1e-6
    )
    np.testing.assert_allclose(
      cosines(both, "input")[i],
      cosines(t, "input"),
      atol=1e-6,
    )


def test_products_are_float32_on_every_device():
  lowered = overlaps.lower(stack(), 2, "input").as_text()
  found = [line for line in lowered.split("\n") if "dot_general" in line]
  assert len(found) == 1
  assert "precision = [HIGHEST, HIGHEST]" in found[0]

"""geom.probes.continuity against numpy, planted stacks, degenerate layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import Triplets, leading_triplets
from geom.probes import continuity, suite
from geom.probes.continuity import (
  adjacent_cosines,
  chance_cosine,
  flattened_cosine,
  frobenius_dominance,
  spectral_dominance,
)


def stack_probe(stacks):
  parts = suite.decompose(stacks, k=2)
  return suite.take(("cosines", "flattened"), parts)


triplets = jax.jit(leading_triplets, static_argnums=1)
probe = jax.jit(stack_probe)


def gaussian(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def orthonormal(m, n, seed=0):
  return np.linalg.qr(gaussian(m, n, seed=seed))[0]


def gapped(layers, m, n, seed=0):
  """Random kernels with singular values 4, 3, 1, 1, ..."""
  return np.stack(
    [
      orthonormal(m, min(m, n), seed=(seed, layer, 0))
      * np.array([4, 3] + [1] * (min(m, n) - 2), np.float32)
      @ orthonormal(n, min(m, n), seed=(seed, layer, 1)).T
      for layer in range(layers)
    ]
  )


def adjacent(stack):
  found = adjacent_cosines(triplets(jnp.asarray(stack), 2))
  return jax.tree.map(np.asarray, found)


def frobenius_cosine(a, b):
  a, b = np.asarray(a, float), np.asarray(b, float)
  return np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("shape", [(6, 4), (5, 5), (4, 6)])
def test_orientation(shape):
  """v1 and u1 of the papers' W = K.T are our `input` and `output`."""
  stack = gapped(4, *shape)
  u, s, vt = np.linalg.svd(np.swapaxes(stack, -1, -2).astype(np.float64))
  v1, u1 = vt[:, 0, :], u[:, :, 0]
  assert v1.shape == (4, shape[0]) and u1.shape == (4, shape[1])
  found = adjacent(stack)
  dots = np.sum(v1[:-1] * v1[1:], axis=-1)
  np.testing.assert_allclose(found.cos_input, np.abs(dots), atol=1e-5)
  dots = np.sum(u1[:-1] * u1[1:], axis=-1)
  np.testing.assert_allclose(found.cos_output, np.abs(dots), atol=1e-5)
  np.testing.assert_allclose(found.gap, s[:, 0] / s[:, 1], rtol=1e-5)


def planted(seed=0):
  """Strong rank-one kernels: one direction in, orthogonal directions out."""
  shared, own = orthonormal(8, 1, seed=seed), orthonormal(6, 4, seed=seed + 1)
  strong = np.stack([10 * shared @ own[:, layer, None].T for layer in range(4)])
  return strong + 0.01 * gaussian(4, 8, 6, seed=seed + 2)


def test_a_direction_shared_on_the_input_side():
  found = adjacent(planted())
  assert found.cos_input.min() > 0.999
  assert found.cos_output.max() < 0.01


def test_a_direction_shared_on_the_output_side():
  found = adjacent(np.swapaxes(planted(), -1, -2))
  assert found.cos_input.max() < 0.01
  assert found.cos_output.min() > 0.999


def test_signs_of_singular_vectors_do_not_matter():
  stack = jnp.asarray(gapped(5, 6, 4))
  t = triplets(stack, 2)
  plain = adjacent_cosines(t)
  assert jnp.all(plain.cos_input >= 0) and jnp.all(plain.cos_output >= 0)
  signs = jnp.asarray([1.0, -1, 1, 1, -1]).reshape(5, 1, 1)
  flipped = adjacent_cosines(
    Triplets(t.left * signs, t.values, t.right * signs[::-1])
  )
  jax.tree.map(np.testing.assert_array_equal, flipped, plain)


REPEATED = orthonormal(6, 4) * np.array([2, 2, 1, 0.5], np.float32)


@pytest.mark.parametrize(
  ("degenerate", "gap"),
  [
    (np.eye(6, 4, dtype=np.float32), 1),
    (3 * orthonormal(6, 4), 1),
    (REPEATED, 1),
    (np.zeros((6, 4), np.float32), np.nan),
    (np.full((6, 4), np.nan, np.float32), np.nan),
    (np.full((6, 4), np.inf, np.float32), np.nan),
  ],
  ids=["identity", "stiefel", "repeated", "zero", "nan", "inf"],
)
def test_a_layer_without_leading_vectors_spoils_its_own_pairs(degenerate, gap):
  stack = gapped(6, 6, 4)
  clean = adjacent(stack)
  stack[2] = degenerate
  found = adjacent(stack)
  spoilt = [False, True, True, False, False]
  for mine, wanted in zip(found[:2], clean[:2], strict=True):
    np.testing.assert_array_equal(np.isnan(mine), spoilt)
    np.testing.assert_array_equal(mine[[0, 3, 4]], wanted[[0, 3, 4]])
  np.testing.assert_allclose(found.gap[2], gap, rtol=1e-5)
  np.testing.assert_array_equal(
    np.delete(found.gap, 2), clean.gap[[0, 1, 3, 4, 5]]
  )


def test_rank_one_layers_have_leading_vectors():
  a, b = orthonormal(6, 3), orthonormal(4, 3, seed=1)
  a[:, 1] = (a[:, 0] + a[:, 2]) / np.sqrt(2, dtype=np.float32)
  found = adjacent(np.stack([np.outer(a[:, i], b[:, i]) for i in range(3)]))
  np.testing.assert_allclose(found.cos_input, np.sqrt(0.5), atol=1e-5)
  np.testing.assert_allclose(found.cos_output, 0, atol=1e-5)
  assert found.gap.min() > 1e3


def vectors_and(values, scale=1.0):
  """Triplets of two layers with e1 scaled as their leading vector."""
  e = scale * jnp.eye(3, 2)
  return Triplets(jnp.stack([e, e]), jnp.asarray(values), jnp.stack([e, e]))


def test_a_second_value_of_zero_is_an_infinite_gap():
  found = adjacent_cosines(vectors_and([[2.0, 0.0], [2.0, 1.0]]))
  np.testing.assert_array_equal(found.cos_input, [1])
  np.testing.assert_array_equal(found.gap, [np.inf, 2])


def test_rounding_makes_no_cosine_above_one():
  found = adjacent_cosines(vectors_and([[2.0, 1.0], [2.0, 1.0]], 1 + 1e-6))
  np.testing.assert_array_equal(found.cos_input, [1])
  np.testing.assert_array_equal(found.cos_output, [1])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_boundary_of_the_gap_rule(scale):
  """Defined where eps s1^2 / (s1^2 - s2^2) is below 1e-3."""
  turn = np.array([0.99e-3, 1.01e-3])
  eps = np.finfo(np.float32).eps
  s2 = scale * np.sqrt(1 - eps / turn)
  s1 = jnp.full(2, scale, jnp.float32)
  found = continuity.is_defined(s1, jnp.asarray(s2, jnp.float32))
  np.testing.assert_array_equal(found, [True, False])


@pytest.mark.parametrize(
  ("values", "shape"),
  [("one layer", (1, 4, 4)), ("one triplet", (3, 4, 4))],
)
def test_needs_two_triplets_of_two_layers(values, shape):
  k = 1 if values == "one triplet" else 2
  t = triplets(jnp.asarray(gaussian(*shape)), k)
  with pytest.raises(ValueError, match="two triplets of two layers"):
    adjacent_cosines(t)


def test_adjacent_cosines_of_seeds_are_those_of_each():
  stack = gapped(6, 5, 4).reshape(2, 3, 5, 4)
  found = adjacent(stack)
  assert found.cos_input.shape == (2, 2) and found.gap.shape == (2, 3)
  for seed in range(2):
    one = adjacent(stack[seed])
    for mine, wanted in zip(found, one, strict=True):
      np.testing.assert_allclose(mine[seed], wanted, atol=1e-5)


@pytest.mark.parametrize("d", [32, 256])
def test_chance_cosine_is_that_of_random_directions(d):
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((2, 20_000, d))
  norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
  mean = np.mean(np.abs(np.sum(x * y, axis=1)) / norms)
  np.testing.assert_allclose(chance_cosine(d), mean, rtol=0.02)


def test_chance_cosine_at_width_256():
  assert round(chance_cosine(256), 4) == 0.0499


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_flattened_cosine_is_signed_and_scale_free(scale):
  stack = gaussian(4, 5, 3)
  stack[1] -= 0.9 * stack[0]
  wanted = [frobenius_cosine(stack[i], stack[i + 1]) for i in range(3)]
  assert wanted[0] < -0.5
  stack[2] *= np.float32(scale)
  found = flattened_cosine(jnp.asarray(stack))
  np.testing.assert_allclose(found, wanted, atol=1e-6)
  np.testing.assert_allclose(
    flattened_cosine(jnp.stack([stack[0], 2 * stack[0], -stack[0]])),
    [1, -1],
    rtol=1e-6,
  )


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_flattened_cosine_of_a_zero_or_bad_matrix(bad):
  stack = gaussian(2, 5, 5, 3)
  clean = np.asarray(flattened_cosine(jnp.asarray(stack)))
  stack[1, 1] = bad
  found = np.asarray(flattened_cosine(jnp.asarray(stack)))
  np.testing.assert_array_equal(np.isnan(found[1]), [True, True, False, False])
  np.testing.assert_array_equal(found[0], clean[0])
  np.testing.assert_array_equal(found[1, 2:], clean[1, 2:])


def test_spectral_dominance():
  update = jnp.asarray([[3.0, 1.0, 0.0], [1.0, np.nan, 1.0]])
  start = jnp.asarray([[2.0, 0.0, 5.0], [np.nan, 1.0, 4.0]])
  wanted = [[1.5, np.nan, 0.0], [np.nan, np.nan, 0.25]]
  np.testing.assert_array_equal(spectral_dominance(update, start), wanted)


def test_frobenius_dominance():
  """Per layer and seed, at any scale; 0, zero and NaN matrices among them."""
  update, start = gaussian(2, 6, 4, 3), gaussian(2, 6, 4, 3, seed=1)
  norm = functools.partial(np.linalg.norm, axis=(-1, -2))
  wanted = norm(update) / norm(start)
  update[0] *= np.float32(1e-30)
  start[0] *= np.float32(1e-30)
  update[1, 1], wanted[1, 1] = 0, 0
  update[1, 2, 0, 0], wanted[1, 2] = np.nan, np.nan
  start[1, 3], wanted[1, 3] = 0, np.nan
  start[1, 4, 1, 2], wanted[1, 4] = np.nan, np.nan
  found = frobenius_dominance(jnp.asarray(update), jnp.asarray(start))
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_nothing_gained_over_nothing_is_not_defined():
  nothing = jnp.zeros((1, 2, 2))
  assert np.isnan(frobenius_dominance(nothing, nothing)).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_measured_in_float32(dtype):
  stack = jnp.asarray(gapped(3, 6, 4)).astype(dtype)
  other = jnp.asarray(gapped(3, 6, 4, seed=1)).astype(dtype)
  wide, wide_other = stack.astype(jnp.float32), other.astype(jnp.float32)
  flat = flattened_cosine(stack)
  assert flat.dtype == jnp.float32
  np.testing.assert_array_equal(flat, flattened_cosine(wide))
  dominance = frobenius_dominance(stack, other)
  assert dominance.dtype == jnp.float32
  np.testing.assert_array_equal(
    dominance, frobenius_dominance(wide, wide_other)
  )
  found = probe({"weights": stack, "gradients": other})
  wanted = probe({"weights": wide, "gradients": wide_other})
  assert {x.dtype for x in found.values()} == {jnp.dtype(jnp.float32)}
  jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.fixture(scope="module")
def stacks():
  """Three stacks of their own scales; one layer of each is degenerate."""
  weights, updates = gapped(6, 7, 5, seed=1), 1e5 * gapped(6, 7, 5, seed=3)
  gradients = 1e-12 * gapped(6, 7, 5, seed=2)
  weights[0] = np.eye(7, 5)
  gradients[2] = 0
  updates[4, 0, 0] = np.nan
  named = {"weights": weights, "gradients": gradients, "updates": updates}
  return {name: jnp.asarray(x, jnp.float32) for name, x in named.items()}


VALUES = ("cos_input", "cos_output", "flattened_cosine")


def test_stack_probe_is_the_single_functions(stacks):
  found = probe(stacks)
  names = [*VALUES, "gap", "sigma_1", "defined"]
  names += [f"{value}_mean" for value in VALUES]
  assert set(found) == {f"{stack}/{n}" for stack in stacks for n in names}
  for name, stack in stacks.items():
    one = adjacent(stack)
    wanted = {
      "cos_input": one.cos_input,
      "cos_output": one.cos_output,
      "gap": one.gap,
      "flattened_cosine": flattened_cosine(stack),
      "sigma_1": triplets(stack, 2).values[:, 0],
    }
    for key, value in wanted.items():
      got = found[f"{name}/{key}"]
      np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ("name", "defined", "flattened"),
  [("weights", 4, 5), ("gradients", 3, 3), ("updates", 3, 3)],
)
def test_means_are_over_the_defined_pairs(stacks, name, defined, flattened):
  found = {k: np.asarray(v) for k, v in probe(stacks).items()}
  for value in VALUES:
    pairs = found[f"{name}/{value}"]
    kept = pairs[np.isfinite(pairs)]
    assert len(kept) == (flattened if value == "flattened_cosine" else defined)
    mean = found[f"{name}/{value}_mean"]
    np.testing.assert_allclose(mean, kept.mean(), rtol=1e-5)
  np.testing.assert_allclose(found[f"{name}/defined"], defined / 5)


def test_nothing_defined_is_a_mean_of_nan():
  found = probe({"updates": jnp.zeros((3, 4, 4))})
  assert found["updates/defined"] == 0
  for value in VALUES:
    assert np.isnan(found[f"updates/{value}_mean"])


def test_seeds_one_after_the_other_are_each_seed():
  """As the runs do it: one compiled loop over seeds."""
  stack = jnp.asarray(gapped(6, 5, 4).reshape(2, 3, 5, 4))
  together = jax.jit(lambda s: jax.lax.map(stack_probe, s))({"weights": stack})
  for seed in range(2):
    one = probe({"weights": stack[seed]})
    for key, value in one.items():
      np.testing.assert_allclose(together[key][seed], value, atol=1e-5)

"""Alignment over the whole spectrum, against full Gram matrices in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import Triplets
from geom.probes.alignment import (
  centred_alignment,
  effective_rank,
  matched_alignment,
)

SIDES = ("input", "output")
TALL, SQUARE, WIDE = (12, 7), (9, 9), (7, 12)
SHAPES = [TALL, SQUARE, WIDE]
centred = jax.jit(centred_alignment, static_argnums=1)
matched = jax.jit(matched_alignment, static_argnums=1)
rank = jax.jit(effective_rank)


def gaussian(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def orthonormal(m, n, seed=0):
  return np.linalg.qr(gaussian(m, n, seed=seed))[0]


def rotation(n, seed=0):
  return orthonormal(n, n, seed)


def numpy_centred(stack, side):
  a = stack.astype(np.float64)
  a = np.swapaxes(a, -1, -2) if side == "output" else a
  gram = a @ np.swapaxes(a, -1, -2)
  gram /= np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
  gram -= np.eye(gram.shape[-1]) / gram.shape[-1]
  gram /= np.linalg.norm(gram, axis=(-1, -2), keepdims=True)
  return np.sum(gram[..., :-1, :, :] * gram[..., 1:, :, :], axis=(-1, -2))


def correlated(layers, m, n):
  """Neighbours that share a part, some of it."""
  return gaussian(layers, m, n) + 2 * gaussian(1, m, n, seed=1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", SIDES)
def test_centred_is_the_cosine_of_centred_gram_matrices(side, shape):
  for stack in (gaussian(5, *shape), correlated(5, *shape)):
    wanted = numpy_centred(stack, side)
    np.testing.assert_allclose(centred(stack, side), wanted, atol=1e-5)


@pytest.mark.parametrize("side", SIDES)
def test_centred_of_seeds(side):
  stack = gaussian(2, 3, *TALL)
  found = centred(stack, side)
  assert found.shape == (2, 2)
  np.testing.assert_allclose(found, numpy_centred(stack, side), atol=1e-5)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", [(24, 10), (16, 16), (10, 24)])
def test_centred_is_nothing_by_chance(shape, side):
  found = np.asarray(centred(gaussian(200, *shape), side))
  assert found.shape == (199,)
  assert abs(found.mean()) < 4 * found.std() / np.sqrt(199) < 0.06


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", SHAPES)
def test_centred_is_one_for_the_same_layer(shape, side):
  """And for it scaled, and with its other side turned."""
  a = gaussian(*shape)
  n = shape[1] if side == "input" else shape[0]
  turn = rotation(n)
  turned = a @ turn if side == "input" else turn @ a
  stack = np.stack([a, 1e-30 * a, -1e30 * a, 1e-30 * turned, a])
  found = centred(stack.astype(np.float32), side)
  np.testing.assert_allclose(found, 1, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_centred_does_not_survive_a_turn_of_its_own_side(shape):
  a = gaussian(*shape)
  stack = np.stack([a, rotation(shape[0]) @ a])
  assert centred(stack, "input")[0] < 0.7


def test_centred_sees_what_is_opposite():
  """Energy where the neighbour has least."""
  a = np.diag([2, 1.0]).astype(np.float32)
  stack = np.stack([a, a[::-1, ::-1]])
  for side in SIDES:
    np.testing.assert_allclose(centred(stack, side), -1, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
def test_centred_of_a_bad_layer(bad, side):
  stack = gaussian(5, *TALL)
  clean = np.asarray(centred(stack, side))
  stack[1] = bad
  found = np.asarray(centred(stack, side))
  np.testing.assert_array_equal(np.isnan(found), [1, 1, 0, 0])
  np.testing.assert_allclose(found[2:], clean[2:], atol=1e-6)


@pytest.mark.parametrize(("m", "n"), [(200, 120), (120, 120), (7, 12)])
def test_orthogonal_layers_are_defined_on_the_longer_side_only(m, n):
  """Their Gram matrix is the identity on the other, but for rounding."""
  stack = gaussian(5, m, n)
  stack[1] = orthonormal(m, n) if m >= n else orthonormal(n, m).T
  for side, d in (("input", m), ("output", n)):
    found = np.asarray(centred(stack, side))
    spoilt = [1, 1, 0, 0] if d == min(m, n) else [0] * 4
    np.testing.assert_array_equal(np.isnan(found), spoilt)
    wanted = numpy_centred(stack, side)
    kept = np.isfinite(found)
    np.testing.assert_allclose(found[kept], wanted[kept], atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 256), (256, 64)])
def test_two_orthogonal_layers_on_the_longer_side(shape):
  """Chance of random subspaces; 1 of the same one."""
  frames = [orthonormal(256, 64, seed) for seed in range(2)]
  frames.append(frames[1] @ rotation(64))
  stack = np.stack(frames)
  if shape[0] < shape[1]:
    stack = np.swapaxes(stack, -1, -2)
  side = "input" if shape[0] > shape[1] else "output"
  found = np.asarray(centred(stack, side))
  np.testing.assert_allclose(found, numpy_centred(stack, side), atol=1e-4)
  np.testing.assert_allclose(found, [0, 1], atol=0.05)


def test_centred_floor():
  """A Gram matrix less its mean counts from a thousandth of the whole."""
  for share, defined in ((0.9e-3, False), (1.1e-3, True)):
    change = np.array([1, -1, 0, 0]) * share * np.sqrt(2)
    layer = np.diag(np.sqrt(1 + change)).astype(np.float32)
    for side in SIDES:
      found = centred(np.stack([layer, layer]), side)
      assert np.isfinite(found[0]) == defined


def test_a_small_centred_part_is_not_a_rounded_difference():
  stack = np.stack([rotation(24, seed) for seed in range(3)])
  shared = np.diag(np.sqrt(1 + 0.01 * np.random.default_rng(0).random(24)))
  stack = (shared @ stack).astype(np.float32)
  wanted = numpy_centred(stack, "input")
  np.testing.assert_allclose(wanted, 1, atol=1e-3)
  np.testing.assert_allclose(centred(stack, "input"), wanted, atol=1e-3)


def test_no_gram_matrix_is_of_the_longer_side():
  for shape, side in ((TALL, "input"), (WIDE, "output")):
    lowered = centred.lower(jnp.ones((3, *shape)), side).as_text()
    assert "x7x7xf32" in lowered and "x12x12xf32" not in lowered


def test_half_precision_is_measured_in_float32():
  stack = jnp.asarray(gaussian(3, *TALL)).astype(jnp.bfloat16)
  for side in SIDES:
    found = centred(stack, side)
    assert found.dtype == jnp.float32
    wanted = centred(stack.astype(jnp.float32), side)
    np.testing.assert_array_equal(found, wanted)


def triplets(layers=4, m=8, n=6, values=(6, 5, 4, 3, 2, 1), seed=0):
  values = np.broadcast_to(np.asarray(values, np.float32), (layers, n))
  frames = [
    [orthonormal(d, n, (seed, i, d, side)) for i in range(layers)]
    for side, d in enumerate((m, n))
  ]
  left, right = jnp.asarray(frames[0]), jnp.asarray(frames[1])
  return Triplets(left, jnp.asarray(values), right)


def numpy_matched(t, side):
  v = np.asarray(t.left if side == "input" else t.right, np.float64)
  energy = np.asarray(t.values, np.float64) ** 2
  w = energy / energy.sum(-1, keepdims=True)
  cos = np.abs(np.einsum("pdk,pdk->pk", v[:-1], v[1:]))
  return np.sum((w[:-1] + w[1:]) / 2 * cos, axis=-1)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("side", SIDES)
def test_matched_is_that_of_numpy(side, scale):
  values = np.array([[6, 5, 4, 3, 2, 1], [9, 5, 2, 1, 0.5, 0.2]] * 2)
  t = triplets(values=values)
  wanted = numpy_matched(t, side)
  assert wanted.min() > 0.05 and wanted.max() < 0.9
  scaled = t._replace(values=t.values * jnp.float32(scale))
  found = matched(scaled, side)
  np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_matched_of_the_same_and_of_orthogonal_layers():
  """Whatever the signs."""
  e = np.eye(4, dtype=np.float32)
  left = np.stack([e[:, :2], e[:, 1::-1], e[:, 2:], -e[:, 2:]])
  right = np.stack([e[:2, :2]] * 4)
  t = Triplets(*map(jnp.asarray, (left, np.float32([[2, 1]] * 4), right)))
  np.testing.assert_allclose(matched(t, "input"), [0, 0, 1])
  np.testing.assert_allclose(matched(t, "output"), [1, 1, 1])


def test_matched_with_equal_values():
  """NaN if they have much energy; else they are left out."""
  values = np.array([[6, 5, 4, 3, 2, 1]] * 5, np.float32)
  values[1, 1:3] = 5  # Much.
  values[3, 4:] = 0.2  # Little.
  found = matched(triplets(5, values=values), "input")
  np.testing.assert_array_equal(np.isnan(found), [1, 1, 0, 0])
  values = np.array([[10, 8, 1, 0.5, 0.3, 0.2]] * 3, np.float32)
  values[1, 3:5] = 0.5
  t = triplets(3, values=values)
  found = matched(t, "input")
  v = np.asarray(t.left, np.float64)
  w = values**2 / np.sum(values**2, axis=-1, keepdims=True)
  terms = (w[:-1] + w[1:]) / 2 * np.abs(np.einsum("pdk,pdk->pk", v[:-1], v[1:]))
  there = [0, 1, 2, 5]
  expected = terms[:, there].sum(-1) / ((w[:-1] + w[1:])[:, there].sum(-1) / 2)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  assert np.all(terms[:, 3:5].sum(-1) > 1e-5)


def test_matched_leaves_out_ten_percent():
  """Of the mean of both layers' energies."""
  for share, defined in ((0.09, True), (0.11, False)):
    equal = np.sqrt(share / 2 / (1 - share))
    pair = [np.sqrt(1 - 1e-4), 1e-2]  # The last has its own tiny energy.
    values = np.array([[pair[0], equal, equal, 1e-3]] * 2, np.float32)
    t = triplets(2, 5, 4, values)
    assert np.isfinite(matched(t, "input")[0]) == defined


def test_matched_of_a_zero_or_nan_layer():
  values = np.array([[6, 5, 4, 3, 2, 1]] * 5, np.float32)
  for bad in (0, np.nan):
    values[1] = bad
    found = matched(triplets(5, values=values), "output")
    np.testing.assert_array_equal(np.isnan(found), [1, 1, 0, 0])


def test_another_side():
  with pytest.raises(ValueError, match="'left' is neither input nor output"):
    centred_alignment(jnp.ones((2, *TALL)), "left")
  with pytest.raises(ValueError, match="'left' is neither input nor output"):
    matched(triplets(), "left")


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_effective_rank(scale):
  values = np.array(
    [[2, 0, 0, 0], [1, 1, 1, 1], [3, 3, 0, 0], [0] * 4, [np.nan] * 4]
  )
  found = rank(jnp.asarray(values * scale, jnp.float32))
  np.testing.assert_allclose(found, [1, 4, 2, np.nan, np.nan], rtol=1e-5)


def test_effective_rank_is_the_exponential_of_the_entropy_of_energies():
  values = np.sort(np.random.default_rng(0).random((3, 2, 5)))[..., ::-1]
  p = values**2 / np.sum(values**2, axis=-1, keepdims=True)
  wanted = np.exp(-np.sum(p * np.log(p), axis=-1))
  found = rank(jnp.asarray(values, jnp.float32))
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_float32_on_every_device(shape):
  for side in SIDES:
    lowered = centred.lower(jnp.ones((3, *shape)), side).as_text()
    found = [line for line in lowered.split("\n") if "dot_general" in line]
    assert found
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in found)

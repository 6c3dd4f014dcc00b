"""Continuity of heads: slices, three ways to pair them, chance."""

import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import exact_triplets
from geom.probes.continuity import chance_cosine
from geom.probes.heads import chance_best, head_cosines, split

RNG = np.random.default_rng(0)


def test_slices_are_those_that_heads_use():
  q = jnp.asarray(RNG.normal(size=(2, 5, 6)), jnp.float32)
  heads = split(q, 3, "out")
  assert heads.shape == (2, 3, 5, 2)
  np.testing.assert_array_equal(heads[1, 2], q[1, :, 4:])
  o = jnp.swapaxes(q, 1, 2)
  np.testing.assert_array_equal(split(o, 3, "in")[1, 2], o[1, 4:])
  with pytest.raises(ValueError, match="4 heads do not divide"):
    split(q, 4, "out")
  with pytest.raises(ValueError, match="neither in nor out"):
    split(q, 3, "input")


def slices(directions, *, undefined=()):
  """Kernels `(layer, head, in, 2)` whose v1 are the directions given."""
  out = np.zeros((*np.shape(directions)[:2], 4, 2), np.float32)
  for layer, of in enumerate(directions):
    for head, v in enumerate(of):
      v = np.array(v, float)
      other = np.array([v[1], -v[0], 0, 0]) + np.array([0, 0, v[3], -v[2]])
      small = 1 if (layer, head) in undefined else 0.5
      out[layer, head] = np.stack([v, small * other], axis=1)
  return jnp.asarray(out)


A, B, C = np.eye(4)[0], np.eye(4)[2], np.array([0, 0.8, 0.6, 0])


def test_heads_that_swap_places_have_a_best_match():
  """Same direction in the other head: only `same` does not see it."""
  of = head_cosines(exact_triplets(slices([[A, B], [B, A]]), 2), "input")
  assert float(of["best"][0]) == pytest.approx(1)
  assert float(of["same"][0]) == pytest.approx(0, abs=1e-6)
  assert float(of["pairs"][0]) == pytest.approx(0.5)


@pytest.mark.parametrize("swap", [[0, 1], [1, 0]])
def test_numbering_of_heads_changes_two_of_three_not(swap):
  layers = [[A, C], [[C, B][i] for i in swap]]
  of = head_cosines(exact_triplets(slices(layers), 2), "input")
  # A.C = 0, A.B = 0, C.C = 1, C.B = .6
  assert float(of["pairs"][0]) == pytest.approx(0.4)
  assert float(of["best"][0]) == pytest.approx(0.5)
  assert float(of["same"][0]) == pytest.approx([0.3, 0.5][swap[0]])


def test_a_head_without_a_leading_vector_spoils_only_itself():
  stack = slices([[A, B], [A, B], [A, B]], undefined={(1, 1)})
  of = head_cosines(exact_triplets(stack, 2), "input")
  np.testing.assert_allclose(of["same"], [1, 1], atol=1e-6)
  # A to A, B to A.
  assert float(of["pairs"][0]) == pytest.approx(0.5)
  stack = slices([[A, B], [A, B]], undefined={(1, 0), (1, 1)})
  for cos in head_cosines(exact_triplets(stack, 2), "input").values():
    assert np.isnan(cos).all()


def test_output_side():
  stack = jnp.swapaxes(slices([[A, B], [B, A]]), 2, 3)
  of = head_cosines(exact_triplets(stack, 2), "output")
  assert float(of["best"][0]) == pytest.approx(1)


def test_chance_of_the_best_match():
  assert chance_best(64, 1) == pytest.approx(chance_cosine(64), rel=0.03)
  # In two dimensions |cos| of an angle uniform in [0, pi/2]; of two the
  # larger has the mean 8 / pi^2 (1 - ...) by integration.
  angle = (np.arange(20000) + 0.5) / 20000 * np.pi / 2
  cdf = 1 - np.sort(angle)[::-1] / (np.pi / 2)  # of cos, at cos(angle)
  cos = np.cos(np.sort(angle)[::-1])
  wanted = np.sum((cdf[1:] ** 2 - cdf[:-1] ** 2) * (cos[1:] + cos[:-1]) / 2)
  assert chance_best(2, 2) == pytest.approx(wanted, rel=0.02)
  assert chance_best(128, 8) > 2 * chance_cosine(128)
  assert chance_best(128, 8) == chance_best(128, 8)

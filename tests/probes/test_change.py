"""Transfer and drift of leading singular vectors, at planted angles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import Triplets
from geom.probes.change import rotation_drift, transfer

SIDES = ("input", "output")
transferred = jax.jit(transfer, static_argnums=2)
drift = jax.jit(rotation_drift, static_argnums=2)
FUNCTIONS = [transferred, drift]
ANGLES = np.array(
  [0, 1e-6, 1e-4, 1e-2, 0.7, 1.5, np.pi / 2 - 1e-4, np.pi / 2 - 1e-6]
)


def pair(angles, side, values=(2.0, 1.0), sign=1.0):
  """Two stacks whose leading vectors of one side are at given angles.

  On the other side they are orthogonal throughout.
  """
  layers = len(angles)
  own = np.zeros((2, layers, 5, 2))
  own[0, :, 0, 0], own[:, :, 4, 1] = 1, 1
  own[1, :, 0, 0], own[1, :, 1, 0] = np.cos(angles), np.sin(angles)
  own[1, :, :, 0] *= sign
  other = np.zeros((2, layers, 4, 2))
  other[0, :, 0, 0] = other[1, :, 1, 0] = other[:, :, 3, 1] = 1
  own, other = jnp.asarray(own, jnp.float32), jnp.asarray(other, jnp.float32)
  left, right = (own, other) if side == "input" else (other, own)
  s = jnp.asarray(np.broadcast_to(values, (layers, 2)), jnp.float32)
  return tuple(Triplets(left[i], s, right[i]) for i in range(2))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("side", SIDES)
def test_drift_is_the_angle(side, sign):
  """To rounding near 0 too, and the other side does not matter."""
  now, before = pair(ANGLES, side, sign=sign)
  for a, b in ((now, before), (before, now)):
    found = drift(a, b, side)
    np.testing.assert_allclose(found, ANGLES, rtol=1e-4, atol=1e-9)
  other = "output" if side == "input" else "input"
  np.testing.assert_allclose(drift(now, before, other), np.pi / 2, rtol=1e-5)


def test_drift_is_at_most_a_right_angle():
  now, before = pair(np.linspace(0, np.pi, 9), "input")
  found = drift(now, before, "input")
  wanted = np.pi / 2 - np.abs(np.linspace(0, np.pi, 9) - np.pi / 2)
  np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("side", SIDES)
def test_transfer_is_the_cosine(side, sign):
  weights, added = pair(ANGLES, side, sign=sign)
  found = transferred(weights, added, side)
  np.testing.assert_allclose(found, np.cos(ANGLES), atol=1e-6)
  other = "output" if side == "input" else "input"
  np.testing.assert_allclose(transferred(weights, added, other), 0, atol=1e-6)


def test_rounding_makes_no_cosine_above_one():
  weights, added = pair(np.zeros(2), "input")
  longer = weights._replace(left=weights.left * (1 + 1e-6))
  np.testing.assert_array_equal(transferred(longer, added, "input"), [1, 1])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
  "degenerate", [(1, 1), (0, 0), (np.nan, np.nan), (1, 1 - 1e-5)]
)
def test_not_defined_where_either_has_no_leading_vector(function, degenerate):
  one, two = pair(np.full(4, 0.3), "input")
  for scale in (1e-30, 1, 1e30):
    values = np.array([[2, 1.0]] * 4)
    values[1] = degenerate
    spoilt = jnp.asarray(values * scale, jnp.float32)
    other = jnp.asarray(np.roll(values, 1, axis=0), jnp.float32)
    found = function(
      one._replace(values=spoilt), two._replace(values=other), "input"
    )
    np.testing.assert_array_equal(np.isnan(found), [0, 1, 1, 0])
    assert np.all(np.asarray(found)[[0, 3]] > 0.2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rank_one_has_a_leading_vector(function):
  one, two = pair(np.array([0.3]), "output", values=(2.0, 0.0))
  assert np.isfinite(function(one, two, "output")).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_nan_vector_is_not_a_number(function):
  one, two = pair(np.full(3, 0.3), "input")
  one = one._replace(left=one.left.at[1].set(jnp.nan))
  found = function(one, two, "input")
  np.testing.assert_array_equal(np.isnan(found), [0, 1, 0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_of_several_batch_axes(function):
  one, two = pair(ANGLES, "input")
  grouped = jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), (one, two))
  found = function(*grouped, "input")
  assert found.shape == (2, 4)
  np.testing.assert_array_equal(found.ravel(), function(one, two, "input"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_another_side(function):
  with pytest.raises(ValueError, match="'left' is neither input nor output"):
    function(*pair(np.zeros(2), "input"), "left")

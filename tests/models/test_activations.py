"""geom.models.activations: which commute with rotations, and radial at 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.models.activations import NAMES, activation, radial

D = 6
# Radial computes |x|^2 in float32; around 1e-22 that is a denormal number.
TINY = [1e-30, *(10.0**-e for e in range(18, 25))]
HUGE = [1e15, 1e19, 1e25, 1e30]


def examples(*shape, seed=0):
  x = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(x, jnp.float32)


def rotation(d, seed=1):
  q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
  return jnp.asarray(q, jnp.float32)


def difference(name):
  """Largest entry of act(x R) - act(x) R."""
  act, x, r = activation(name, 2.0), examples(5, D), rotation(D)
  return float(jnp.abs(act(x @ r) - act(x) @ r).max())


@pytest.mark.parametrize("name", ["identity", "radial"])
def test_commutes_with_rotations(name):
  assert difference(name) < 1e-6


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_does_not_commute_with_rotations(name):
  assert difference(name) > 0.1


def test_names_are_those_of_the_functions():
  assert set(NAMES) == {"relu", "gelu", "silu", "identity", "radial"}
  x = examples(3, D)
  for name, same in {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "identity": lambda x: x,
    "radial": radial(0.7),
  }.items():
    np.testing.assert_array_equal(activation(name, 0.7)(x), same(x))


def test_an_unknown_name_is_named():
  with pytest.raises(ValueError, match="'rleu' is none of relu, gelu, silu, i"):
    activation("rleu", 1.0)


@pytest.mark.parametrize("radius", [0.5, 1.0, 10.0])
def test_radial_shrinks_the_norm_by_its_tanh(radius):
  x = np.asarray(examples(4, 3, D), np.float64)
  norm = np.linalg.norm(x, axis=-1, keepdims=True)
  wanted = x * np.tanh(norm / radius)
  got = radial(radius)(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_radial_is_nearly_the_identity_above_three_radii():
  x = jnp.asarray([0.0, 3.0, 4.0])
  np.testing.assert_allclose(radial(5 / 3)(x), x, rtol=5e-3)
  assert jnp.linalg.norm(radial(5.0)(x)) < 0.8 * 5  # tanh(1) = .76


@pytest.mark.parametrize("jacobian", [jax.jacrev, jax.jacfwd])
def test_radial_at_zero_is_zero_with_its_jacobian(jacobian):
  zero = jnp.zeros(D)
  np.testing.assert_array_equal(radial(1.0)(zero), 0)
  np.testing.assert_array_equal(jacobian(radial(1.0))(zero), 0)


def test_a_zero_example_leaves_the_others_alone():
  x = examples(3, D).at[1].set(0)
  np.testing.assert_array_equal(radial(1.0)(x)[1], 0)
  kept = jnp.array([0, 2])
  np.testing.assert_allclose(
    radial(1.0)(x)[kept], radial(1.0)(x[kept]), rtol=1e-6
  )


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
def test_radial_is_finite_at_any_size(radius):
  act = radial(radius)
  grad = jax.jit(jax.vmap(jax.jacrev(act)))
  direction = examples(D)
  tiny = jnp.asarray(TINY)[:, None] * direction[None]
  huge = jnp.asarray(HUGE)[:, None] * direction[None]
  assert jnp.abs(act(tiny)).max() < 1e-16
  assert jnp.abs(grad(tiny)).max() < 1e-15
  np.testing.assert_allclose(act(huge), huge, rtol=1e-6)
  eye = np.broadcast_to(np.eye(D), (len(HUGE), D, D))
  np.testing.assert_allclose(grad(huge), eye, atol=1e-5)


def test_jacobian_of_radial():
  """tanh(n) I + x x.T (1 - tanh(n)^2) / n, of radius 1."""
  x = np.array([0.3, -0.4, 1.2])
  n = np.linalg.norm(x)
  t = np.tanh(n)
  wanted = t * np.eye(3) + np.outer(x, x) * (1 - t**2) / n
  got = jax.jacrev(radial(1.0))(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(got, wanted, atol=1e-6)

"""The chunked cross-entropy against optax's, value and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.train.cross_entropy import cross_entropy

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(10, 4)), jnp.float32)
TABLE = jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
TARGETS = jnp.asarray(RNG.integers(0, 6, 10))


def plain(x, table):
  losses = optax.softmax_cross_entropy_with_integer_labels(x @ table.T, TARGETS)
  return jnp.mean(losses)


@pytest.mark.parametrize("chunk", [None, 1, 3, 5, 10, 99])
def test_value_and_gradients_are_those_of_optax(chunk):
  def mine(x, table):
    # A factor, so that what comes back is not one.
    return 3 * cross_entropy(x, table, TARGETS, chunk=chunk)

  value, grads = jax.value_and_grad(mine, argnums=(0, 1))(X, TABLE)
  wanted, wanted_grads = jax.value_and_grad(
    lambda *a: 3 * plain(*a), argnums=(0, 1)
  )(X, TABLE)
  assert float(value) == pytest.approx(float(wanted), rel=1e-6)
  alone = cross_entropy(X, TABLE, TARGETS, chunk=chunk)
  assert float(alone) == pytest.approx(float(wanted) / 3, rel=1e-6)
  for a, b in zip(grads, wanted_grads, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_large_logits_stay_finite():
  value, grads = jax.value_and_grad(
    lambda x: cross_entropy(x, TABLE, TARGETS, chunk=4)
  )(1e4 * X)
  assert np.isfinite(value)
  assert np.all(np.isfinite(grads))


def test_bfloat16_features_give_a_float32_table_a_float32_gradient():
  x = X.astype(jnp.bfloat16)
  d_x, d_table = jax.grad(
    lambda x, t: cross_entropy(x, t, TARGETS, chunk=4), argnums=(0, 1)
  )(x, TABLE)
  assert (d_x.dtype, d_table.dtype) == (jnp.bfloat16, jnp.float32)
  wanted = jax.grad(plain, argnums=1)(X, TABLE)
  np.testing.assert_allclose(d_table, wanted, atol=5e-3)


def test_a_gradient_of_bfloat16_features_is_summed_in_float32():
  x = X.astype(jnp.bfloat16)
  found = jax.grad(lambda t: cross_entropy(x, t, TARGETS))(TABLE)
  assert np.any(found.astype(jnp.bfloat16).astype(jnp.float32) != found)


def test_no_more_than_a_chunk_of_logits_exists():
  def program(chunk):
    loss = lambda x, t: cross_entropy(x, t, TARGETS, chunk=chunk)  # noqa: E731
    return str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(X, TABLE))

  assert "f32[10,6]" in program(None) and "f32[10,6]" in program(99)
  assert "f32[10,6]" not in program(3) and "f32[3,6]" in program(3)

"""The pure step: chunks, seeds, failure."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.train.state import HEALTHY, new_state
from geom.train.step import make_chunk, make_step, over_seeds

TX = optax.adam(0.1)


def loss(params, batch):
  error = batch["x"] @ params["w"] - batch["y"]
  return jnp.mean(error**2), {"largest": jnp.max(jnp.abs(error))}


def fresh(seed: int = 0):
  return new_state({"w": jax.random.normal(jax.random.key(seed), (4,))}, TX, {})


def data(*shape: int):
  rng = np.random.default_rng(7)
  return {
    "x": rng.normal(size=(*shape, 8, 4)).astype(np.float32),
    "y": rng.normal(size=(*shape, 8)).astype(np.float32),
  }


def at(batches, *i: int):
  return jax.tree.map(lambda x: x[i], batches)


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_step_is_the_optimizer_s_update():
  state, batch = fresh(), at(data(1), 0)
  new, metrics = make_step(loss, TX)(state, batch)
  (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(
    state.params, batch
  )
  updates, opt_state = TX.update(grads, state.opt_state, state.params)
  assert_same(new.params, optax.apply_updates(state.params, updates))
  assert_same(new.opt_state, opt_state)
  assert (int(new.step), int(new.failed_at)) == (1, HEALTHY)
  assert metrics["loss"] == value
  assert metrics["largest"] == aux["largest"]
  norm = np.linalg.norm(grads["w"])
  np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-6)


@pytest.mark.parametrize("cuts", [[6], [1] * 6, [4, 2], [2, 3, 1]])
def test_chunks_of_any_length_give_the_same_bits(cuts):
  batches, step = data(6), make_step(loss, TX)
  chunk = jax.jit(make_chunk(step, 6))
  state, losses, i = fresh(), [], 0
  for n in cuts:
    rows = np.minimum(i + np.arange(6), 5)
    state, metrics = chunk(state, at(batches, rows), np.int32(n))
    losses += list(metrics["loss"][:n])
    assert np.isnan(metrics["loss"][n:]).all()
    i += n
  whole, expected = chunk(fresh(), batches, np.int32(6))
  assert_same(state, whole)
  np.testing.assert_array_equal(losses, expected["loss"])
  assert int(state.step) == 6


def test_a_chunk_is_never_longer_than_its_batches():
  chunk = jax.jit(make_chunk(make_step(loss, TX), 4))
  state, _ = chunk(fresh(), data(4), np.int32(9))
  assert int(state.step) == 4


def test_a_second_chunk_of_another_length_compiles_nothing():
  chunk = jax.jit(make_chunk(make_step(loss, TX), 4))
  state, _ = chunk(fresh(), data(4), np.int32(4))
  chunk(state, data(4), np.int32(1))
  assert chunk._cache_size() == 1


def test_seeds_together_are_bitwise_seeds_alone():
  chunk = jax.jit(over_seeds(make_chunk(make_step(loss, TX), 5)))

  def trained(seeds):
    states = jax.tree.map(lambda *x: jnp.stack(x), *map(fresh, seeds))
    batches = jax.tree.map(lambda x: x[np.asarray(seeds)], data(3, 5))
    return chunk(states, batches, np.int32(5))

  together = trained([0, 1, 2])
  for i in range(3):
    assert_same(at(together, slice(i, i + 1)), trained([i]))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_a_step_that_is_not_finite_leaves_the_state_before_it(poison):
  batches = data(5)
  batches["y"][2] = poison  # The third step; 1e38 overflows when squared.
  step = make_step(loss, TX)
  chunk = jax.jit(make_chunk(step, 5))
  state, metrics = chunk(fresh(), batches, np.int32(5))
  before, _ = chunk(fresh(), batches, np.int32(2))
  assert (int(state.step), int(state.failed_at)) == (2, 3)
  assert_same(state.params, before.params)
  assert_same(state.opt_state, before.opt_state)
  assert not np.isfinite(metrics["loss"][2])
  # And it stays so, though the batches that follow are sound.
  later, _ = chunk(state, data(5), np.int32(5))
  assert_same(later, state)


def test_a_gradient_that_is_not_finite_counts_though_the_loss_is():
  def rooted(params, batch):
    return jnp.sqrt(jnp.sum(params["w"] ** 2)), {}

  state = new_state({"w": jnp.zeros(4)}, TX, {})
  state, metrics = make_step(rooted, TX)(state, at(data(1), 0))
  assert np.isfinite(metrics["loss"])
  assert int(state.failed_at) == 1
  np.testing.assert_array_equal(state.params["w"], 0)

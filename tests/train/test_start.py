"""The states at step 0, and what moves them before it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from geom.train.start import start_states

SEEDS = (3, 5)


def init(key):
  return {"w": jax.random.normal(key, (4,))}


def twice(params):
  assert params["w"].shape == (4,)  # One seed at a time.
  assert not isinstance(params["w"], jax.core.Tracer)
  return {"w": 2 * params["w"]}, {"w": jnp.sum(params["w"])}


def start(**settings):
  tx = optax.trace(0.9)
  return start_states(init, tx, lambda p: p["w"] + 1, SEEDS, **settings)


def test_without_a_projection_they_are_what_init_gives():
  state, moved = start()
  assert moved == []
  for i, seed in enumerate(SEEDS):
    w = init(jax.random.key(seed))["w"]
    np.testing.assert_allclose(state.params["w"][i], w, rtol=1e-5)
    np.testing.assert_allclose(state.reference[i], w + 1, rtol=1e-5)
  np.testing.assert_array_equal(state.step, [0, 0])
  assert state.opt_state.trace["w"].shape == (2, 4)


def test_a_projection_comes_before_all_else():
  state, moved = start(project=twice)
  for i, seed in enumerate(SEEDS):
    w = init(jax.random.key(seed))["w"]
    np.testing.assert_allclose(state.params["w"][i], 2 * w, rtol=1e-5)
    np.testing.assert_allclose(state.reference[i], 2 * w + 1, rtol=1e-5)
    np.testing.assert_allclose(moved[i]["w"], jnp.sum(w), rtol=1e-5)

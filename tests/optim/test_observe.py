"""Links that remember and change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from geom.optim.observe import last, seen, sum_of

PARAMS = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0], jnp.bfloat16)}


def gradients(step):
  scale = 1.0 + step
  return {"a": scale * jnp.ones(2), "b": jnp.full(1, scale, jnp.bfloat16)}


def run(tx, n=3):
  state, given = tx.init(PARAMS), []
  for i in range(n):
    updates, state = tx.update(gradients(i), state, PARAMS)
    given.append(updates)
  return state, given


def test_the_chain_gives_the_same_updates():
  observed = optax.chain(sum_of("g"), optax.adam(0.1), last("u"))
  for a, b in zip(run(observed)[1], run(optax.adam(0.1))[1], strict=True):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_sum_of_gradients_and_last_update():
  tx = optax.chain(sum_of("g"), optax.sgd(0.5), last("u"))
  state, given = run(tx)
  found = seen(state)
  np.testing.assert_array_equal(found["g"]["a"], [6.0, 6.0])  # 1 + 2 + 3
  jax.tree.map(np.testing.assert_array_equal, found["u"], given[-1])


def test_before_the_first_update_all_is_zero():
  found = seen(optax.chain(sum_of("g"), last("u")).init(PARAMS))
  assert list(found) == ["g", "u"]
  jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), found)


def test_sums_are_float32_though_gradients_are_not():
  state, _ = run(sum_of("g"))
  assert seen(state)["g"]["b"].dtype == jnp.float32


def test_only_what_is_selected_is_kept():
  tx = optax.chain(
    sum_of("g", lambda tree: tree["a"]), last("u", lambda tree: tree["b"])
  )
  found = seen(run(tx)[0])
  np.testing.assert_array_equal(found["g"], [6.0, 6.0])
  np.testing.assert_array_equal(found["u"], [3.0])


def test_found_inside_other_transformations():
  tx = optax.MultiSteps(optax.chain(last("u"), optax.adam(0.1)), 1)
  state, _ = run(tx)
  assert list(seen(state)) == ["u"]
  assert seen(optax.adam(0.1).init(PARAMS)) == {}

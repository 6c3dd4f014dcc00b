"""The loss along orbits, as a measure of a training state."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.models.resmlp import resmlp
from geom.optim import observe
from geom.probes import orbit
from geom.train.objectives import classification_loss
from geom.train.state import new_state
from geom.train.turning import LAST_STEP, make_orbit, rotations

D = 16
ANGLES = (0.1, 1.0)
BATCH = {
  "images": jnp.arange(8 * 12, dtype=jnp.uint8).reshape(8, 12) * 7,
  "labels": jnp.arange(8) % 5,
}


def measured(steps=1, links=True, **options):
  model = resmlp(width=D, depth=4, inputs=12, outputs=5, gain=0.9, **options)
  loss = partial(classification_loss, model)
  tx = optax.sgd(0.1)
  if links:
    tx = optax.chain(tx, observe.last(LAST_STEP))
  state = new_state(model.init(jax.random.key(0)), tx, {"kept": jnp.ones(3)})
  for _ in range(steps):
    grads = jax.grad(loss, has_aux=True)(state.params, BATCH)[0]
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = state._replace(params=params, opt_state=opt_state)
  of = make_orbit(
    lambda p: loss(p, BATCH)[0], "hidden", rotations(D, ANGLES, 2)
  )
  numbers, reference = jax.jit(of)(state)
  assert reference.keys() == {"kept"}
  return numbers, state, loss


@pytest.mark.parametrize(
  "options, stream, between",
  [
    ({"activation": "identity"}, True, False),
    ({"activation": "identity", "residual": False}, True, True),
    ({"activation": "relu"}, False, False),
    ({"activation": "relu", "residual": False}, False, False),
  ],
)
def test_flat_where_the_network_is_equivariant(options, stream, between):
  numbers, _, _ = measured(**options)
  for name, flat in (("stream", stream), ("between", between)):
    change = np.abs(numbers[f"orbit/{name}"])
    assert change.shape == (2,)
    assert change[1] < 1e-5 if flat else change[1] > 1e-4


def test_the_change_is_the_mean_over_the_generators():
  numbers, state, loss = measured(activation="relu")
  start = loss(state.params, BATCH)[0]
  changes = []
  for i in range(2):
    r = orbit.rotation(orbit.generator(jax.random.key(i), D), ANGLES[0])
    turned = orbit.turn_stream(state.params, r)
    changes.append(float(loss(turned, BATCH)[0] - start))
  assert changes[0] != pytest.approx(changes[1], rel=1e-3)
  assert numbers["orbit/stream"][0] == pytest.approx(
    np.mean(changes), rel=1e-3, abs=1e-6
  )


def test_the_last_step_of_gradient_descent_does_not_drift_where_it_is_flat():
  linear, _, _ = measured(activation="identity")
  relu, _, _ = measured(activation="relu")
  # The step was taken at the parameters before it: nearly these.
  assert linear["orbit/drift_share"] < 1e-4 < relu["orbit/drift_share"]


def test_before_a_step_and_without_the_link_there_is_no_share():
  numbers, _, _ = measured(steps=0)
  assert np.isnan(numbers["orbit/drift_share"])
  numbers, _, _ = measured(links=False)
  assert "orbit/drift_share" not in numbers and "orbit/stream" in numbers


def test_rotations_start_near_the_identity():
  turns = np.asarray(rotations(D, (1e-3, 0.5), 3))
  assert turns.shape == (3, 2, D, D)
  assert np.abs(turns[:, 0] - np.eye(D)).max() < 2e-3
  product = turns @ np.swapaxes(turns, -1, -2)
  np.testing.assert_allclose(product, np.broadcast_to(np.eye(D), turns.shape),
                             atol=1e-5)  # fmt: skip
  assert np.abs(turns[0] - turns[1]).max() > 0.01

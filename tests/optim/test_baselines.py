"""Plain optimizers by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.optim.baselines import NAMES, baseline

SETTINGS = {
  "adam": {"betas": (0.8, 0.95), "eps": 1e-6, "momentum": None},
  "sgd": {"betas": None, "eps": None, "momentum": 0.7},
}


def steps(tx, n=4):
  params = jnp.array([1.0, -2.0, 3.0])
  state = tx.init(params)
  for _ in range(n):
    updates, state = tx.update(params**3, state, params)
    params = optax.apply_updates(params, updates)
  return params


@pytest.mark.parametrize(
  "name, same",
  [
    ("adam", optax.adam(0.02, b1=0.8, b2=0.95, eps=1e-6)),
    ("sgd", optax.sgd(0.02, momentum=0.7)),
  ],
)
def test_is_optax_s_optimizer_with_those_numbers(name, same):
  found = baseline(name=name, lr=0.02, **SETTINGS[name])
  np.testing.assert_array_equal(steps(found), steps(same))


def test_sgd_without_momentum():
  settings = {**SETTINGS["sgd"], "momentum": None}
  found = baseline(name="sgd", lr=0.02, **settings)
  np.testing.assert_array_equal(steps(found), steps(optax.sgd(0.02)))
  assert len(jax.tree.leaves(found.init(jnp.ones(3)))) == 0


@pytest.mark.parametrize(
  "name, changes",
  [
    ("adam", {"betas": None}),
    ("adam", {"eps": None}),
    ("adam", {"momentum": 0.9}),
    ("sgd", {"betas": (0.9, 0.9)}),
    ("sgd", {"eps": 1e-8}),
    ("lion", {}),
  ],
)
def test_numbers_that_would_have_no_effect_are_refused(name, changes):
  settings = {**SETTINGS.get(name, SETTINGS["adam"]), **changes}
  with pytest.raises(ValueError, match=name):
    baseline(name=name, lr=0.1, **settings)


def test_every_name_is_there():
  for name in NAMES:
    baseline(name=name, lr=0.1, **SETTINGS[name])

"""Plain optimizers by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.optim.baselines import NAMES, baseline

NOTHING = {"betas": None, "eps": None, "momentum": None, "adam_lr": None}
SETTINGS = {
  "adam": {**NOTHING, "betas": (0.8, 0.95), "eps": 1e-6},
  "sgd": {**NOTHING, "momentum": 0.7},
  "sign": NOTHING,
  "muon": {**NOTHING, "momentum": 0.9, "betas": (0.8, 0.9), "adam_lr": 0.01},
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
    ("sign", optax.sign_sgd(0.02)),
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
    ("sign", {"momentum": 0.9}),
    ("muon", {"eps": 1e-8}),
    ("muon", {"adam_lr": None}),
    ("muon", {"momentum": None}),
    ("lion", {}),
  ],
)
def test_numbers_that_would_have_no_effect_are_refused(name, changes):
  settings = {**SETTINGS.get(name, SETTINGS["adam"]), **changes}
  with pytest.raises(ValueError, match=name):
    baseline(name=name, lr=0.1, **settings)


def test_every_name_is_there():
  assert set(NAMES) == set(SETTINGS)
  for name in NAMES:
    tx = baseline(name=name, lr=0.1, **SETTINGS[name])
    params = {"embed": {"kernel": jnp.ones((2, 3))}}
    updates, _ = tx.update(params, tx.init(params), params)
    assert (updates["embed"]["kernel"] < 0).all()


def test_muon_takes_each_kernel_of_a_stack_and_leaves_the_rest_to_adam():
  rng = np.random.default_rng(0)
  params = {
    "embed": {"kernel": jnp.ones((3, 6))},
    "hidden": {"kernel": jnp.ones((2, 6, 6)), "bias": jnp.ones((2, 6))},
    "head": {"kernel": jnp.ones((6, 2))},
  }
  grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), params)
  tx = baseline(name="muon", lr=0.02, **SETTINGS["muon"])
  updates, _ = tx.update(grads, tx.init(params), params)
  for update, grad in zip(
    updates["hidden"]["kernel"], grads["hidden"]["kernel"], strict=True
  ):
    u, _, vt = np.linalg.svd(grad)
    # Muon's five steps bring singular values to .7 to 1.2, not to 1.
    s = np.linalg.svd(update, compute_uv=False) / 0.02
    assert (s > 0.6).all() and (s < 1.3).all()
    cos = -np.sum(update * (u @ vt)) / np.linalg.norm(update) / np.sqrt(6)
    assert cos > 0.97
  adam = optax.nadam(0.01, b1=0.8, b2=0.9)
  rest, _ = adam.update(grads, adam.init(params), params)
  for path in (("embed", "kernel"), ("hidden", "bias"), ("head", "kernel")):
    np.testing.assert_allclose(
      updates[path[0]][path[1]], rest[path[0]][path[1]], rtol=1e-5
    )

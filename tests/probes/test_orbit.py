"""Rotations of the stream: flat for equivariant networks, not for others."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from geom.models.resmlp import resmlp
from geom.probes.orbit import (
  chance_share,
  drift_share,
  generator,
  rotation,
  turn_between,
  turn_stream,
)

D = 24
drift_share = jax.jit(drift_share, static_argnums=2)
turn_stream = jax.jit(turn_stream)
X = jax.random.normal(jax.random.key(3), (40, 12))


def network(**options):
  model = resmlp(
    width=D, depth=4, inputs=12, outputs=5, **{"gain": 0.5, **options}
  )
  return lambda params: model.apply(params, X)[0], model.init(jax.random.key(1))


def one_turned(params, layer, r):
  hidden = turn_between(params["hidden"]["kernel"], layer, r)
  return {**params, "hidden": {"kernel": hidden}}


def turned(angle, seed=2):
  return rotation(generator(jax.random.key(seed), D), angle)


def test_a_rotation_is_one():
  r = np.asarray(turned(0.7), np.float64)
  np.testing.assert_allclose(r @ r.T, np.eye(D), atol=1e-6)
  assert np.linalg.det(r) == pytest.approx(1, abs=1e-5)
  np.testing.assert_array_equal(turned(0.0), np.eye(D))
  np.testing.assert_allclose(turned(0.3) @ turned(0.4), turned(0.7), atol=1e-6)


def test_the_generator_turns_planes_by_about_one_radian():
  a = generator(jax.random.key(0), 256)
  np.testing.assert_array_equal(a, -a.T)
  fastest = np.abs(np.linalg.eigvals(np.asarray(a))).max()
  assert 0.9 < fastest < 1.1


@pytest.mark.parametrize(
  "options, flat",
  [
    ({"activation": "identity"}, True),
    ({"activation": "radial"}, True),
    ({"activation": "identity", "norm": "rmsnorm"}, True),
    ({"activation": "relu"}, False),
    ({"activation": "silu"}, False),
    ({"activation": "identity", "norm": "layernorm_free"}, False),
  ],
)
def test_the_network_is_flat_along_the_orbit_if_it_is_equivariant(
  options, flat
):
  out, params = network(**options)
  before = out(params)
  moved = np.abs(out(turn_stream(params, turned(0.8))) - before).max()
  scale = np.abs(before).max()
  assert (moved < 1e-4 * scale) == flat
  assert flat or moved > 0.02 * scale


@pytest.mark.parametrize(
  "activation, flat", [("identity", True), ("relu", False)]
)
def test_without_residual_one_frame_turns_alone(activation, flat):
  out, params = network(activation=activation, residual=False, gain=1.0)
  before = out(params)
  after = out(one_turned(params, 1, turned(0.8)))
  moved = np.abs(after - before).max() / np.abs(before).max()
  assert (moved < 1e-4) == flat


def test_with_residual_it_does_not():
  out, params = network(activation="identity")
  before = out(params)
  after = out(one_turned(params, 1, turned(0.8)))
  assert np.abs(after - before).max() > 1e-2 * np.abs(before).max()


@pytest.mark.parametrize("layer", [-1, 3, 9])
def test_the_last_layer_has_no_next_one(layer):
  hidden = jnp.zeros((4, D, D))
  with pytest.raises(ValueError, match="has no next one"):
    turn_between(hidden, layer, turned(0.1))


@pytest.mark.parametrize("form", ["post", "outer", "pre"])
def test_biases_turn_with_the_stream(form):
  out, params = network(activation="identity", bias=True, form=form)
  for name in ("embed", "hidden", "head"):
    bias = params[name]["bias"]
    params[name]["bias"] = jax.random.normal(jax.random.key(7), bias.shape)
  before = out(params)
  after = out(turn_stream(params, turned(0.8)))
  assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()


def random_like(params, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params
  )


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e15])
def test_a_step_along_the_orbit_is_all_drift(scale):
  _, params = network()
  moved = turn_stream(params, turned(1e-3))
  step = jax.tree.map(lambda a, b: scale * 1e3 * (a - b), moved, params)
  assert drift_share(params, step, D) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e12, 1e30])
def test_the_share_does_not_depend_on_the_scale_of_the_parameters(scale):
  _, params = network()
  step = random_like(params, 3)
  scaled = jax.tree.map(lambda x: x * np.float32(scale), params)
  wanted = float(drift_share(params, step, D))
  assert drift_share(scaled, step, D) == pytest.approx(wanted, rel=1e-3)
  zero = jax.tree.map(jnp.zeros_like, params)
  assert np.isnan(drift_share(zero, step, D))


def test_a_random_step_has_the_chance_share():
  _, params = network(bias=True)
  shares = [
    float(drift_share(params, random_like(params, seed), D))
    for seed in range(5)
  ]
  chance = chance_share(D, sum(x.size for x in jax.tree.leaves(params)))
  assert np.mean(shares) == pytest.approx(chance, rel=0.1)


def test_the_share_is_that_of_least_squares():
  """Against the projection by an explicit basis of the tangents."""
  _, params = network(gain=2.0)
  step = random_like(params, 1)
  flat = jax.flatten_util.ravel_pytree
  tangent = jax.jit(
    lambda a: flat(
      jax.jvp(lambda r: turn_stream(params, r), (jnp.eye(D),), (a,))[1]
    )[0]
  )
  basis = []
  for i in range(D):
    for j in range(i):
      a = np.zeros((D, D), np.float32)
      a[i, j], a[j, i] = 1, -1
      basis.append(np.asarray(tangent(a), np.float64))
  x = np.asarray(flat(step)[0], np.float64)
  q, _ = np.linalg.qr(np.stack(basis, axis=1))
  wanted = np.sum((q.T @ x) ** 2) / np.sum(x**2)
  assert drift_share(params, step, D) == pytest.approx(wanted, rel=2e-3)


def test_what_is_orthogonal_to_the_orbit_has_no_drift():
  _, params = network()
  # Scaling every kernel moves no frame: <embed, embed A> = tr(G A) = 0.
  assert drift_share(params, params, D) == pytest.approx(0, abs=1e-6)


def test_gradients_of_an_equivariant_network_have_no_drift():
  for activation, flat in (("identity", True), ("relu", False)):
    out, params = network(activation=activation)
    gradient = jax.grad(lambda p, out=out: jnp.sum(jnp.sin(out(p))))(params)
    share = float(drift_share(params, gradient, D))
    assert share < 1e-6 if flat else share > 1e-4


def test_of_a_zero_step_there_is_no_share():
  _, params = network()
  zero = jax.tree.map(jnp.zeros_like, params)
  assert np.isnan(drift_share(params, zero, D))

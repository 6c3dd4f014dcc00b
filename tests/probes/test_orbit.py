"""Rotations of the stream: flat for equivariant networks, not for others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.models.resmlp import resmlp
from geom.probes.orbit import (
  drift_share,
  generator,
  rotation,
  turn_between,
  turn_stream,
)

D = 24
X = jax.random.normal(jax.random.key(3), (40, 12))


def network(**options):
  model = resmlp(
    width=D, depth=4, inputs=12, outputs=5, **{"gain": 0.5, **options}
  )
  params = model.init(jax.random.key(1))
  kernels = [params[k]["kernel"] for k in ("embed", "hidden", "head")]

  def out(embed, hidden, head):
    trees = zip(("embed", "hidden", "head"), (embed, hidden, head), strict=True)
    return model.apply({k: {"kernel": x} for k, x in trees}, X)[0]

  return out, kernels


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
  out, kernels = network(**options)
  before = out(*kernels)
  moved = np.abs(out(*turn_stream(*kernels, turned(0.8))) - before).max()
  scale = np.abs(before).max()
  assert (moved < 1e-4 * scale) == flat
  assert flat or moved > 0.02 * scale


@pytest.mark.parametrize(
  "activation, flat", [("identity", True), ("relu", False)]
)
def test_without_residual_one_frame_turns_alone(activation, flat):
  out, (embed, hidden, head) = network(
    activation=activation, residual=False, gain=1.0
  )
  before = out(embed, hidden, head)
  after = out(embed, turn_between(hidden, 1, turned(0.8)), head)
  moved = np.abs(after - before).max() / np.abs(before).max()
  assert (moved < 1e-4) == flat


def test_with_residual_it_does_not():
  out, (embed, hidden, head) = network(activation="identity")
  before = out(embed, hidden, head)
  after = out(embed, turn_between(hidden, 1, turned(0.8)), head)
  assert np.abs(after - before).max() > 1e-2 * np.abs(before).max()


@pytest.mark.parametrize("layer", [-1, 3, 9])
def test_the_last_layer_has_no_next_one(layer):
  hidden = jnp.zeros((4, D, D))
  with pytest.raises(ValueError, match="has no next one"):
    turn_between(hidden, layer, turned(0.1))


def test_a_step_along_the_orbit_is_all_drift():
  _, kernels = network()
  moved = turn_stream(*kernels, turned(1e-3))
  step = [a - b for a, b in zip(moved, kernels, strict=True)]
  assert drift_share(*kernels, step) == pytest.approx(1, abs=1e-3)


def test_a_random_step_has_the_chance_share():
  _, kernels = network()
  shares = []
  for seed in range(5):
    rng = np.random.default_rng(seed)
    step = [jnp.asarray(rng.normal(size=k.shape), k.dtype) for k in kernels]
    shares.append(float(drift_share(*kernels, step)))
  chance = D * (D - 1) / 2 / sum(k.size for k in kernels)
  assert np.mean(shares) == pytest.approx(chance, rel=0.1)


def test_what_is_orthogonal_to_the_orbit_has_no_drift():
  _, (embed, hidden, head) = network()
  # Scaling every kernel moves no frame: <embed, embed A> = tr(G A) = 0.
  step = (embed, hidden, head)
  assert drift_share(embed, hidden, head, step) == pytest.approx(0, abs=1e-6)


def test_of_a_zero_step_there_is_no_share():
  _, kernels = network()
  assert np.isnan(drift_share(*kernels, [0 * k for k in kernels]))

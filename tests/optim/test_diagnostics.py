"""The numbers that are had on demand, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import manifolds
from geom.optim import diagnostics, solvers
from geom.optim import manifold_muon as mm

LENGTHS = np.array([3.0, 1.0, 0.5, 2.0])


@pytest.fixture(scope="module")
def found():
  """Of a stack of wide kernels: two are Q D, transposed, one is not."""
  rng = np.random.default_rng(0)
  q = np.linalg.qr(rng.standard_normal((3, 7, 4)))[0] * LENGTHS
  q[2] += 0.3 * rng.standard_normal((7, 4))
  w = {"x": jnp.asarray(np.swapaxes(q, -1, -2), jnp.float32)}
  g = jax.tree.map(
    lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), w
  )
  u = jax.tree.map(lambda x: 0.01 * x, g)
  out = diagnostics.diagnose(w, g, manifolds.dgram(), updates=u)
  return w["x"], g["x"], out["x"]


def test_weights_are_measured(found):
  w, _, out = found
  values = np.linalg.svd(w, compute_uv=False)
  np.testing.assert_allclose(out["sigma_max"], values[:, 0], rtol=1e-5)
  np.testing.assert_allclose(out["sigma_min"], values[:, -1], rtol=1e-5)
  np.testing.assert_allclose(
    out["column_norms"][:2], np.stack([LENGTHS, LENGTHS]), rtol=1e-5
  )
  assert np.all(out["distance"][:2] < 1e-6)
  assert 0.01 < out["distance"][2] < 0.5


def test_directions_are_those_of_the_solver(found):
  w, g, out = found
  a = solvers.solve(solvers.auto(), manifolds.dgram(), w, g)
  best = solvers.quality(manifolds.dgram(), w, g, a)
  for name, numbers in best._asdict().items():
    np.testing.assert_allclose(out[name], numbers, rtol=1e-4, atol=1e-5)
  assert np.all(out["tangency"][:2] < 0.025)


def test_updates_are_measured(found):
  _, g, out = found
  rms = np.sqrt(np.mean(np.square(0.01 * np.asarray(g)), axis=(1, 2)))
  np.testing.assert_allclose(out["update_rms"], rms, rtol=1e-5)


def test_without_updates_there_is_no_rms_and_parts_have_names():
  w = jax.random.normal(jax.random.key(0), (6, 10))
  fused = {"fused": (6, 4)}
  w, _ = mm.project({"qk": w}, manifolds.stiefel(), **fused)
  out = diagnostics.diagnose(w, w, manifolds.stiefel(), **fused)
  assert set(out) == {"qk[0]", "qk[1]"}
  assert all("update_rms" not in numbers for numbers in out.values())
  # The gradient is W itself, which is normal: there is no direction.
  for numbers in out.values():
    np.testing.assert_allclose(numbers["sigma_max"], 1.0, rtol=1e-5)
    assert numbers["spectral_norm"] == 0

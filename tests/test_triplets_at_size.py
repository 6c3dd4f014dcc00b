"""Triplets of stacks as large as models have them, against float64 LAPACK."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import linalg, refine

SPECTRA = ("gaussian", "planted", "flat", "deficient")
SQUARE = [((16, 256, 256), spectrum) for spectrum in SPECTRA]
CASES = SQUARE + [
  pytest.param(shape, spectrum, marks=pytest.mark.slow)
  for shape in ((12, 768, 3072), (12, 3072, 768))
  for spectrum in ("gaussian", "planted")
]
METHODS = {
  "gram": jax.jit(linalg.leading_triplets, static_argnums=1),
  "svd": jax.jit(linalg.exact_triplets, static_argnums=1),
}


@cache
def drawn(shape: tuple[int, ...], spectrum: str, seed: int = 0):
  """A float32 stack, and its float64 decomposition."""
  rng = np.random.default_rng(seed)
  stack = rng.standard_normal(shape)
  if spectrum != "gaussian":
    d = min(shape[1:])
    values = {
      "planted": np.linspace(1, 0.1, d) ** 2 + 2 * (np.arange(d) < 1),
      "flat": np.where(np.arange(d) < 1, 1.1, 1.0),
      "deficient": np.where(np.arange(d) < 5, 5.0 - np.arange(d), 0),
    }[spectrum]
    u, _, vt = np.linalg.svd(stack, full_matrices=False)
    stack = (u * values) @ vt
  stack = stack.astype(np.float32)
  exact = np.linalg.svd(stack.astype(np.float64), full_matrices=False)
  return stack, exact


def errors(found, exact):
  """1 - |cos| of the leading vectors to the true ones, where s1/s2 > 1.05."""
  u, s, vt = exact
  gapped = s[:, 0] > 1.05 * s[:, 1]
  left = np.abs(np.sum(np.asarray(found.left)[..., 0] * u[..., 0], axis=-1))
  right = np.abs(np.sum(np.asarray(found.right)[..., 0] * vt[:, 0], axis=-1))
  return np.abs(1 - np.stack([left, right]))[:, gapped], gapped.sum()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape, spectrum", CASES)
def test_leading_vectors_are_those_of_float64(shape, spectrum, method):
  stack, exact = drawn(shape, spectrum)
  found = METHODS[method](stack, 3)
  wrong, count = errors(found, exact)
  if spectrum != "gaussian":  # Whose gaps are small and rarely above 1.05.
    assert count == len(stack)
  assert not count or wrong.max() < 1e-5
  np.testing.assert_allclose(found.values, exact[1][:, :3], rtol=2e-5)


@pytest.mark.parametrize("shape, spectrum", CASES)
def test_warm_ones_are_too(shape, spectrum):
  """After a change that turns the leading vectors a little."""
  stack, _ = drawn(shape, spectrum)
  step = jax.jit(lambda a, warm: refine.refine_triplets(a, warm, 2))
  warm = step(stack, refine.cold(jnp.asarray(stack), 12)).warm
  rng = np.random.default_rng(1)
  for _ in range(3):
    noise = rng.standard_normal(shape).astype(np.float32)
    stack = stack + 1e-4 * stack.std() * noise
    found = step(stack, warm)
    warm = found.warm
  exact = np.linalg.svd(stack.astype(np.float64), full_matrices=False)
  wrong, count = errors(found.triplets, exact)
  assert not count or wrong.max() < 1e-5
  if spectrum in ("planted", "deficient"):
    assert not np.any(found.fell_back)


@pytest.mark.parametrize("shape, spectrum", CASES)
def test_a_stack_is_a_loop(shape, spectrum):
  stack, _ = drawn(shape, spectrum)
  found = METHODS["gram"](stack, 2)
  for i in (0, len(stack) - 1):
    alone = METHODS["gram"](stack[i], 2)
    for one, many in zip(alone, found, strict=True):
      np.testing.assert_allclose(
        np.abs(one), np.abs(many[i]), rtol=1e-4, atol=1e-5
      )

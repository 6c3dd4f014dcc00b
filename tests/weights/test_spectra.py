"""Spectra of kernels against LAPACK's SVD in float64."""

import numpy as np
import pytest

from geom.weights import measure, spectra

SHAPES = {"wide": (40, 90), "tall": (90, 40), "square": (60, 60)}


def planted(shape, s, seed=0):
  """A kernel with these singular values, float32."""
  rng = np.random.default_rng(seed)
  m, n = shape
  u, _ = np.linalg.qr(rng.standard_normal((m, min(shape))))
  v, _ = np.linalg.qr(rng.standard_normal((n, min(shape))))
  return np.float32(u * s @ v.T)


def decaying(n, power=1.0):
  return np.arange(1, n + 1) ** -power


def entropy_rank(s):
  share = s**2 / np.sum(s**2)
  return np.exp(-np.sum(share * np.log(share)))


@pytest.mark.parametrize("full_below", [1000, 0], ids=["full", "krylov"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_leading_vectors_values_and_norm(shape, full_below, monkeypatch):
  monkeypatch.setattr(spectra, "_SPARE", 4)  # Else small ones are full.
  s = decaying(min(shape), 0.5)
  kernel = planted(shape, s)
  found = measure.measure(kernel, 4, full_below=full_below)
  assert found.full == (full_below > 0)
  u, exact, vt = np.linalg.svd(np.float64(kernel))
  np.testing.assert_allclose(found.s, exact[:5], rtol=1e-5)
  for mine, theirs in ((found.input, u), (found.output, vt.T)):
    cosines = np.abs(np.sum(mine[:, :4] * theirs[:, :4], axis=0))
    np.testing.assert_allclose(cosines, 1, atol=1e-5)
  assert found.norm == pytest.approx(np.linalg.norm(kernel), rel=1e-5)
  assert found.rank == pytest.approx(
    entropy_rank(s), rel=1e-4 if full_below else 0.05
  )


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_gram_at_hand_changes_nothing(side):
  kernel = planted((50, 30), decaying(30))
  plain = measure.measure(kernel, 3, full_below=100)
  given = measure.measure(
    kernel, 3, full_below=100, residual_gram=measure.gram(kernel, side),
    side=side,
  )  # fmt: skip
  np.testing.assert_allclose(given.s, plain.s, rtol=1e-5)
  np.testing.assert_allclose(
    np.abs(np.sum(given.input * plain.input, axis=0)), 1, atol=1e-5
  )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_folded_vectors_are_those_of_gain_times_kernel(shape):
  kernel = planted(shape, decaying(min(shape)))
  gain = np.float32(np.random.default_rng(1).uniform(-2, 2, shape[0]))
  found = measure.measure(kernel, 2, full_below=100, gain=gain)
  u, s, vt = np.linalg.svd(np.float64(gain[:, None] * kernel))
  v1, u1, values = found.folded
  assert abs(v1 @ u[:, 0]) == pytest.approx(1, abs=1e-5)
  assert abs(u1 @ vt[0]) == pytest.approx(1, abs=1e-5)
  np.testing.assert_allclose(values, s[:2], rtol=1e-4)


def test_krylov_gives_its_residual_and_meets_its_tolerance():
  gram = measure.gram(planted((400, 400), decaying(400, 0.7)), "input")
  found = spectra.leading(gram, 16)
  exact = np.linalg.eigvalsh(np.float64(gram))[::-1][:16]
  np.testing.assert_allclose(found.values, exact, rtol=1e-4)
  off = gram @ found.vectors[:, 0] - found.values[0] * found.vectors[:, 0]
  assert np.linalg.norm(off) / found.values[0] <= 1e-5
  assert found.residual <= 1e-5
  np.testing.assert_allclose(
    found.vectors.T @ found.vectors, np.eye(16), atol=1e-5
  )


@pytest.mark.parametrize("power", [0.0, 0.3, 0.6, 1.0])
def test_the_estimated_rank_is_within_a_few_percent(power):
  n = 700
  s = decaying(n, power)
  gram = measure.gram(planted((n, n), s), "input")
  known = spectra.leading(gram, 16)
  estimate = spectra.estimated_rank(gram, known)
  assert estimate == pytest.approx(entropy_rank(s), rel=0.04)


def test_scale_leaves_the_shape_of_the_spectrum():
  kernel = planted((30, 20), decaying(20))
  for factor in (1e-30, 1e30):
    scaled = np.float32(kernel * np.float32(factor))
    size = measure.scale(scaled)
    found = measure.measure(scaled, 2, full_below=100)
    np.testing.assert_allclose(
      np.float64(found.s) * size / factor, decaying(20)[:3], rtol=1e-4
    )


@pytest.mark.parametrize("full_below", [100, 0])
def test_a_zero_kernel_has_no_direction_and_no_rank(full_below):
  kernel = np.zeros((150, 200), np.float32)
  assert measure.scale(kernel) == 1.0
  found = measure.measure(kernel, 4, full_below=full_below)
  assert np.isnan(found.rank) and not np.any(found.s)
  assert not measure.defined(float(found.s[0]), float(found.s[1]))


def test_equal_singular_values_have_no_leading_vector():
  found = measure.measure(np.eye(6, dtype=np.float32), 2, full_below=100)
  assert found.rank == pytest.approx(6, rel=1e-5)
  assert not measure.defined(float(found.s[0]), float(found.s[1]))
  assert measure.defined(1.0, 0.999)
  assert not measure.defined(1.0, 1 - 1e-5)


def test_fewer_directions_than_asked_for():
  found = measure.measure(planted((5, 3), decaying(3)), 8, full_below=100)
  assert found.input.shape == (5, 3) and found.output.shape == (3, 3)
  assert found.s.shape == (3,)


@pytest.mark.parametrize("rank", [600, 40, 5])
def test_krylov_where_the_span_is_invariant(rank):
  """Equal eigenvalues, and less of them than directions asked for."""
  gram = np.zeros((600, 600), np.float32)
  np.fill_diagonal(gram[:rank, :rank], 1)
  found = spectra.leading(gram, 65)
  exact = np.float32(np.arange(65) < rank)
  np.testing.assert_allclose(found.values, exact, atol=1e-5)
  assert found.residual <= 1e-5
  np.testing.assert_allclose(
    found.vectors.T @ found.vectors, np.eye(65), atol=1e-4
  )
  assert spectra.estimated_rank(gram, found) == pytest.approx(rank, rel=1e-2)


def test_gains_of_any_size_fold():
  kernel = planted((30, 20), decaying(20))
  gain = np.float32(np.random.default_rng(1).uniform(1, 2, 30))
  plain = measure.measure(kernel, 2, full_below=100, gain=gain).folded
  large = measure.measure(kernel, 2, full_below=100, gain=gain * 1e25).folded
  assert abs(plain[0] @ large[0]) == pytest.approx(1, abs=1e-5)
  assert np.isfinite(large[2]).all()

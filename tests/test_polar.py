"""geom.polar against numpy's float64 SVD."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.polar import (
  _value,
  clip_singular_values,
  floor_of,
  msign,
  polar,
  polar_express,
  worst_error,
)

SHAPES = [(24, 16), (16, 16), (12, 20)]
FLOORS = {4: 1e-3, 5: 1e-3, 6: 1e-3, 7: 3e-4, 8: 2e-4, 9: 1e-4, 10: 1e-4}
ERRORS = {4: 0.57, 5: 0.13, 6: 1.2e-3, 7: 3.2e-4, 8: 2e-8, 9: 2e-14, 10: 4e-16}
STEPS = list(ERRORS)
compiled = jax.jit(msign, static_argnames=("steps", "dtype"))
clipped = jax.jit(clip_singular_values, static_argnames="root_steps")


def spectra(n):
  i = np.arange(n)
  return {
    "well": np.linspace(1, 0.1, n),
    "flat": np.ones(n),
    "power": (i + 1.0) ** -1,
    "steep": (i + 1.0) ** -2,
    "exponential": np.exp(-i / (n / 5)),
    "low rank": np.where(i < n // 4, 1.0, 0),
    "rank one": np.where(i < 1, 1.0, 0),
  }


def planted(m, n, values, seed=0):
  """U, V of a matrix of given singular values, and it, in float64."""
  rng = np.random.default_rng(seed)
  u = np.linalg.qr(rng.standard_normal((m, len(values))))[0]
  v = np.linalg.qr(rng.standard_normal((n, len(values))))[0]
  return u, v, u * values @ v.T


def stack_of(shape):
  """A matrix of each spectrum."""
  made = [
    planted(*shape, s, i) for i, s in enumerate(spectra(min(shape)).values())
  ]
  return tuple(np.stack(part) for part in zip(*made, strict=True))


def f32(x):
  return jnp.asarray(x, jnp.float32)


def gaussian(*shape, seed=0):
  return f32(np.random.default_rng(seed).standard_normal(shape))


# The table.


@pytest.mark.parametrize("steps", STEPS)
def test_the_table_of_floors_and_errors_is_true(steps):
  assert floor_of(steps) == FLOORS[steps]
  assert ERRORS[steps] / 4 < worst_error(steps) <= ERRORS[steps]


@pytest.mark.parametrize(
  ("shape", "steps"),
  [*((SHAPES[0], k) for k in STEPS), (SHAPES[1], 8), (SHAPES[2], 10)],
)
def test_singular_values_above_the_floor_become_one(shape, steps):
  """Of every spectrum, with the vectors they had."""
  u, v, a = stack_of(shape)
  x = np.asarray(compiled(f32(a), steps=steps), np.float64)
  for i, values in enumerate(spectra(min(shape)).values()):
    share = values / np.sum(values**4) ** 0.25
    above = share > FLOORS[steps]
    found = np.linalg.svd(x[i], compute_uv=False)
    resolved = found[: above.sum()]
    assert np.max(np.abs(resolved - 1)) < ERRORS[steps] + 1e-6
    assert found[0] < 1 + ERRORS[steps] + 1e-6
    core = u[i].T @ x[i] @ v[i]
    off = core - np.diag(np.diag(core))
    assert (
      np.abs(off[above][:, above]).max(initial=0) < 3e-6 / share[above].min()
    )
    assert np.all(np.diag(core)[values > 0] > 0)


@pytest.mark.parametrize("steps", [5, 8, 10])
def test_in_bfloat16_singular_values_are_right_to_two_digits(steps):
  *_, a = stack_of((24, 16))
  x = np.asarray(compiled(f32(a), steps=steps, dtype=jnp.bfloat16), np.float64)
  for i, values in enumerate(spectra(16).values()):
    above = values / np.sum(values**4) ** 0.25 > 0.01
    found = np.linalg.svd(x[i], compute_uv=False)
    worst = ERRORS[steps] + (0.08 if steps == 5 else 0.02)
    assert np.max(np.abs(found[: above.sum()] - 1)) < worst
    assert found[0] < 1 + worst


@pytest.mark.parametrize("steps", [7, 8, 9, 10, 12])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_spectrum_is_magnified_by_rounding(steps, dtype):
  """Where a polynomial peaks, rounding is above the interval of the next."""
  v = np.geomspace(0.05, 1, 20_000)
  rng = np.random.default_rng(0)
  u = np.linalg.qr(rng.standard_normal((len(v), 5, 2)))[0]
  w = np.linalg.qr(rng.standard_normal((len(v), 2, 2)))[0]
  values = np.stack([np.ones_like(v), v], axis=1)[:, None]
  x = compiled(f32((u * values) @ w.swapaxes(1, 2)), steps=steps, dtype=dtype)
  gram = np.einsum("kij,kil->kjl", *[np.asarray(x, np.float64)] * 2)
  error = 1e-6 if dtype == jnp.float32 else 0.02
  table = ERRORS.get(steps, 0)
  found = np.sqrt(np.linalg.eigvalsh(gram))
  assert np.max(np.abs(found - 1)) < table + error


@pytest.mark.parametrize("steps", [8, 9, 10, 12])
@pytest.mark.parametrize("shape", [(30, 20), (7, 1), (1, 7), (1, 1)])
def test_rank_one_comes_out_with_length_one(shape, steps):
  """Its largest value is its norm, at the end of the interval."""
  rng = np.random.default_rng(0)
  m, n = shape
  a = rng.standard_normal((50, m, 1)) * rng.standard_normal((50, 1, n))
  for dtype, error in ((jnp.float32, 1e-6), (jnp.bfloat16, 0.02)):
    x = np.asarray(compiled(f32(a), steps=steps, dtype=dtype), np.float64)
    top = np.linalg.norm(x, 2, axis=(1, 2))
    assert np.max(np.abs(top - 1)) < error


# What it is of the degenerate.


@pytest.mark.parametrize("rank", [1, 5, 12])
@pytest.mark.parametrize("shape", SHAPES)
def test_rank_deficient_matrices_give_the_partial_isometry(shape, rank):
  rank = min(rank, min(shape) - 1)
  u, v, a = planted(*shape, np.linspace(1, 0.3, rank))
  for steps, most in ((8, 0.005), (10, 0.02)):
    x = np.asarray(compiled(f32(a), steps=steps), np.float64)
    np.testing.assert_allclose(u.T @ x @ v, np.eye(rank), atol=3e-6)
    assert np.linalg.norm(x - u @ v.T, 2) < most


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_scale_does_not_matter(scale):
  a = gaussian(24, 16)
  both = compiled(jnp.stack([a, f32(scale) * a]))
  np.testing.assert_allclose(both[1], both[0], atol=2e-6)


def test_zero_is_zero_and_empty_is_empty():
  for f in (compiled, polar, clipped):
    np.testing.assert_array_equal(f(jnp.zeros((2, 5, 3))), 0)
    for shape in ((0, 5, 3), (2, 5, 0), (2, 0, 0)):
      assert f(jnp.zeros(shape)).shape == shape


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f", [msign, polar])
def test_a_bad_matrix_is_nan_and_spoils_no_other(f, shape, bad):
  """Wherever the entry is: a vectorised maximum passes over some."""
  f = jax.jit(f)
  clean = gaussian(6, *shape)
  a = clean
  for i, (row, column) in ((1, (0, 0)), (3, (5, 7)), (4, (11, 11))):
    a = a.at[i, row, column].set(bad)
  x, wanted = f(a), f(clean)
  assert np.isnan(x[jnp.array([1, 3, 4])]).all()
  sound = jnp.array([0, 2, 5])
  np.testing.assert_array_equal(x[sound], wanted[sound])


def test_a_nan_is_clipped_to_nan_in_its_matrix():
  a = gaussian(3, 9, 6) / 3
  x = clipped(a.at[1, 8, 5].set(jnp.nan))
  assert np.isnan(x[1]).all()
  np.testing.assert_array_equal(x[::2], clipped(a)[::2])


# Types, stacks, transforms.


def test_the_type_stays():
  a = gaussian(24, 16).astype(jnp.bfloat16)
  for f in (compiled, jax.jit(polar)):
    found = f(a)
    assert found.dtype == jnp.bfloat16
    wanted = f(a.astype(jnp.float32))
    np.testing.assert_array_equal(found, wanted.astype(jnp.bfloat16))


@pytest.mark.parametrize("shape", [(2, 3, 24, 16), (4, 12, 20)])
def test_a_stack_is_a_loop_and_a_map(shape):
  a = gaussian(*shape)
  flat = a.reshape(-1, *shape[-2:])
  loop = jnp.stack([compiled(one) for one in flat]).reshape(shape)
  np.testing.assert_allclose(compiled(a), loop, atol=1e-6)
  mapped = jax.jit(jax.vmap(msign))(flat).reshape(shape)
  np.testing.assert_allclose(mapped, loop, atol=1e-6)


def test_a_wide_matrix_is_its_transpose():
  a = gaussian(3, 12, 20)
  for f in (compiled, jax.jit(polar)):
    flipped = f(a.swapaxes(1, 2)).swapaxes(1, 2)
    np.testing.assert_allclose(f(a), flipped, atol=2e-6)


def test_products_are_float32_on_every_device():
  lowered = compiled.lower(jnp.ones((9, 6))).as_text()
  found = [line for line in lowered.split("\n") if "dot_general" in line]
  assert found
  for line in found:
    assert "precision = [HIGHEST, HIGHEST]" in line


def test_steps_are_at_least_one():
  with pytest.raises(ValueError, match="steps = 0 must be at least 1"):
    msign(jnp.ones((3, 2)), steps=0)


# The polynomials.


@pytest.mark.parametrize("floor", [0.03, 0.1, 0.5])
def test_a_polynomial_errs_alike_at_four_points(floor):
  """So none of degree 5 is nearer to 1 in the worst case."""
  abc = np.array(polar_express(1, floor=floor)[0])
  x = np.linspace(floor, 1, 200_001)
  error = _value(abc, x) - 1
  worst = np.max(np.abs(error))
  ends = [0]
  for i in np.flatnonzero(np.abs(error) > worst * (1 - 1e-6)):
    if np.sign(error[i]) != np.sign(error[ends[-1]]):
      ends.append(i)
  assert len(ends) == 4
  assert np.abs(error[0]) > worst * (1 - 1e-6)


def test_no_composition_of_two_nearby_is_better():
  """Each is best for what the one before it leaves."""
  x = np.geomspace(0.05, 1, 20_001)
  first, second = (np.array(p) for p in polar_express(2, floor=0.05))

  def worst(first, second):
    return np.max(np.abs(_value(second, _value(first, x)) - 1))

  best = worst(first, second)
  rng = np.random.default_rng(0)
  for size in (1e-2, 1e-3, 1e-4):
    for _ in range(50):
      moved = (p * (1 + size * rng.standard_normal(3)) for p in (first, second))
      assert worst(*moved) > best - 1e-9


# By LAPACK.


@pytest.mark.parametrize(
  "shape", [*SHAPES, (2, 3, 9, 5), (5, 1), (1, 5), (1, 1)]
)
def test_polar_is_exact(shape):
  a = np.random.default_rng(0).standard_normal(shape)
  u, _, v_t = np.linalg.svd(a, full_matrices=False)
  for scale in (1e-30, 1, 1e30):
    np.testing.assert_allclose(polar(f32(scale * a)), u @ v_t, atol=2e-5)


@pytest.mark.parametrize("rank", [1, 5])
def test_polar_keeps_zero_singular_values(rank):
  u, v, a = planted(24, 16, np.linspace(1, 0.01, rank))
  np.testing.assert_allclose(polar(f32(a)), u @ v.T, atol=1e-5)


# The clip.


@pytest.mark.parametrize(
  "values",
  [
    np.linspace(1.5, 0.02, 16),
    np.geomspace(1.5, 1e-4, 16),
    np.where(np.arange(16) < 4, 1.4, 0),
    np.full(16, 1.0),
    np.linspace(1.1, 0.9, 16),
    np.full(16, 0.01),
  ],
  ids=["spread", "wide", "low rank", "one", "around one", "small"],
)
@pytest.mark.parametrize("m", [24, 16])
def test_clipped_are_the_singular_values_above_one(m, values):
  u, v, a = planted(m, 16, values)
  x = np.asarray(clipped(f32(a)), np.float64)
  wanted = u * np.minimum(values, 1) @ v.T
  assert np.linalg.norm(x - wanted, 2) < 0.01
  # The vectors stay, to the rounding of the Gram matrix.
  core = u.T @ x @ v
  assert np.abs(core - np.diag(np.diag(core))).max() < 1e-4


def test_five_root_steps_clip_a_few_large_singular_values():
  values = np.where(np.arange(48) < 2, 6, np.geomspace(0.9, 1e-4, 48))
  u, v, a = planted(64, 48, values)
  wanted = u * np.minimum(values, 1) @ v.T
  x = clipped(f32(a), root_steps=5)
  assert np.linalg.norm(x - wanted, 2) < 0.03


def test_seven_root_steps_clip_many_large_singular_values():
  values = np.linspace(6, 0.02, 48)
  u, v, a = planted(64, 48, values)
  wanted = u * np.minimum(values, 1) @ v.T
  error = [
    np.linalg.norm(clipped(f32(a), root_steps=k) - wanted, 2) for k in (5, 7)
  ]
  assert error[1] < 0.03 < error[0]

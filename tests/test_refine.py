"""The reference SVD, and warm starts: right, or falling back by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import (
  GUARDS,
  exact_triplets,
  leading_triplets,
  refine_triplets,
  start_basis,
)

TALL, SQUARE, WIDE = (32, 24), (24, 24), (24, 32)
SHAPES = [TALL, WIDE]
SMALL = [(9, 5), (5, 9)]
B = 8


def in_numpy(function, *static):
  """Compiled, with results as numpy arrays."""
  compiled = jax.jit(function, static_argnames=static)
  return lambda *a, **k: jax.tree.map(np.asarray, compiled(*a, **k))


exact = in_numpy(exact_triplets, "k")
leading = in_numpy(leading_triplets, "k")
start = in_numpy(start_basis, "b")
refine = in_numpy(refine_triplets, "k", "wanted", "iterations", "tolerance")


def gaussian(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def orthonormal(m, n, seed=0):
  return np.linalg.qr(np.random.default_rng(seed).standard_normal((m, n)))[0]


def planted(m, n, values, seed=0):
  """A matrix of given singular values, and its singular vectors."""
  left = orthonormal(m, len(values), (seed, 0))
  right = orthonormal(n, len(values), (seed, 1))
  return (left * values @ right.T).astype(np.float32), left, right


# One spectrum each; the leading value stands out of all but the Gaussian one.
SPECTRA = {
  "gaussian": None,
  "planted": [4, 3, 2, *np.linspace(1, 0.1, 21)],
  "flat": [1.1] + [1] * 23,
  "rank-deficient": [3, 2, 1],
}


def three(matrix):
  """A stack of it alone: all stacks are of one shape, compiled once."""
  return np.stack([matrix] * 3).astype(np.float32)


def drawn(spectrum, shape, layers=3, seed=0):
  values = SPECTRA[spectrum]
  if values is None:
    return gaussian(layers, *shape, seed=seed)
  each = [planted(*shape, values, (seed, i))[0] for i in range(layers)]
  return np.stack(each)


def products(t):
  """The matrices `l_i r_i.T`, which do not depend on the joint sign."""
  return np.einsum("...mk,...nk->...kmn", t.left, t.right)


def assert_same(found, wanted, rtol=1e-6, atol=1e-5):
  np.testing.assert_allclose(found.values, wanted.values, rtol=rtol)
  np.testing.assert_allclose(products(found), products(wanted), atol=atol)


def assert_leading(found, matrices, gaps=1):
  """Column 0 against float64, wherever numpy sees a gap of 1.05."""
  u, s, vt = np.linalg.svd(matrices.astype(np.float64))
  gapped = s[..., 0] > 1.05 * s[..., 1]
  assert gapped.sum() >= gaps
  np.testing.assert_allclose(
    found.values[..., 0][gapped], s[..., 0][gapped], rtol=1e-5
  )
  right = np.swapaxes(vt, -1, -2)
  for mine, true in ((found.left, u), (found.right, right)):
    mine = np.asarray(mine, np.float64)[..., 0]
    cos = np.abs(np.sum(mine * true[..., 0], axis=-1))
    assert np.abs(cos - 1)[gapped].max() < 1e-5


# The reference.


@pytest.mark.parametrize("shape", [*SMALL, (4, 9, 5), (2, 3, 5, 9)])
@pytest.mark.parametrize("k", [1, 3])
def test_exact_is_numpy(shape, k):
  matrices = gaussian(*shape)
  found = exact(matrices, k)
  m, n = shape[-2:]
  assert found.left.shape == (*shape[:-2], m, k)
  assert found.right.shape == (*shape[:-2], n, k)
  u, s, vt = np.linalg.svd(matrices.astype(np.float64))
  np.testing.assert_allclose(found.values, s[..., :k], rtol=1e-5)
  wanted = np.einsum("...mk,...kn->...kmn", u[..., :k], vt[..., :k, :])
  apart = s[..., :k] > 1.05 * s[..., 1 : k + 1]
  assert apart.mean() > 0.7
  errors = np.abs(products(found) - wanted).max((-1, -2))
  alone = apart & np.concatenate([apart[..., :1], apart], -1)[..., :-1]
  assert errors[alone].max() < 1e-5


@pytest.mark.parametrize("shape", SMALL)
def test_exact_sees_below_the_floor_of_a_gram_matrix(shape):
  matrix, left, right = planted(*shape, [1, 1e-2, 1e-5])
  found = exact(matrix, 3)
  np.testing.assert_allclose(found.values, [1, 1e-2, 1e-5], rtol=0.02)
  cos = np.abs(np.sum(found.left * left, axis=0))
  np.testing.assert_allclose(cos, 1, atol=1e-3)
  cos = np.abs(np.sum(found.right * right, axis=0))
  np.testing.assert_allclose(cos, 1, atol=1e-3)


@pytest.mark.parametrize("shape", SMALL)
def test_exact_gives_a_basis_for_zero_values(shape):
  eye = np.eye(3)
  for matrix in (np.zeros(shape, np.float32), planted(*shape, [2.0])[0]):
    found = exact(matrix, 3)
    assert np.all(np.abs(found.values[1:]) < 1e-6)
    for side in (found.left, found.right):
      np.testing.assert_allclose(side.T @ side, eye, atol=1e-6)
  np.testing.assert_allclose(found.values[0], 2, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", SMALL)
def test_exact_bad_matrix_spoils_only_itself(shape, bad):
  matrices = gaussian(3, *shape)
  clean = exact(matrices, 2)
  matrices[1, 2, 3] = bad
  for mine, wanted in zip(exact(matrices, 2), clean, strict=True):
    np.testing.assert_array_equal(mine[::2], wanted[::2])
    assert np.isnan(mine[1]).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30, -1e30])
def test_exact_at_any_scale(scale):
  matrix = np.abs(gaussian(5, 9))
  plain = exact(matrix, 2)
  both = exact(np.stack([matrix, matrix * np.float32(scale)]), 2)
  wanted = np.stack([plain.values, plain.values * np.abs(scale)])
  np.testing.assert_allclose(both.values, wanted, rtol=1e-5)
  p = products(plain)
  np.testing.assert_allclose(
    products(both), np.stack([p, np.sign(scale) * p]), atol=1e-5
  )


@pytest.mark.parametrize("k", [-1, 0, 6])
def test_exact_k_out_of_range(k):
  with pytest.raises(ValueError, match=rf"k = {k} must be in 1\.\.5"):
    exact_triplets(jnp.ones((9, 5)), k)


# A basis to begin with.


@pytest.mark.parametrize("shape", SHAPES)
def test_start_basis_spans_the_leading_vectors_of_the_shorter_side(shape):
  values = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0.5]
  matrix, left, right = planted(*shape, values)
  found = start(matrix, B)
  true = right if shape == TALL else left
  assert found.shape == (24, B)
  cos = np.abs(np.sum(found * true[:, :B], axis=0))
  np.testing.assert_allclose(cos, 1, atol=1e-5)


def test_start_basis_of_zero_and_nan_layers_is_finite():
  matrices = gaussian(2, 2, *TALL)
  clean = start(matrices, B)
  matrices[0, 1], matrices[1, 0, 1, 2] = 0, np.nan
  found = start(matrices, B)
  assert np.isfinite(found).all()
  for i in ((0, 0), (1, 1)):
    np.testing.assert_array_equal(found[i], clean[i])


def test_start_basis_larger_than_the_matrix():
  with pytest.raises(ValueError, match=r"k = 25 must be in 1\.\.24"):
    start_basis(jnp.ones(TALL), 25)


# Warm starts: right without falling back.


@pytest.mark.parametrize("shape", [TALL, SQUARE, WIDE])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_a_small_change(spectrum, shape):
  before = drawn(spectrum, shape)
  size = 1e-4 * before.std()
  after = before + size * gaussian(*before.shape, seed=1)
  found = refine(after, start(before, B), 2)
  assert found.triplets.left.shape == (3, shape[0], 2)
  assert found.triplets.right.shape == (3, shape[1], 2)
  assert found.basis.shape == (3, 24, B)
  assert not found.fell_back and found.residual.max() <= 1e-3
  assert_leading(found.triplets, after)


def test_several_triplets():
  before = drawn("planted", WIDE)
  after = before + 1e-4 * gaussian(*before.shape, seed=1)
  found = refine(after, start(before, B), 3)
  assert not found.fell_back
  assert found.triplets.values.shape == (3, 3)
  u, s, vt = np.linalg.svd(after.astype(np.float64))
  np.testing.assert_allclose(found.triplets.values, s[:, :3], rtol=1e-5)
  wanted = np.einsum("amk,akn->akmn", u[..., :3], vt[:, :3])
  np.testing.assert_allclose(products(found.triplets), wanted, atol=1e-4)


def test_several_batch_axes_and_the_smallest_basis():
  before = drawn("planted", WIDE, 6).reshape(2, 3, *WIDE)
  found = refine(before, start(before, 2 + GUARDS), 2)
  assert found.basis.shape == (2, 3, 24, 2 + GUARDS)
  assert found.residual.shape == (2, 3) and np.shape(found.fell_back) == ()
  assert not found.fell_back
  assert_leading(found.triplets, before, gaps=6)


def test_a_stack_is_a_loop():
  """To the residual: every matrix has guards of its own."""
  stack = drawn("planted", TALL)
  basis = start(stack, B)
  found = refine(stack, basis, 2)
  for i in range(3):
    one = refine(stack[i], basis[i], 2)
    assert not one.fell_back and one.residual.shape == ()
    alone = jax.tree.map(lambda x, i=i: x[i], found.triplets)
    assert_same(alone, one.triplets, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
  ("spectrum", "shape"), [("planted", TALL), ("planted", WIDE), ("flat", WIDE)]
)
def test_a_random_walk_keeping_the_basis(spectrum, shape):
  """Far enough that the first basis would no longer do."""
  walk = drawn(spectrum, shape)
  first = basis = start(walk, B)
  step, k = {"planted": (0.008, 2), "flat": (0.00005, 1)}[spectrum]
  for i in range(50):
    walk = walk + np.float32(step) * gaussian(*walk.shape, seed=(9, i))
    found = refine(walk, basis, k)
    assert not found.fell_back
    basis = found.basis
    assert_leading(found.triplets, walk)
  if spectrum == "flat":
    assert refine(walk, first, k).fell_back


def test_rank_one_growth():
  """From nothing to a thousand times the rest, at each pace."""
  noise = gaussian(3, *WIDE)
  spike = planted(*WIDE, [1.0], seed=5)[0]
  basis = start(noise, B)
  for size in (*np.linspace(0.5, 30, 20), 100, 1e3, 1e4):
    grown = noise + np.float32(size) * spike
    found = refine(grown, basis, 2)
    basis = found.basis
    assert found.fell_back or found.residual.max() <= 1e-3
    assert_leading(found.triplets, grown, gaps=0)
  assert_leading(found.triplets, grown, gaps=3)


@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
def test_a_sudden_spike_does_not_hide_the_second_triplet(size):
  """Vectors stay of norm 1 and s_2 right to the floor of a Gram matrix."""
  noise = gaussian(3, *WIDE)
  grown = noise + np.float32(size) * planted(*WIDE, [1.0], seed=5)[0]
  found = refine(grown, start(noise, B), 2).triplets
  s = np.linalg.svd(grown.astype(np.float64), compute_uv=False)
  np.testing.assert_allclose(found.values[:, 0], s[:, 0], rtol=1e-5)
  assert np.abs(found.values[:, 1] - s[:, 1]).max() < 1e-3 * s[0, 0]
  for side in (found.left, found.right):
    norms = np.linalg.norm(side, axis=-2)
    np.testing.assert_allclose(norms, 1, atol=1e-2)
  if size < 3e3:
    np.testing.assert_allclose(found.values[:, 1], s[:, 1], rtol=0.02)


def test_what_passes_the_tolerance_is_right_to_1e_5():
  """At a gap of 1.06 every error beside the block has the least leverage."""
  matrix, left, _ = planted(*WIDE, [1.06] + [1] * 23)
  for angle in (0.005, 0.01, 0.02):
    first = np.cos(angle) * left[:, 0] + np.sin(angle) * left[:, -1]
    basis = np.concatenate([first[:, None], left[:, 1:B]], axis=1)
    found = refine(three(matrix), three(basis), 2)
    assert_leading(found.triplets, three(matrix))


def test_small_values_are_not_roots_of_rounded_eigenvalues():
  """As in `leading_triplets`; and right vectors are of norm 1."""
  for seed in range(5):
    each = [
      planted(*WIDE, [1, *np.linspace(0.01, 0.005, 23)], (seed, i))
      for i in range(3)
    ]
    stack = np.stack([matrix for matrix, *_ in each])
    basis = np.stack([left[:, :B] for _, left, _ in each]).astype(np.float32)
    found = refine(stack, basis, 2, tolerance=0.1)
    assert not found.fell_back
    s = np.linalg.svd(stack.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(found.triplets.values[:, 0], 1, rtol=1e-5)
    norms = np.linalg.norm(found.triplets.right, axis=-2)
    np.testing.assert_allclose(norms, 1, atol=1e-5)
    ratio = found.triplets.values[:, 1] / s[:, 1]
    assert ratio.min() > 0.9 and ratio.max() < 1 + 1e-5


def test_residual_is_that_of_the_triplets():
  """Smaller after more iterations, and before any fallback."""
  before = drawn("planted", WIDE)
  after = before + 0.1 * gaussian(*before.shape, seed=1)
  basis, residuals = start(before, B), []
  for iterations in (1, 2):
    found = refine(after, basis, 2, iterations=iterations, tolerance=1.0)
    assert not found.fell_back
    left, values, right = (x.astype(np.float64) for x in found.triplets)
    error = after.astype(np.float64) @ right - left * values[:, None]
    wanted = np.linalg.norm(error, axis=-2).max(-1) / values[:, 0]
    assert wanted.min() > 1e-5
    np.testing.assert_allclose(found.residual, wanted, rtol=0.02)
    residuals.append(wanted)
  assert np.all(residuals[1] < 0.8 * residuals[0])
  strict = refine(after, basis, 2, tolerance=0.99 * float(wanted.max()))
  assert strict.fell_back
  np.testing.assert_allclose(strict.residual, wanted, rtol=0.02)
  assert_same(strict.triplets, leading(after, 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_wanted_must_meet_the_tolerance(shape):
  """The basis has lost the third vector of three; the others are right."""
  values = [4, 3, *np.linspace(2, 1, 22)]
  stack = three(planted(*shape, values)[0])
  basis = start(stack, 24)[..., [0, 1, *range(10, 16)]]
  all_three = refine(stack, basis, 3)
  two = refine(stack, basis, 3, wanted=2)
  assert all_three.fell_back and not two.fell_back
  assert two.residual.max() < 1e-5 < 1e-3 < all_three.residual.max()
  assert_leading(two.triplets, stack)


# Falling back.


def useless(name, matrices):
  layers = matrices.shape[:-2]
  return {
    "random": lambda: gaussian(*layers, 24, B, seed=7),
    "zero": lambda: np.zeros((*layers, 24, B), np.float32),
    "another": lambda: start(gaussian(*matrices.shape, seed=8), B),
    "nan": lambda: np.full((*layers, 24, B), np.nan, np.float32),
  }[name]()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spectrum", ["gaussian", "flat"])
@pytest.mark.parametrize("basis", ["random", "zero", "another", "nan"])
def test_a_useless_basis(spectrum, basis, shape):
  matrices = drawn(spectrum, shape)
  found = refine(matrices, useless(basis, matrices), 2)
  assert found.fell_back
  wanted = leading(matrices, 2)
  np.testing.assert_allclose(found.triplets.values, wanted.values, rtol=1e-6)
  assert_leading(found.triplets, matrices)
  if spectrum == "gaussian":
    assert_same(found.triplets, wanted)
  again = refine(matrices, found.basis, 2)
  assert not again.fell_back
  assert_leading(again.triplets, matrices)


def test_one_useless_basis_of_a_stack():
  matrices = drawn("planted", WIDE)
  basis = np.array(start(matrices, B))
  basis[1] = start(drawn("planted", WIDE, seed=5)[1], B)
  found = refine(matrices, basis, 2)
  assert found.fell_back
  np.testing.assert_array_equal(found.residual > 1e-3, [False, True, False])
  assert_same(found.triplets, leading(matrices, 2))


def overtaken(shape, bulk, new):
  """Stacks of one whose last direction overtakes the first; the old basis.

  Both are singular directions before and after: the old basis knows nothing
  of the new one, and what it knows is still a triplet, of residual 0.
  """
  d = min(shape)
  befores, afters = [], []
  for seed in range(3):
    values = np.linspace(bulk, 0.9 * bulk, d)
    values[0] = 1
    before, left, right = planted(*shape, values, seed)
    grown = np.outer(left[:, -1], right[:, -1]) * (new - values[-1])
    befores.append(before)
    afters.append((before + grown).astype(np.float32))
  basis = start(np.stack(befores), B)
  side = right if shape[0] > shape[1] else left
  assert np.abs(basis[2].T @ side[:, -1]).max() < 1e-4
  return np.stack(befores), np.stack(afters), basis


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
  ("bulk", "new"), [(0.1, 1.06), (0.1, 2), (0.5, 1.06), (0.8, 1.2), (0.9, 1.5)]
)
def test_a_new_direction_orthogonal_to_the_old_basis(shape, bulk, new):
  _, after, basis = overtaken(shape, bulk, new)
  found = refine(after, basis, 2)
  np.testing.assert_allclose(found.triplets.values[:, 0], new, rtol=1e-5)
  assert_leading(found.triplets, after, gaps=3)


def test_a_new_direction_in_one_layer_of_a_stack():
  before, after, basis = overtaken(WIDE, 0.3, 1.2)
  mixed = np.stack([before[0], after[1], before[2]])
  assert_leading(refine(mixed, basis, 2).triplets, mixed, gaps=3)


@pytest.mark.xfail(reason="a bulk near the top hides it from two iterations")
def test_a_new_direction_above_a_flat_bulk_is_not_missed():
  _, after, basis = overtaken((64, 64), 0.98, 1.06)
  assert_leading(refine(after, basis, 2).triplets, after, gaps=3)


def test_a_new_direction_above_a_flat_bulk_is_found_in_the_end():
  _, after, basis = overtaken((64, 64), 0.98, 1.06)
  for _ in range(100):
    found = refine(after, basis, 2)
    basis = found.basis
    if found.fell_back:
      break
  assert_leading(found.triplets, after, gaps=3)


def test_a_zero_matrix_becomes_nonzero():
  stack = drawn("gaussian", WIDE)
  wanted = stack.copy()
  stack[1] = 0
  basis = refine(stack, start(stack, B), 2).basis
  found = refine(wanted, basis, 2)
  assert found.fell_back
  assert_same(found.triplets, leading(wanted, 2))
  assert not refine(wanted, found.basis, 2).fell_back


# Degenerate matrices.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bad_matrix_spoils_only_itself(shape, bad):
  """It forces no fallback, and the basis outlives it."""
  matrices = drawn("planted", shape)
  basis = start(matrices, B)
  clean = refine(matrices, basis, 2)
  spoilt = matrices.copy()
  spoilt[1, 2, 3] = bad
  found = refine(spoilt, basis, 2)
  for mine, wanted in zip(found.triplets, clean.triplets, strict=True):
    np.testing.assert_allclose(mine[::2], wanted[::2], rtol=1e-5, atol=1e-6)
    assert np.isnan(mine[1]).all()
  assert not found.fell_back
  np.testing.assert_array_equal(found.basis[1], basis[1])
  again = refine(matrices, found.basis, 2)
  assert not again.fell_back
  assert_leading(again.triplets, matrices, gaps=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_matrix_beside_one_that_falls_back(bad):
  matrices = gaussian(3, *WIDE)
  spoilt = matrices.copy()
  spoilt[1, 2, 3] = bad
  found = refine(spoilt, np.zeros((3, 24, B), np.float32), 2)
  assert found.fell_back and np.isfinite(found.basis).all()
  assert all(np.isnan(x[1]).all() for x in found.triplets)
  rest = jax.tree.map(lambda x: x[::2], found.triplets)
  wanted = leading(matrices, 2)
  assert_same(rest, jax.tree.map(lambda x: x[::2], wanted))
  again = refine(matrices, found.basis, 2)
  assert_same(again.triplets, wanted)
  assert not refine(matrices, again.basis, 2).fell_back


@pytest.mark.parametrize("shape", SHAPES)
def test_a_zero_matrix_keeps_its_basis(shape):
  """Neither does it make the others fall back."""
  matrices = drawn("planted", shape)
  basis = start(matrices, B)
  spoilt = matrices.copy()
  spoilt[1] = 0
  found = refine(spoilt, basis, 2)
  assert not found.fell_back
  np.testing.assert_array_equal(found.basis[1], basis[1])
  np.testing.assert_array_equal(found.triplets.values[1], 0)
  longer = found.triplets.left if shape == TALL else found.triplets.right
  assert np.isnan(longer[1]).all()
  assert_leading(
    jax.tree.map(lambda x: x[::2], found.triplets), spoilt[::2], gaps=2
  )
  assert not refine(matrices, found.basis, 2).fell_back


@pytest.mark.parametrize("shape", SHAPES)
def test_rank_one(shape):
  matrix, left, right = planted(*shape, [2.0])
  stack = three(matrix)
  found = refine(stack, start(stack, B), 2)
  np.testing.assert_allclose(found.triplets.values[:, 0], 2, rtol=1e-5)
  assert found.triplets.values[:, 1].max() < 1e-3
  wanted = three(left @ right.T)
  np.testing.assert_allclose(products(found.triplets)[:, 0], wanted, atol=1e-5)
  assert np.isfinite(found.basis).all()


def test_identity():
  eye = three(np.eye(24))
  found = refine(eye, start(eye, B), 2)
  assert not found.fell_back
  left, values, right = found.triplets
  np.testing.assert_allclose(values, 1, rtol=1e-5)
  np.testing.assert_allclose(left, right, atol=1e-5)
  np.testing.assert_allclose(left[0].T @ left[0], np.eye(2), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_repeated_values(shape):
  matrix, u, v = planted(*shape, [3, 3] + [1] * 22)
  stack = three(matrix)
  found = refine(stack, start(stack, B), 2).triplets
  np.testing.assert_allclose(found.values, 3, rtol=1e-5)
  for mine, true in ((found.left[1], u[:, :2]), (found.right[1], v[:, :2])):
    np.testing.assert_allclose(mine @ mine.T, true @ true.T, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_scale(shape):
  """Each matrix has its own, and a sign."""
  stack = drawn("planted", shape)
  basis = start(stack, B)
  scales = np.array([1e-30, 1e30, -1e30], np.float32)
  scaled = stack * scales[:, None, None]
  values = np.abs(scales)[:, None] * [4, 3]
  wanted = products(leading(stack, 2)) * np.sign(scales)[:, None, None, None]
  found = refine(scaled, basis, 2)
  fallen = refine(scaled, np.zeros_like(basis), 2)
  assert not found.fell_back and fallen.fell_back
  for t in (found.triplets, fallen.triplets):
    np.testing.assert_allclose(t.values, values, rtol=1e-5)
    np.testing.assert_allclose(products(t), wanted, atol=1e-4)


def test_bfloat16_is_computed_in_float32():
  stack = jnp.asarray(drawn("planted", WIDE)).astype(jnp.bfloat16)
  wide = stack.astype(jnp.float32)
  same = start(wide, B)
  np.testing.assert_array_equal(start(stack, B), same)
  found, wanted = refine(stack, same, 2), refine(wide, same, 2)
  assert found.basis.dtype == found.triplets.left.dtype == jnp.float32
  jax.tree.map(np.testing.assert_array_equal, found, wanted)
  jax.tree.map(np.testing.assert_array_equal, exact(stack, 2), exact(wide, 2))


@pytest.mark.parametrize("shape", [(3, 5), (5, 4)])
def test_matrices_smaller_than_the_block(shape):
  """The basis is all of the space, and there is nothing to miss."""
  d = min(shape)
  before = gaussian(4, *shape)
  basis = start(before, d)
  for matrices in (before, gaussian(4, *shape, seed=1)):
    found = refine(matrices, basis, 2)
    assert found.basis.shape == (4, d, d)
    assert_leading(found.triplets, matrices)


# Errors, and the compiled program.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
  "basis",
  [
    (3, 24, 1 + GUARDS),  # Too few columns for k = 2.
    (3, 23, B),  # Of other matrices.
    (3, 32, B),
    (2, 24, B),  # Of another stack.
    (24, B),
    (3, 24, 25),  # More columns than dimensions.
  ],
)
def test_a_basis_that_does_not_serve(shape, basis):
  with pytest.raises(ValueError, match="does not serve 2 triplets"):
    refine_triplets(jnp.ones((3, *shape)), jnp.ones(basis), 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [-1, 0, 25])
def test_k_out_of_range(shape, k):
  with pytest.raises(ValueError, match=rf"k = {k} must be in 1\.\.24"):
    refine_triplets(jnp.ones(shape), jnp.ones((24, B)), k)


def test_products_are_float32_on_every_device():
  program = jax.jit(lambda a, basis: refine_triplets(a, basis, 2))
  lowered = program.lower(jnp.ones(WIDE), jnp.ones((24, B))).as_text()
  found = [line for line in lowered.split("\n") if "dot_general" in line]
  assert len(found) > 8
  assert all("precision = [HIGHEST, HIGHEST]" in line for line in found)


def test_one_program_has_both_branches():
  """Of one compiled loop, some pass and some fall back."""
  stacks = np.stack([drawn("planted", WIDE), drawn("gaussian", WIDE)])
  bases = np.stack([start(stack, B) for stack in stacks])
  mapped = jax.jit(
    lambda a, q: jax.lax.map(lambda x: refine_triplets(*x, 2), (a, q))
  )
  for zero in ((1, 0), (0, 1), (1, 1)):
    kept = bases * np.float32(zero)[:, None, None, None]
    found = jax.tree.map(np.asarray, mapped(stacks, kept))
    np.testing.assert_array_equal(found.fell_back, np.array(zero) == 0)
    for i in range(2):
      one = jax.tree.map(lambda x, i=i: x[i], found.triplets)
      assert_same(one, refine(stacks[i], kept[i], 2).triplets)
  assert mapped._cache_size() == 1


THIRTY = """
import jax, jax.numpy as jnp
from geom.linalg import refine_triplets, start_basis
assert jax.device_count() == 1
stack = jax.random.normal(jax.random.key(0), (2, 4, 32, 48))
noise = jax.random.normal(jax.random.key(1), (30, 4, 32, 48))

def thirty(stack):
  def step(carry, change):
    stack, basis = carry
    # Every third change is large enough to fall back.
    stack = stack + change * jnp.where(change[0, 0, 0] > 0.4, 1, 1e-3)
    found = refine_triplets(stack, basis, 2)
    return (stack, found.basis), (found.triplets.values, found.fell_back)
  basis = jnp.zeros((4, 32, 8))
  return jax.lax.scan(step, (stack, basis), noise)[1]

def unrolled(stack, basis):
  for i in range(3):
    basis = refine_triplets(stack * (1 + noise[i]), basis, 2).basis
  return basis

values, fell_back = jax.jit(lambda s: jax.lax.map(thirty, s))(stack)
assert bool(jnp.isfinite(values).all())
assert 5 < int(fell_back[0].sum()) < 25, fell_back
basis = jax.jit(start_basis, static_argnums=1)(stack[0], 8)
basis = jax.jit(unrolled)(stack[0], basis)
assert bool(jnp.isfinite(basis).all())
one = jax.jit(lambda a, q: refine_triplets(a, q, 2))
for i in range(30):
  found = one(stack[0] + (i % 2) * noise[i], basis)
  basis = found.basis
assert bool(jnp.isfinite(found.triplets.values).all())
print("done")
"""


def test_thirty_in_a_row_do_not_hang(run_python):
  """On one device, where LAPACK calls that run concurrently may."""
  found = run_python("-c", THIRTY, timeout=60, JAX_PLATFORMS="cpu")
  assert found.returncode == 0 and "done" in found.stdout, found.stderr

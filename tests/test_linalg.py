"""geom.linalg against numpy's float64 SVD, and on degenerate matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import linalg
from geom.linalg import exact_triplets, leading_triplets

TALL, SQUARE, WIDE = (9, 5), (7, 7), (5, 9)
SHAPES = [TALL, SQUARE, WIDE]


def gaussian(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def planted(m, n, values, seed=0):
  """A matrix of given singular values, and its singular vectors."""
  rng = np.random.default_rng(seed)
  left, _ = np.linalg.qr(rng.standard_normal((m, len(values))))
  right, _ = np.linalg.qr(rng.standard_normal((n, len(values))))
  return (left * values @ right.T).astype(np.float32), left, right


compiled = jax.jit(leading_triplets, static_argnums=1)


def triplets(matrices, k=1):
  """In float64: left (..., m, k), values (..., k), right (..., n, k)."""
  found = compiled(jnp.asarray(matrices), k)
  return tuple(np.asarray(x, np.float64) for x in found)


def products(left, right):
  """The matrices `l_i r_i.T`, which do not depend on the joint sign."""
  return np.einsum("...mk,...nk->...kmn", left, right)


@pytest.mark.parametrize(
  "shape", [TALL, SQUARE, WIDE, (20, *TALL), (4, 5, *SQUARE), (2, 3, 4, *WIDE)]
)
def test_leading_triplet_is_that_of_numpy(shape):
  matrices = gaussian(*shape)
  left, values, right = triplets(matrices)
  u, s, vt = np.linalg.svd(matrices.astype(np.float64))
  assert left.shape == (*shape[:-1], 1)
  assert right.shape == (*shape[:-2], shape[-1], 1)
  np.testing.assert_allclose(values, s[..., :1], rtol=1e-5)
  gapped = s[..., 0] > 1.05 * s[..., 1]
  assert gapped.mean() > 0.7
  wanted = products(u[..., :1], np.swapaxes(vt, -1, -2)[..., :1])
  errors = np.abs(products(left, right) - wanted).max((-1, -2, -3))
  assert errors[gapped].max() < 1e-5
  for mine, exact in ((left, u), (right, np.swapaxes(vt, -1, -2))):
    cos = np.abs(np.sum(mine[..., 0] * exact[..., 0], axis=-1))
    assert np.all(np.abs(cos - 1)[gapped] < 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [2, 5])
def test_triplets_come_by_descending_value(shape, k):
  matrix, left, right = planted(*shape, [4, 3, 2, 1.2, 1])
  found = triplets(matrix, k)
  np.testing.assert_allclose(found[1], [4, 3, 2, 1.2, 1][:k], rtol=1e-5)
  np.testing.assert_allclose(
    products(found[0], found[2]), products(left, right)[:k], atol=1e-5
  )


def test_a_small_gap_is_resolved():
  matrix, left, right = planted(*SQUARE, [1.06, 1, 0.99, 0.5, 0.2, 0.1, 0.1])
  found = triplets(matrix)
  wanted = products(left[:, :1], right[:, :1])
  np.testing.assert_allclose(products(found[0], found[2]), wanted, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_small_values_are_not_roots_of_rounded_eigenvalues(shape):
  """Those are off by 1e-5 and more at a hundredth of the largest value."""
  matrices = [planted(*shape, [1, 0.01], seed)[0] for seed in range(20)]
  values = triplets(np.stack(matrices), 2)[1]
  np.testing.assert_allclose(values[:, 1], 0.01, rtol=3e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_triplets_give_the_matrix_back(shape):
  matrix, *_ = planted(*shape, np.linspace(3, 1, min(shape)))
  left, values, right = triplets(matrix, min(shape))
  np.testing.assert_allclose(left * values @ right.T, matrix, atol=2e-6)
  eye = np.eye(min(shape))
  np.testing.assert_allclose(left.T @ left, eye, atol=1e-5)
  np.testing.assert_allclose(right.T @ right, eye, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stack_is_a_loop(shape):
  matrices = gaussian(2, 3, *shape)
  left, values, right = triplets(matrices, 2)
  for i in np.ndindex(2, 3):
    one = triplets(matrices[i], 2)
    np.testing.assert_allclose(values[i], one[1], rtol=1e-6)
    np.testing.assert_allclose(
      products(left[i], right[i]), products(one[0], one[2]), atol=1e-5
    )


def test_mapped_and_not_compiled_it_is_the_same():
  matrices = jnp.asarray(gaussian(3, *TALL))
  plain = leading_triplets(matrices, 2)
  mapped = jax.jit(jax.vmap(lambda a: leading_triplets(a, 2)))(matrices)
  np.testing.assert_allclose(mapped.values, plain.values, rtol=1e-5)
  np.testing.assert_allclose(
    products(mapped.left, mapped.right),
    products(plain.left, plain.right),
    atol=1e-5,
  )


@pytest.mark.parametrize("scale", [1e-30, 1e30, -1e30])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_scale(shape, scale):
  """Each matrix has its own: a stack may hold small and large ones."""
  matrix = np.abs(gaussian(*shape))
  left, values, right = triplets(matrix, 2)
  both = triplets(np.stack([matrix, matrix * np.float32(scale)]), 2)
  scaled = values * np.abs(scale)
  np.testing.assert_allclose(both[1], [values, scaled], rtol=1e-5)
  wanted = products(left, right)
  np.testing.assert_allclose(
    products(both[0], both[2]), [wanted, np.sign(scale) * wanted], atol=1e-5
  )


def test_bfloat16_is_computed_in_float32():
  matrix = jnp.asarray(gaussian(*WIDE)).astype(jnp.bfloat16)
  found = leading_triplets(matrix, 2)
  assert {x.dtype for x in found} == {jnp.dtype(jnp.float32)}
  same = leading_triplets(matrix.astype(jnp.float32), 2)
  for mine, wanted in zip(found, same, strict=True):
    np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bad_matrix_spoils_only_itself(shape, bad):
  matrices = gaussian(3, *shape)
  clean = triplets(matrices, 2)
  matrices[1, 2, 3] = bad
  for mine, wanted in zip(triplets(matrices, 2), clean, strict=True):
    np.testing.assert_array_equal(mine[[0, 2]], wanted[[0, 2]])
    assert np.isnan(mine[1]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_lapack_never_sees_a_bad_matrix(monkeypatch, bad):
  """Some LAPACKs do not return from a NaN."""
  seen = []
  eigh = jnp.linalg.eigh

  def watched(gram, **options):
    seen.append(np.asarray(gram))
    return eigh(gram, **options)

  monkeypatch.setattr(jnp.linalg, "eigh", watched)
  matrices = gaussian(3, *WIDE)
  matrices[1, 2, 3] = bad
  leading_triplets(jnp.asarray(matrices), 1)
  assert len(seen) == 1 and np.isfinite(seen[0]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_zero_has_values_and_no_vectors_on_the_longer_side(shape):
  left, values, right = triplets(np.zeros(shape, np.float32), 2)
  shorter, longer = (right, left) if shape == TALL else (left, right)
  np.testing.assert_array_equal(values, 0)
  np.testing.assert_allclose(shorter.T @ shorter, np.eye(2), atol=1e-6)
  assert np.isnan(longer).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_rank_one(shape):
  matrix, left, right = planted(*shape, [2.0])
  found = triplets(matrix, 2)
  np.testing.assert_allclose(found[1][0], 2, rtol=1e-5)
  assert found[1][1] < 1e-3  # The floor of a float32 Gram matrix.
  np.testing.assert_allclose(
    products(found[0], found[2])[0], left @ right.T, atol=1e-5
  )


def test_identity_and_repeated_values_give_some_basis():
  left, values, right = triplets(np.eye(4, dtype=np.float32), 4)
  np.testing.assert_allclose(values, 1, rtol=1e-6)
  np.testing.assert_allclose(left @ right.T, np.eye(4), atol=1e-6)
  matrix, u, v = planted(*TALL, [3, 3, 1])
  left, values, right = triplets(matrix, 2)
  np.testing.assert_allclose(values, 3, rtol=1e-5)
  for mine, exact in ((left, u[:, :2]), (right, v[:, :2])):
    np.testing.assert_allclose(mine @ mine.T, exact @ exact.T, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_k_out_of_range(shape):
  smaller = min(shape)
  m, n = shape
  for k in (-1, 0, smaller + 1):
    told = rf"k = {k} must be in 1\.\.{smaller} for \({m}, {n}\)"
    with pytest.raises(ValueError, match=told):
      leading_triplets(jnp.ones(shape), k)


def test_products_are_float32_on_every_device():
  """At default precision a GPU or TPU would round them to 10 or 7 bits."""
  lowered = compiled.lower(jnp.ones(WIDE), 2).as_text()
  found = [line for line in lowered.split("\n") if "dot_general" in line]
  assert len(found) == 2
  for line in found:
    assert "precision = [HIGHEST, HIGHEST]" in line


# The reference by SVD.


@pytest.mark.parametrize("shape", [(3, 9, 9), (3, 14, 9), (2, 2, 9, 14)])
def test_the_svd_is_that_of_float64(shape):
  a = np.random.default_rng(8).normal(size=shape).astype(np.float32)
  found = jax.jit(exact_triplets, static_argnums=1)(jnp.asarray(a), 3)
  u, s, vt = np.linalg.svd(a.astype(np.float64), full_matrices=False)
  np.testing.assert_allclose(found.values, s[..., :3], rtol=1e-5)
  left = np.abs(np.sum(np.asarray(found.left) * u[..., :3], axis=-2))
  v = np.swapaxes(vt, -1, -2)[..., :3]
  right = np.abs(np.sum(np.asarray(found.right) * v, axis=-2))
  np.testing.assert_allclose(left, 1, atol=1e-5)
  np.testing.assert_allclose(right, 1, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_svd_has_the_scale_and_a_bad_matrix_spoils_only_itself(scale):
  a = np.random.default_rng(9).normal(size=(3, 6, 8)).astype(np.float32)
  expected = np.linalg.svd(a, compute_uv=False)
  a *= np.float32(scale)
  a[1, 2, 3] = np.nan
  found = exact_triplets(jnp.asarray(a), 6)
  for part in found:
    assert np.isnan(part[1]).all()
    assert np.isfinite(part[jnp.array([0, 2])]).all()
  sound = np.asarray(found.values[jnp.array([0, 2])]) / np.float32(scale)
  np.testing.assert_allclose(sound, expected[[0, 2]], rtol=1e-4)


def test_the_svd_of_zero_is_zero():
  found = exact_triplets(jnp.zeros((2, 4, 5)), 4)
  np.testing.assert_array_equal(found.values, 0)
  assert np.isfinite(found.left).all() and np.isfinite(found.right).all()


@pytest.mark.parametrize("k", [0, 5])
def test_the_svd_has_as_many_triplets_as_there_are(k):
  with pytest.raises(ValueError, match=r"must be in 1\.\.4"):
    exact_triplets(jnp.zeros((4, 6)), k)


@pytest.mark.parametrize("shape", [(40, 48), (48, 40), (64, 64)])
@pytest.mark.parametrize("decompose", [leading_triplets, exact_triplets])
def test_a_nan_is_seen_wherever_it_is(decompose, shape):
  """A vectorised maximum does not see them all."""
  a = np.random.default_rng(3).normal(size=(8, *shape)).astype(np.float32)
  for i, (row, column) in enumerate(np.ndindex(2, 4)):
    a[i, row, 5 * column] = np.nan
  found = jax.jit(decompose, static_argnums=1)(jnp.asarray(a), 2)
  assert all(np.isnan(part).all() for part in found)


def test_a_large_gram_matrix_in_quarters_is_the_whole():
  a = np.random.default_rng(4).normal(size=(2, 512, 520)).astype(np.float32)
  found = jax.jit(leading_triplets, static_argnums=1)(jnp.asarray(a), 512)
  wanted = np.linalg.svd(a.astype(np.float64), compute_uv=False)
  np.testing.assert_allclose(found.values, wanted, rtol=1e-4, atol=1e-3)
  product = (found.left * found.values[:, None]) @ jnp.swapaxes(
    found.right, 1, 2
  )
  np.testing.assert_allclose(product, a, atol=1e-3)


@pytest.mark.parametrize("shape", [(2, 3, 24, 32), (4, 32, 24), (24, 32)])
def test_large_matrices_one_by_one_are_the_stack(shape, monkeypatch):
  """What is large is decided by the rows; NaN spoils its own matrix only."""
  stack = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
  if len(shape) > 2:
    stack[..., 1, 2, 3] = np.nan
  wanted = jax.jit(lambda a: leading_triplets(a, 3))(stack)
  monkeypatch.setattr(linalg, "LARGE", 8)
  found = jax.jit(lambda a: leading_triplets(a, 3))(stack)
  for one, other in zip(found, wanted, strict=True):
    assert one.shape == other.shape
    np.testing.assert_allclose(np.abs(one), np.abs(other), rtol=1e-3, atol=1e-4)

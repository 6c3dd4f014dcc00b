"""Energy kept by common bases, against its definition; edits of stacks."""

import numpy as np
import pytest

from geom.weights import depth, editing, measure, sharing


def stack_of(layers=6, m=12, n=8, seed=0):
  rng = np.random.default_rng(seed)
  return np.float32(rng.standard_normal((layers, m, n)))


def kept_by_definition(kernels, k, side):
  """Mean share of energy in the best common basis, from an SVD."""
  unit = [kernel / np.linalg.norm(kernel) for kernel in np.float64(kernels)]
  if side == "output":
    unit = [kernel.T for kernel in unit]
  basis = np.linalg.svd(np.concatenate(unit, axis=1))[0][:, :k]
  return np.mean([np.sum((basis.T @ kernel) ** 2) for kernel in unit])


@pytest.mark.parametrize("side", ["input", "output"])
def test_sums_give_the_best_common_basis_of_every_window(side):
  kernels = stack_of(7)
  d = kernels.shape[1 if side == "input" else 2]
  sums = sharing.Sums(d, (2, 4), (1, 3), 100)
  shares = []
  for layer, kernel in enumerate(kernels):
    sums.add(measure.gram(kernel.copy(), side))
    shares += sums.ended(layer, len(kernels))
  windows = [(s.window, s.start, s.layers) for s in shares]
  assert windows == [(2, 0, 2), (2, 2, 2), (4, 0, 4), (2, 4, 2), (0, 0, 7)]
  for share in shares:
    part = kernels[share.start : share.start + share.layers]
    for k, kept in share.kept.items():
      assert kept == pytest.approx(kept_by_definition(part, k, side), rel=1e-4)


def test_a_layer_that_is_zero_or_missing_is_not_counted():
  kernels = stack_of(4)
  sums = sharing.Sums(12, (4,), (2,), 100)
  sums.add(measure.gram(kernels[0], "input"))
  sums.add(np.zeros((12, 12), np.float32))
  assert sums.ended(0, 4) == []
  for layer in (1, 2):
    assert sums.ended(layer, 4) == []
  sums.add(measure.gram(kernels[3], "input"))
  (share,) = sums.ended(3, 4)  # The window of four would not compare.
  assert share.layers == 2 and share.window == sharing.ALL
  expected = kept_by_definition(kernels[[0, 3]], 2, "input")
  assert share.kept[2] == pytest.approx(expected, rel=1e-4)


def test_a_sum_that_was_kept_goes_on(tmp_path):
  kernels = stack_of(4)
  whole, first, second = (sharing.Sums(12, (2,), (2,), 100) for _ in range(3))
  for layer, kernel in enumerate(kernels):
    whole.add(measure.gram(kernel, "input"))
    expected = whole.ended(layer, 4)
  for layer in (0, 1):
    first.add(measure.gram(kernels[layer], "input"))
    first.ended(layer, 4)
  first.save(tmp_path / "sum.npz", 1)
  assert second.load(tmp_path / "sum.npz") == 2
  for layer in (2, 3):
    second.add(measure.gram(kernels[layer], "input"))
    got = second.ended(layer, 4)
  assert got == expected


def test_a_kept_sum_that_is_damaged_or_of_another_width_is_not_taken(tmp_path):
  path = tmp_path / "sum.npz"
  sums = sharing.Sums(12, (), (2,), 100)
  assert sums.load(path) == 0
  sharing.Sums(7, (), (2,), 100).save(path, 3)
  assert sums.load(path) == 0
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2])
  assert sums.load(path) == 0
  assert not sums.sums[sharing.ALL].any()


def test_ones_own_share_is_of_squared_singular_values():
  s = np.array([2.0, 1.0, 1.0])
  kept = sharing.own(s, np.sqrt(6.0), (1, 2, 3, 4))
  assert kept == {
    1: pytest.approx(4 / 6),
    2: pytest.approx(5 / 6),
    3: pytest.approx(1),
  }
  assert np.isnan(sharing.own(np.zeros(3), 0.0, (1,))[1])


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("window", [1, 2, 0])
def test_shared_kernels_keep_what_the_sums_say(side, window):
  kernels = stack_of(5)
  grams = editing.unit_grams(kernels, side)
  bases = editing.bases(grams, window, 4)
  edited = editing.shared(kernels, bases, window, side, 3)
  for group in editing.groups(5, window):
    kept = np.mean(
      [np.linalg.norm(edited[i]) ** 2 / np.linalg.norm(kernels[i]) ** 2
       for i in group]
    )  # fmt: skip
    expected = kept_by_definition(kernels[list(group)], 3, side)
    assert kept == pytest.approx(expected, rel=1e-4)
  if window == 1:
    u, s, vt = np.linalg.svd(kernels, full_matrices=False)
    best = (u[:, :, :3] * s[:, None, :3]) @ vt[:, :3]
    np.testing.assert_allclose(edited, best, atol=1e-4)


def test_the_last_group_may_be_shorter():
  assert editing.groups(5, 2) == [range(0, 2), range(2, 4), range(4, 5)]
  assert editing.groups(5, 0) == [range(5)]


def test_cosines_of_all_pairs_and_overlaps():
  e = np.eye(4)
  vectors = [e[0], None, -e[0], (e[0] + e[1]) / np.sqrt(2)]
  found = depth.cosines(vectors)
  assert np.isnan(found[1]).all() and np.isnan(found[:, 1]).all()
  assert found[0, 2] == 1
  assert found[2, 3] == pytest.approx(np.sqrt(0.5))
  assert depth.overlap(e[:, :2], e[:, 1:3]) == pytest.approx(0.5)

"""Probes by name over one decomposition."""

import jax.numpy as jnp
import numpy as np
import pytest

from geom.linalg import exact_triplets, leading_triplets
from geom.probes import alignment, change, continuity, suite

RNG = np.random.default_rng(5)
W0 = RNG.normal(size=(4, 12, 18)).astype(np.float32)
DW = RNG.normal(size=W0.shape).astype(np.float32)
DW += 9 * np.einsum("i,j->ij", *(np.ones(n) / n for n in W0.shape[1:]))
STACKS = {"weights": W0 + DW, "updates": DW, "gradient_sum": -2 * DW}
START = (jnp.asarray(W0), leading_triplets(jnp.asarray(W0), 1).values[..., 0])


@pytest.fixture(scope="module")
def parts():
  before = leading_triplets(jnp.asarray(W0), 2)
  return suite.decompose(
    {k: jnp.asarray(v) for k, v in STACKS.items()}, start=START, before=before
  )


def test_each_stack_is_decomposed_by_itself(parts):
  for name, stack in STACKS.items():
    values = np.linalg.svd(stack.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(
      parts.triplets[name].values, values, rtol=1e-4, atol=1e-4
    )


def test_methods_agree():
  stacks = {"weights": jnp.asarray(W0 + DW)}
  gram = suite.take(("cosines",), suite.decompose(stacks, k=2))
  svd = suite.take(("cosines",), suite.decompose(stacks, k=2, method="svd"))
  assert gram.keys() == svd.keys()
  for key, value in gram.items():
    np.testing.assert_allclose(value, svd[key], atol=1e-5)
  with pytest.raises(KeyError):
    suite.decompose(stacks, method="power")


def test_numbers_are_those_of_the_single_functions(parts):
  found = suite.take(tuple(suite.PROBES), parts)
  t = parts.triplets["weights"]
  w = parts.stacks["weights"]
  pairs = continuity.adjacent_cosines(t)
  expected = {
    "weights/cos_input": pairs.cos_input,
    "weights/cos_output": pairs.cos_output,
    "weights/gap": pairs.gap,
    "weights/cos_output_mean": np.mean(pairs.cos_output),
    "weights/defined": 1.0,
    "weights/overlap_5_input_mean": np.mean(continuity.overlap(t, 5, "input")),
    "weights/overlap_2_output_mean": np.mean(
      continuity.overlap(t, 2, "output")
    ),
    "weights/same_index_output": np.mean(
      continuity.same_index_cosines(t, "output"), axis=0
    )[:10],
    "weights/flattened_cosine": continuity.flattened_cosine(w),
    "weights/centred_input_mean": np.mean(
      alignment.centred_alignment(w, "input")
    ),
    "weights/matched_output_mean": np.mean(
      alignment.matched_alignment(t, "output")
    ),
    "weights/effective_rank": alignment.effective_rank(t.values),
    "dominance/spectral": continuity.spectral_dominance(
      parts.triplets["updates"].values[..., 0], START[1]
    ),
    "dominance/frobenius": continuity.frobenius_dominance(
      parts.stacks["updates"], START[0]
    ),
    "transfer/updates_input_mean": np.mean(
      change.transfer(t, parts.triplets["updates"], "input")
    ),
    "transfer/gradient_sum_output_mean": np.mean(
      change.transfer(t, parts.triplets["gradient_sum"], "output")
    ),
    "drift/output": change.rotation_drift(t, parts.before, "output"),
  }
  for key, value in expected.items():
    np.testing.assert_allclose(found[key], value, rtol=1e-6, err_msg=key)


def test_only_what_is_named_is_taken(parts):
  assert set(suite.take(("ranks",), parts)) == {
    f"{name}/effective_rank{end}" for name in STACKS for end in ("", "_mean")
  }
  assert suite.take((), parts) == {}
  with pytest.raises(KeyError):
    suite.take(("rank",), parts)


@pytest.mark.parametrize(
  "name, what", [("dominance", "start"), ("drift", "ear")]
)
def test_a_probe_says_what_it_lacks(name, what):
  bare = suite.decompose({"weights": jnp.asarray(W0)}, k=2)
  with pytest.raises(ValueError, match=what):
    suite.take((name,), bare)


def test_a_nan_layer_spoils_its_own_pairs_only():
  bad = W0.copy()
  bad[1, 0, 0] = np.nan
  names = ("cosines", "flattened", "aligned", "ranks", "same_index", "overlaps")
  found = suite.take(names, suite.decompose({"weights": jnp.asarray(bad)}))
  for key in ("cos_input", "flattened_cosine"):
    assert np.isnan(found[f"weights/{key}"]).tolist() == [True, True, False]
  assert np.isnan(found["weights/effective_rank"]).tolist() == [
    False, True, False, False,
  ]  # fmt: skip
  for key, value in found.items():
    if key.endswith("_mean"):
      assert np.isfinite(value), key


def test_chance_levels():
  levels = suite.chance(("cosines", "overlaps", "aligned"), 256, 64)
  assert levels["cos_input"] == pytest.approx(0.0499, abs=1e-4)
  assert levels["cos_output"] == pytest.approx(0.0997, abs=1e-4)
  assert levels["overlap_10_output"] == 10 / 64
  assert levels["centred_input"] == 0
  assert "overlap_1_input" not in suite.chance(("cosines",), 8, 8)


def test_exact_and_gram_are_both_there():
  found = suite.METHODS
  assert found == {"gram": leading_triplets, "svd": exact_triplets}


def test_warm_is_gram_and_goes_on():
  stacks = {k: jnp.asarray(v) for k, v in STACKS.items()}
  warm = suite.cold(stacks, k=2)
  expected = suite.decompose(stacks, k=2, start=START)
  for again in (False, True):
    parts, warm, how = suite.decompose_warm(stacks, warm, k=2, start=START)
    assert parts.start is START and parts.stacks is stacks
    for name, t in expected.triplets.items():
      found = parts.triplets[name]
      np.testing.assert_allclose(found.values, t.values, rtol=1e-4)
      pairs = suite.take(("cosines", "dominance"), parts)
    for key, value in suite.take(("cosines", "dominance"), expected).items():
      np.testing.assert_allclose(pairs[key], value, rtol=1e-4, err_msg=key)
    assert again or how["warm/fell_back"] <= how["warm/exact"] <= 12
  assert warm.count == 2 and how["warm/residual"] < 1e-3

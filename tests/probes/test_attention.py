"""Attention's diagnostics against plain numpy, and where they degenerate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.probes.attention import (
  attention_numbers,
  mlp_numbers,
  query_key_norms,
)

RNG = np.random.default_rng(0)


def causal(logits):
  """Logits `(b, h, t, t)` with -inf where a key is not seen."""
  seen = np.tril(np.ones(logits.shape[-2:], bool))
  return np.where(seen, logits, -np.inf).astype(np.float32)


def by_hand(logits):
  """Row by row, in float64, with the Jacobian written out."""
  rows = [
    row[np.isfinite(row)].astype(np.float64)
    for row in logits.reshape(-1, logits.shape[-1])
  ]
  seen = np.concatenate(rows)
  rows = [row for row in rows if len(row) > 1]
  ps = [np.exp(r - r.max()) / np.exp(r - r.max()).sum() for r in rows]
  entropy = np.array([-(p[p > 0] * np.log(p[p > 0])).sum() for p in ps])
  jacobians = [np.linalg.norm(np.diag(p) - np.outer(p, p)) for p in ps]
  return {
    "logit_max": np.abs(seen).max(),
    "logit_rms": np.sqrt(np.mean(seen**2)),
    "entropy_nats": entropy.mean(),
    "entropy": np.mean(entropy / np.log([len(p) for p in ps])),
    "jacobian": np.mean(jacobians),
    "saturation": np.mean([p.max() > 0.99 for p in ps]),
  }


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0, 1000.0])
def test_numbers_are_those_by_hand(scale):
  logits = causal(scale * RNG.normal(size=(2, 3, 7, 7)))
  found = attention_numbers(jnp.asarray(logits))
  for name, value in by_hand(logits).items():
    np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-6)


def test_uniform_attention_has_entropy_one_and_one_key_none():
  uniform = attention_numbers(jnp.asarray(causal(np.zeros((1, 1, 5, 5)))))
  assert uniform["entropy"] == pytest.approx(1, abs=1e-6)
  assert uniform["saturation"] == 0
  one = causal(np.zeros((1, 1, 5, 5)))
  one[..., 0] = 500.0
  chosen = attention_numbers(jnp.asarray(one))
  assert chosen["entropy"] == pytest.approx(0, abs=1e-6)
  assert chosen["jacobian"] == pytest.approx(0, abs=1e-6)
  assert chosen["saturation"] == 1


def test_the_jacobian_of_rows_that_are_nearly_sure_of_one_key():
  """1 - p, of p that are 1 in float32: what a vanishing gradient is made of."""
  logits = causal(np.zeros((1, 1, 5, 5)))
  logits[..., 0] = 25.0
  found = attention_numbers(jnp.asarray(logits))["jacobian"]
  assert found == pytest.approx(by_hand(logits)["jacobian"], rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_one_logit_is_not_hidden(value):
  logits = causal(np.zeros((1, 1, 5, 5)))
  logits[0, 0, 2, 1] = value
  found = attention_numbers(jnp.asarray(logits))
  assert not any(np.isfinite(x) for x in found.values())


def test_half_precision_is_measured_in_float32():
  small = jnp.asarray(RNG.normal(size=(2, 3, 7, 7)), jnp.bfloat16)
  kernel = jnp.asarray(RNG.normal(size=(12, 8)), jnp.bfloat16)
  for number in (
    attention_numbers, mlp_numbers,
    lambda x: {"norms": query_key_norms(*(2 * [kernel.astype(x.dtype)]), 2)},
  ):  # fmt: skip
    found, wanted = number(small), number(small.astype(jnp.float32))
    for name, value in wanted.items():
      assert found[name].dtype == jnp.float32
      np.testing.assert_array_equal(found[name], value)


def test_mlp_numbers():
  z = jnp.asarray([[-4.0, -2.0, 0.0, 3.5]])
  found = mlp_numbers(z)
  assert found["preactivation_rms"] == pytest.approx(np.sqrt(32.25 / 4))
  assert (found["dead"], found["linear"]) == (0.25, 0.25)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_query_key_norms_are_those_of_numpy(scale):
  q = scale * RNG.normal(size=(2, 12, 8)).astype(np.float32)
  k = RNG.normal(size=(2, 12, 8)).astype(np.float32)
  k[1, :, 4] = k[1, :, 5]  # Rank-deficient.
  found = jax.jit(lambda q, k: query_key_norms(q, k, 2))(q, k)
  wanted = np.stack(
    [
      [
        np.linalg.norm(
          q[i, :, h : h + 4].astype(float) @ k[i, :, h : h + 4].T, 2
        )
        for h in (0, 4)
      ]
      for i in (0, 1)
    ]
  )
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_query_key_norms_of_equal_singular_values_and_of_zero():
  q = jnp.asarray(np.linalg.qr(RNG.normal(size=(12, 4)))[0], jnp.float32)
  np.testing.assert_allclose(query_key_norms(q, 3 * q, 1), [3], rtol=1e-5)
  assert query_key_norms(q, 0 * q, 1) == 0
  assert np.isnan(query_key_norms(q, q * jnp.nan, 1))

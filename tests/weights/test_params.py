"""Weights of a Llama as our parameters: logits of a forward pass in numpy."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom.data import fetch, smollm2
from geom.models.llama import llama
from geom.weights import editing, families, params, source
from geom.weights.kernels import read_kernel
from geom.weights.opening import open_source

HF = {
  "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-5, "rope_theta": 50.0,
}  # fmt: skip


def rms(x, gain, eps):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * gain


def turned(x, base, interleaved):
  """Rotary embedding of `(t, heads, width)`, of halves or of neighbours."""
  t, _, width = x.shape
  angles = np.outer(np.arange(t), base ** (-np.arange(0, width, 2) / width))
  cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
  if interleaved:
    a, b = x[..., ::2], x[..., 1::2]
    pairs = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return pairs.reshape(x.shape)
  a, b = np.split(x, 2, axis=-1)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def forward(tokens, read, layers, heads, kv_heads, eps, base, interleaved):
  """Logits in float64; `read(projection or name, layer)` gives `(in, out)`."""
  h = read("embed", None)[tokens]
  for layer in range(layers):
    x = rms(h, read("attention_norm", layer), eps)
    q, k, v = (read(p, layer) for p in "qkv")
    width = q.shape[1] // heads
    q, k, v = ((x @ w).reshape(len(tokens), -1, width) for w in (q, k, v))
    q, k = (turned(y, base, interleaved) for y in (q, k))
    k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
    scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(len(tokens), -1)
    h = h + mixed @ read("o", layer)
    x = rms(h, read("mlp_norm", layer), eps)
    gate = x @ read("gate", layer)
    h = h + (gate / (1 + np.exp(-gate)) * (x @ read("up", layer))) @ read(
      "down", layer
    )
  return rms(h, read("norm", None), eps) @ read("head", None)


def reader(weights, found, names):
  """Of a source: kernels by projection, and other tensors by name."""

  def read(name, layer):
    if name in found.matrices:
      return np.float64(read_kernel(found.matrices[name][layer]))
    if name.endswith("_norm"):
      of = {"attention_norm": "q", "mlp_norm": "gate"}[name]
      return np.float64(source.read(found.gains[of, layer]))
    value = np.float64(source.read(weights.tensors[names[name]]))
    return value.T if name == "head" else value

  return read


def ours(weights, found, tokens):
  settings = params.settings_of(weights, found)
  model = llama(context=len(tokens), **settings)
  there = jax.tree.map(jnp.asarray, params.params_of(weights, found))
  logits, _ = model.apply(there, jnp.asarray(tokens)[None])
  return settings, np.asarray(logits[0])


NAMES = {
  "embed": "model.embed_tokens.weight",
  "norm": "model.norm.weight",
  "head": "model.embed_tokens.weight",
}


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_of_hugging_face(tmp_path, made, save, tied):
  tensors = made.tensors()
  rng = np.random.default_rng(5)
  tensors["model.embed_tokens.weight"] = np.float32(
    rng.standard_normal((11, 32))
  )
  names = dict(NAMES)
  if not tied:
    names["head"] = "lm_head.weight"
    tensors["lm_head.weight"] = np.float32(rng.standard_normal((11, 32)))
  weights = open_source(save(tmp_path / "a.safetensors", tensors, HF))
  found = families.recognise(weights)
  tokens = np.array([1, 5, 3, 3, 10, 0, 7])
  settings, logits = ours(weights, found, tokens)
  assert settings["tied"] == tied and settings["rope_base"] == 50
  expected = forward(
    tokens, reader(weights, found, names), made.layers, 4, 2, 1e-5, 50.0, False
  )
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_gguf_has_other_rotary_pairs(tmp_path, made, save_gguf):
  """As llama.cpp writes it: rows of q and k in another order."""
  before = {key: kernel.copy() for key, kernel in made.kernels.items()}
  for (p, _), kernel in made.kernels.items():
    if p in "qk":
      halves = kernel.reshape(32, -1, 2, 4)
      kernel[:] = halves.swapaxes(2, 3).reshape(kernel.shape)
  path = save_gguf(tmp_path / "a.gguf", made)
  extra = {
    "token_embd.weight": np.random.default_rng(1).normal(size=(11, 32)),
    "output_norm.weight": np.ones(32),
  }
  whole = gguf.GGUFReader(path)
  writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
  writer.add_head_count(4)
  writer.add_head_count_kv(2)
  writer.add_layer_norm_rms_eps(1e-5)
  for tensor in whole.tensors:
    writer.add_tensor(tensor.name, np.array(tensor.data))
  for name, value in extra.items():
    writer.add_tensor(name, np.float32(value))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  weights = open_source(tmp_path / "b.gguf")
  found = families.recognise(weights)
  got = params.params_of(weights, found)["blocks"]["attention"]
  for p in "qk":
    expected = np.stack([before[p, i] for i in range(made.layers)])
    np.testing.assert_array_equal(got[p]["kernel"], expected)
  tokens = np.array([1, 5, 3, 3, 10, 0, 7])
  names = {"embed": "token_embd.weight", "head": "token_embd.weight",
           "norm": "output_norm.weight"}  # fmt: skip
  _, logits = ours(weights, found, tokens)
  expected = forward(
    tokens, reader(weights, found, names), made.layers, 4, 2, 1e-5, 1e4, True
  )
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  "change, says",
  [
    ({"rms_norm_eps": None}, "config.json"),
    ({"model_type": "qwen2"}, "Llama or Mistral"),
    ({"rope_scaling": {"type": "linear"}}, "rotary"),
  ],
)
def test_what_our_llama_is_not(tmp_path, made, save, change, says):
  path = save(tmp_path / "a.safetensors", made.tensors(), HF | change)
  weights = open_source(path)
  with pytest.raises(source.SourceError, match=says):
    params.settings_of(weights, families.recognise(weights))


def test_a_block_that_is_left_out_adds_nothing(tmp_path, made, save):
  path = save(tmp_path / "a.safetensors", made.tensors(), HF)
  weights = open_source(path)
  found = families.recognise(weights)
  model = llama(context=4, **params.settings_of(weights, found))
  whole = params.params_of(weights, found)
  there = jax.tree.map(jnp.asarray, whole)
  tokens = jnp.array([[1, 5, 3, 0]])
  without, _ = model.apply(editing.without_layer(there, 2), tokens)
  kept = np.array([0, 1, 3, 4])
  shorter = {
    **there,
    "blocks": jax.tree.map(lambda x: x[kept], there["blocks"]),
  }
  settings = params.settings_of(weights, found) | {"depth": 4}
  expected, _ = llama(context=4, **settings).apply(shorter, tokens)
  np.testing.assert_allclose(without, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_smollm2_has_the_logits_of_a_forward_pass_in_numpy(tmp_path):
  weights = open_source(smollm2.prepare(fetch.data_dir(None)))
  found = families.recognise(weights)
  tokens = np.array([1, 504, 3575, 282, 4649, 314, 7042, 30, 378, 1096])
  names = {"embed": "token_embd.weight", "head": "token_embd.weight",
           "norm": "output_norm.weight"}  # fmt: skip
  settings, logits = ours(weights, found, tokens)
  expected = forward(
    tokens, reader(weights, found, names), 30, 9, 3, settings["eps"],
    settings["rope_base"], True,
  )  # fmt: skip
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=2e-3)
  assert np.array_equal(logits.argmax(-1), expected.argmax(-1))

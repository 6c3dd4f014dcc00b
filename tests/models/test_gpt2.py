"""GPT-2 against a forward pass written in numpy, and its options."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import roles
from geom.models.gpt2 import gpt2
from geom.train.objectives import next_token_loss

SMALL = {"vocabulary": 19, "context": 7, "width": 12, "depth": 2, "heads": 3}
OPTIONS = {
  "plain": {},
  "split": {"qkv": "split"},
  "fused attention": {"attention": "fused"},
  "capped": {"logit_cap": 0.5},
  "qk norm": {"qk_norm": True},
}
erf = np.vectorize(math.erf)
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 19, (2, 7)))


@functools.cache
def made(name="plain", **more):
  """A model and parameters for it."""
  model = gpt2(**SMALL, init_std=0.5, embed_std=0.5, **OPTIONS[name], **more)
  rng = np.random.default_rng(3)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  params = jax.tree.map(
    lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), shapes
  )
  return model, params


@pytest.fixture(autouse=True)
def one_by_one():
  """Operations are compiled once for all tests, not whole models."""
  with jax.disable_jit():
    yield


def layer_norm(x, scale):
  mean = x.mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def forward(p, tokens, *, heads, cap=None, seen=None):
  """GPT-2 as its paper and nanoGPT's code have it, one token at a time."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), p)
  table = p["embed"]["tokens"]
  out = []
  for sequence in np.asarray(tokens):
    h = table[sequence] + p["embed"]["positions"][: len(sequence)]
    blocks = p["blocks"]
    for layer in range(len(blocks["mlp_norm"]["scale"])):
      b = jax.tree.map(lambda x, i=layer: x[i], blocks)
      n = layer_norm(h, b["attention_norm"]["scale"])
      a = b["attention"]
      if "qkv" in a:
        q, k, v = np.split(n @ a["qkv"]["kernel"], 3, axis=-1)
      else:
        q, k, v = (n @ a[name]["kernel"] for name in "qkv")
      mixed = np.zeros_like(h)
      size = h.shape[-1] // heads
      for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        qh, kh = q[:, part], k[:, part]
        if "q_norm" in a:
          qh, kh = (
            x
            / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            * a[f"{i}_norm"]["scale"]
            for i, x in (("q", qh), ("k", kh))
          )
        for t in range(len(sequence)):
          z = kh[: t + 1] @ qh[t] / np.sqrt(size)
          z = z if cap is None else cap * np.tanh(z / cap)
          if seen is not None:
            seen.append(z)
          w = np.exp(z - z.max())
          mixed[t, part] = w / w.sum() @ v[: t + 1, part]
      h = h + mixed @ a["o"]["kernel"]
      n = layer_norm(h, b["mlp_norm"]["scale"])
      z = n @ b["mlp"]["up"]["kernel"]
      h = h + (z * (1 + erf(z / np.sqrt(2))) / 2) @ b["mlp"]["down"]["kernel"]
    out.append(layer_norm(h, p["norm"]["scale"]) @ table.T)
  return np.stack(out)


@pytest.mark.parametrize("name", OPTIONS)
def test_logits_are_those_of_an_independent_forward(name):
  model, params = made(name)
  logits, taps = model.apply(params, tokens)
  wanted = forward(params, tokens, heads=3, cap=OPTIONS[name].get("logit_cap"))
  np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=2e-4)
  assert taps == {}


def test_the_defaults_are_gpt2_small():
  shapes = jax.eval_shape(gpt2().init, jax.random.key(0))
  count = sum(x.size for x in jax.tree.leaves(shapes))
  # nanoGPT's 123.7M without biases at its vocabulary, and the positions.
  assert count == 50304 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768
  assert {roles.role_of(path).module for path in roles.paths(shapes)} == {
    "embed", "attention", "mlp", "norm",
  }  # fmt: skip


def test_no_token_sees_a_later_one():
  model, params = made()
  before, _ = model.apply(params, tokens)
  for time in range(7):
    other = tokens.at[:, time].add(1) % 19
    moved = np.abs(model.apply(params, other)[0] - before).max(axis=(0, 2))
    assert np.all(moved[:time] == 0) and np.all(moved[time:] > 0)


def test_gradients_are_those_of_the_independent_forward():
  """Of the model that is computed another way: again, and unrolled."""
  model, params = made()
  other, _ = made(remat=True, unroll=2)

  def gradient(model):
    batch = {"tokens": tokens}
    return jax.grad(lambda p: next_token_loss(model, p, batch)[0])

  with jax.disable_jit(False):
    found = jax.jit(gradient(other))(params)
    programs = [
      str(jax.make_jaxpr(gradient(m))(params)) for m in (model, other)
    ]
  for text in ("unroll=2", "remat2"):
    assert [text in program for program in programs] == [False, True]

  def loss(p):
    logits = forward(p, tokens[:, :-1], heads=3)
    picked = np.take_along_axis(logits, np.asarray(tokens)[:, 1:, None], -1)
    return np.mean(np.log(np.exp(logits).sum(-1)) - picked[..., 0])

  rng = np.random.default_rng(4)
  exact = {k: np.asarray(x, np.float64) for k, x in roles.paths(params).items()}
  for path, g in roles.paths(found).items():
    way = rng.normal(size=g.shape)
    there, back = (
      loss(
        jax.tree.unflatten(
          jax.tree.structure(params),
          list({**exact, path: exact[path] + h * way}.values()),
        )
      )
      for h in (1e-5, -1e-5)
    )
    slope = (there - back) / 2e-5
    assert np.sum(g * way) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_products_in_bfloat16_over_float32_parameters():
  model, params = made(dtype="bfloat16")
  logits, taps = model.apply(params, tokens, tap=lambda s: {"z": s["logits"]})
  exact, _ = made()[0].apply(params, tokens)
  assert logits.dtype == taps["z"].dtype == jnp.float32
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
  error = np.linalg.norm(logits - exact) / np.linalg.norm(exact)
  assert 1e-4 < error < 3e-2
  program = jax.make_jaxpr(lambda p: model.apply(p, tokens)[0])(params)
  products = [e for e in program.eqns if e.primitive.name == "dot_general"]
  assert len(products) == 2 * 6 + 1  # qkv, Q K, P V, o, up, down; the head.
  assert {x.aval.dtype for e in products for x in e.invars} == {
    jnp.dtype("bfloat16")
  }


def test_initial_standard_deviations():
  model = gpt2(
    vocabulary=500, context=64, width=64, depth=8, heads=4, embed_std=0.03
  )
  with jax.disable_jit(False):
    p = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  block = p["blocks"]
  for kernel, std in (
    (block["attention"]["qkv"]["kernel"], 0.02),
    (block["mlp"]["up"]["kernel"], 0.02),
    (block["attention"]["o"]["kernel"], 0.02 / 4),
    (block["mlp"]["down"]["kernel"], 0.02 / 4),
    (p["embed"]["tokens"], 0.03),
  ):
    assert np.std(kernel) == pytest.approx(std, rel=0.02)
    assert not np.array_equal(kernel[0], kernel[1])


def test_a_tap_sees_every_layer():
  model, params = made("capped")
  seen = lambda s: {  # noqa: E731
    "logits": s["logits"],
    "hidden": jnp.asarray(s["preactivation"].shape),
    "least": jnp.min(s["preactivation"]),
    "stream": s["stream"][0, 0, 0],
  }
  logits, taps = model.apply(params, tokens, tap=seen)
  wanted = []
  forward(params, tokens, heads=3, cap=0.5, seen=wanted)
  found = np.moveaxis(taps["logits"], 1, 0).reshape(-1, 7)
  for row, z in zip(found, wanted, strict=True):
    np.testing.assert_allclose(row[: len(z)], z, rtol=1e-4, atol=1e-5)
    assert np.all(row[len(z) :] == -np.inf)
  np.testing.assert_array_equal(taps["hidden"], [[2, 7, 48]] * 2)
  assert np.all(taps["least"] < -1)  # Before GELU, which is above -.2.
  first = params["embed"]["tokens"][tokens[0, 0], 0]
  first += params["embed"]["positions"][0, 0]
  assert taps["stream"][0] == pytest.approx(float(first), rel=1e-6)
  np.testing.assert_array_equal(logits, model.apply(params, tokens)[0])


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"heads": 5}, "5 heads do not divide width 12"),
    ({"qkv": "both"}, "qkv 'both' is none of fused, split"),
    ({"dtype": "float16"}, "dtype 'float16' is none of"),
    ({"attention": "flash"}, "attention 'flash' is none of plain, fused"),
    ({"attention": "fused", "logit_cap": 3.0}, "takes no logit_cap"),
  ],
)
def test_what_it_will_not_be(change, says):
  with pytest.raises(ValueError, match=says):
    gpt2(**{**SMALL, **change})


def test_a_sequence_longer_than_the_context():
  model, params = made()
  with pytest.raises(ValueError, match="8 tokens in a context of 7"):
    model.apply(params, jnp.zeros((1, 8), jnp.int32))

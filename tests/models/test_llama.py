"""The Llama-style model against a forward pass in numpy, and its options."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import roles
from geom.models.llama import llama
from geom.train.objectives import next_token_loss

SMALL = {
  "vocabulary": 19,
  "context": 7,
  "width": 12,
  "depth": 2,
  "heads": 6,
  "kv_heads": 2,
  "head_width": 4,
  "hidden": 10,
  "rope_base": 30.0,
  "eps": 1e-3,
}
OPTIONS = {
  "plain": {},
  "untied": {"tied": False},
  "fused attention": {"attention": "fused"},
  "gelu": {"activation": "gelu"},
  "relu": {"activation": "relu"},
  "identity": {"activation": "identity"},
  "radial": {"activation": "radial", "radius": 3.0},
  "sigmoid": {"mixing": "sigmoid"},
  "linear": {"mixing": "linear"},
  "nonlinear values": {"value_activation": "silu"},
  "layernorm": {"norm": "layernorm"},
  "no residual": {"residual": False},
}
erf = np.vectorize(math.erf)
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 19, (2, 7)))


@functools.cache
def made(name="plain", **more):
  """A model and parameters for it."""
  model = llama(**SMALL, **{"tied": True, **OPTIONS[name], **more})
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


ACTIVATIONS = {
  "identity": lambda x: x,
  "relu": lambda x: np.maximum(x, 0),
  "silu": lambda x: x / (1 + np.exp(-x)),
  # jax.nn.gelu is the approximation by tanh.
  "gelu": lambda x: (
    x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
  ),
  "radial": lambda x: x * np.tanh(np.linalg.norm(x) / 3.0),
}


def norm(x, scale, eps, kind):
  """Of one vector."""
  x = x - x.mean() if kind == "layernorm" else x
  return x / np.sqrt((x**2).mean() + eps) * scale


def turned(x, time, base):
  """One head at one time: pairs as complex numbers, turned."""
  half = len(x) // 2
  z = x[:half] + 1j * x[half:]
  z = z * np.exp(1j * time * base ** (-np.arange(half) / half))
  return np.concatenate([z.real, z.imag])


def mixed(q, keys, values, mixing):
  """What one head reads at one time, of all keys in sight."""
  z = keys @ q / np.sqrt(len(q))
  if mixing == "softmax":
    w = np.exp(z - z.max())
    w = w / w.sum()
  elif mixing == "sigmoid":
    w = 1 / (1 + len(z) * np.exp(-z))
  else:
    w = z / len(z)
  return w @ values


def forward(params, tokens, settings):
  """Llama as its paper has it, one token and head at a time, in float64."""
  s = {
    "activation": "silu", "value_activation": "identity", "norm": "rmsnorm",
    "mixing": "softmax", "residual": True, "tied": True, **settings,
  }  # fmt: skip
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  table, eps = p["embed"]["tokens"], s["eps"]
  keep = 1 if s["residual"] else 0
  act, on_value = (
    ACTIVATIONS[s[k]] for k in ("activation", "value_activation")
  )
  out = []
  for sequence in np.asarray(tokens):
    h = table[sequence]
    for layer in range(s["depth"]):
      b = jax.tree.map(lambda x, i=layer: x[i], p["blocks"])
      a = {name: b["attention"][name]["kernel"] for name in "qkvo"}
      reads = [norm(x, b["attention_norm"]["scale"], eps, s["norm"]) for x in h]
      q, k, v = (
        np.stack([n @ a[name] for n in reads]).reshape(
          len(h), -1, s["head_width"]
        )
        for name in "qkv"
      )
      v = np.stack([[x for x in on_value(row)] for row in v])
      added = []
      for t in range(len(h)):
        heads = []
        for i in range(s["heads"]):
          g = i // (s["heads"] // s["kv_heads"])
          keys = np.stack(
            [turned(k[j, g], j, s["rope_base"]) for j in range(t + 1)]
          )
          query = turned(q[t, i], t, s["rope_base"])
          heads.append(mixed(query, keys, v[: t + 1, g], s["mixing"]))
        added.append(np.concatenate(heads) @ a["o"])
      h = keep * h + np.stack(added)
      m = {name: b["mlp"][name]["kernel"] for name in ("gate", "up", "down")}
      added = []
      for x in h:
        n = norm(x, b["mlp_norm"]["scale"], eps, s["norm"])
        added.append((act(n @ m["gate"]) * (n @ m["up"])) @ m["down"])
      h = keep * h + np.stack(added)
    last = np.stack([norm(x, p["norm"]["scale"], eps, s["norm"]) for x in h])
    out.append(last @ (table.T if s["tied"] else p["head"]["kernel"]))
  return np.stack(out)


@pytest.mark.parametrize("name", OPTIONS)
def test_logits_are_those_of_an_independent_forward(name):
  model, params = made(name)
  logits, taps = model.apply(params, tokens)
  wanted = forward(params, tokens, {**SMALL, **OPTIONS[name]})
  np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=2e-4)
  assert taps == {}


def test_the_defaults_are_the_34m_of_the_paper():
  shapes = jax.eval_shape(llama().init, jax.random.key(0))
  count = sum(x.size for x in jax.tree.leaves(shapes))
  blocks = 8 * (4 * 512**2 + 3 * 512 * 1376 + 2 * 512)
  assert count == blocks + 16384 * 512 + 512
  assert abs(count / 34e6 - 1) < 0.02
  assert {roles.role_of(path).module for path in roles.paths(shapes)} == {
    "embed", "attention", "mlp", "norm",
  }  # fmt: skip


@pytest.mark.parametrize("name", ["plain", "sigmoid", "linear"])
def test_no_logit_has_a_gradient_in_a_later_token(name):
  model, params = made(name)

  def by_position(table, time):
    """The logits at one time, as a function of what is read everywhere."""
    p = {**params, "embed": {"tokens": table}}
    p["head"] = {"kernel": jnp.ones((12, 19))}
    return model.features(p, jnp.arange(7)[None])[0][0, time].sum()

  table = params["embed"]["tokens"]
  for time in (0, 3, 6):
    rows = jnp.abs(jax.grad(by_position)(table, time)).max(axis=1)[:7]
    assert np.all(rows[: time + 1] > 0) and np.all(rows[time + 1 :] == 0)


@pytest.mark.slow
def test_gradients_are_the_same_computed_again_and_unrolled():
  model, params = made()
  other, _ = made(remat=True, unroll=2)

  def gradient(model):
    batch = {"tokens": tokens}
    return jax.grad(lambda p: next_token_loss(model, p, batch)[0])

  with jax.disable_jit(False):
    found = jax.jit(gradient(other))(params)
    program = str(jax.make_jaxpr(gradient(other))(params))
  assert "remat2" in program and "unroll=2" in program
  for path, g in roles.paths(gradient(model)(params)).items():
    np.testing.assert_allclose(
      roles.paths(found)[path], g, rtol=1e-4, atol=1e-6
    )


def test_bfloat16_products_leave_stream_and_logits_in_float32():
  model, params = made(dtype="bfloat16")
  exact, _ = made()
  logits, seen = model.apply(params, tokens, tap=lambda seen: seen)
  dtypes = {name: x.dtype for name, x in seen.items()}
  assert dtypes == {
    "stream": jnp.float32, "logits": jnp.float32, "preactivation": jnp.bfloat16,
  }  # fmt: skip
  assert logits.dtype == jnp.float32
  wanted = exact.apply(params, tokens)[0]
  error = np.abs(logits - wanted).max() / np.abs(wanted).max()
  assert 1e-5 < error < 0.05


def test_taps_come_back_stacked_over_layers():
  model, params = made()
  _, seen = model.apply(params, tokens, tap=lambda seen: seen)
  assert {name: x.shape for name, x in seen.items()} == {
    "stream": (2, 2, 7, 12),
    "logits": (2, 2, 6, 7, 7),
    "preactivation": (2, 2, 7, 10),
  }
  np.testing.assert_array_equal(
    seen["stream"][0], params["embed"]["tokens"][tokens]
  )


@pytest.mark.parametrize(
  "change, message",
  [
    ({"kv_heads": 4}, "6 heads cannot share 4 of keys evenly"),
    ({"head_width": 3}, "an even width, not 3"),
    ({"head_width": None, "width": 13}, "6 heads do not divide width 13"),
    ({"norm": "batch"}, "norm 'batch' is none of rmsnorm, layernorm"),
    ({"activation": "swish"}, "activation 'swish' is none of relu, gelu"),
    ({"value_activation": "x"}, "value_activation 'x' is none of"),
    ({"dtype": "float16"}, "dtype 'float16' is none of float32, bfloat16"),
    ({"mixing": "mean"}, "mixing 'mean' is none of softmax, sigmoid, linear"),
    ({"attention": "flash"}, "attention 'flash' is none of plain, fused"),
    (
      {"attention": "fused", "mixing": "linear"},
      "fused attention has no linear mixing",
    ),
  ],
)
def test_mistakes_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    llama(**{**SMALL, **change})


def test_more_tokens_than_context_are_refused():
  model, params = made()
  with pytest.raises(ValueError, match="8 tokens in a context of 7"):
    model.apply(params, jnp.zeros((1, 8), int))

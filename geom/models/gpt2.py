"""GPT-2 without biases, as nanoGPT has it and arXiv 2606.13276 trains it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from geom.models.attention import (
  attention_logits,
  causal_attention,
  require,
)
from geom.models.base import (
  DTYPES,
  LanguageModel,
  Params,
  Tap,
  Taps,
  language_model,
)

QKV = ("fused", "split")


def gpt2(
  *,
  vocabulary: int = 50304,
  context: int = 1024,
  width: int = 768,
  depth: int = 12,
  heads: int = 12,
  qkv: str = "fused",
  init_std: float = 0.02,
  embed_std: float = 0.02,
  qk_norm: bool = False,
  logit_cap: float | None = None,
  attention: str = "plain",
  dtype: str = "float32",
  remat: bool = False,
  unroll: int = 1,
) -> LanguageModel:
  """Pre-LayerNorm blocks under a scan, GELU, learned positions, a tied head.

  The defaults are GPT-2 small, 124M parameters. Kernels are stacks over
  layers, `(depth, in, out)`: `blocks/attention/qkv/kernel` `(depth, width,
  3 width)`, or `q`, `k`, `v` when split, `blocks/attention/o/kernel`,
  `blocks/mlp/up/kernel` `(depth, width, 4 width)`, `blocks/mlp/down/kernel`;
  embeddings are tables `embed/tokens` `(vocabulary, width)` and
  `embed/positions` `(context, width)`.

  Args:
    vocabulary: size of the tables of tokens.
    context: most tokens in a sequence.
    width: of the residual stream.
    depth: number of blocks.
    heads: a divisor of width.
    qkv: `fused`, one kernel for Q, K and V, or `split`, three.
    init_std: of normal kernels; those that write the stream have it divided
      by `sqrt(2 depth)`.
    embed_std: of the normal embeddings.
    qk_norm: RMSNorm, with a scale, of every head's queries and keys.
    logit_cap: attention logits x become `cap tanh(x / cap)`.
    attention: a name of `geom.models.attention.METHODS`.
    dtype: of the products; parameters, residual stream, softmax and logits
      are float32.
    remat: compute a block again in the backward pass, to save memory.
    unroll: blocks in one iteration of the scan; `depth` unrolls it.

  Raises:
    ValueError: heads do not divide width, or a name is unknown. From
      `features` and `apply`: more tokens than context.
  """
  if width % heads:
    raise ValueError(f"{heads} heads do not divide width {width}")
  if qkv not in QKV:
    raise ValueError(f"qkv {qkv!r} is none of {', '.join(QKV)}")
  if dtype not in DTYPES:
    raise ValueError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
  require(heads, heads, cap=logit_cap, method=attention, mixing="softmax")
  body = partial(
    _GPT2,
    vocabulary=vocabulary,
    context=context,
    depth=depth,
    embed_std=embed_std,
    remat=remat,
    unroll=unroll,
    block=dict(
      width=width,
      heads=heads,
      split=qkv == "split",
      std=init_std,
      out_std=init_std / (2 * depth) ** 0.5,
      qk_norm=qk_norm,
      cap=logit_cap,
      method=attention,
      dtype=DTYPES[dtype],
    ),
  )

  def init(key: Any) -> Params:
    return body().init(key, jnp.zeros((1, 1), jnp.int32))["params"]

  def features(
    params: Params, tokens: Int[Array, "b t"], tap: Tap | None = None
  ) -> tuple[Float[Array, "b t d"], Taps]:
    if tokens.shape[1] > context:
      raise ValueError(f"{tokens.shape[1]} tokens in a context of {context}")
    return body(tap=tap).apply({"params": params}, tokens)

  def unembedding(params: Params) -> Float[Array, "v d"]:
    return params["embed"]["tokens"]

  return language_model(init, features, unembedding)


def _normal(std: float) -> nn.initializers.Initializer:
  return nn.initializers.normal(std)


def _layer_norm(name: str, dtype: Any) -> nn.LayerNorm:
  return nn.LayerNorm(use_bias=False, epsilon=1e-5, dtype=dtype, name=name)


class _Attention(nn.Module):
  """Reads the normed stream; returns what is added, queries and keys."""

  width: int
  heads: int
  split: bool
  std: float
  out_std: float
  qk_norm: bool
  cap: float | None
  method: str
  dtype: Any

  @nn.compact
  def __call__(
    self, n: Float[Array, "b t d"]
  ) -> tuple[
    Float[Array, "b t d"], Float[Array, "b t h k"], Float[Array, "b t h k"]
  ]:
    def dense(features: int, std: float, name: str) -> nn.Dense:
      return nn.Dense(
        features,
        use_bias=False,
        kernel_init=_normal(std),
        dtype=self.dtype,
        name=name,
      )

    if self.split:
      parts = [dense(self.width, self.std, name)(n) for name in "qkv"]
    else:
      parts = jnp.split(dense(3 * self.width, self.std, "qkv")(n), 3, axis=-1)
    shape = (*n.shape[:2], self.heads, self.width // self.heads)
    query, key, value = (x.reshape(shape) for x in parts)
    if self.qk_norm:
      query = nn.RMSNorm(dtype=self.dtype, name="q_norm")(query)
      key = nn.RMSNorm(dtype=self.dtype, name="k_norm")(key)
    out = causal_attention(
      query, key, value, cap=self.cap, method=self.method
    ).reshape(n.shape)
    return dense(self.width, self.out_std, "o")(out), query, key


class _MLP(nn.Module):
  """Reads the normed stream; returns what is added, and pre-activations."""

  width: int
  std: float
  out_std: float
  dtype: Any

  @nn.compact
  def __call__(
    self, n: Float[Array, "b t d"]
  ) -> tuple[Float[Array, "b t d"], Float[Array, "b t f"]]:
    dense = partial(nn.Dense, use_bias=False, dtype=self.dtype)
    z = dense(4 * self.width, kernel_init=_normal(self.std), name="up")(n)
    a = jax.nn.gelu(z, approximate=False)
    return (
      dense(self.width, kernel_init=_normal(self.out_std), name="down")(a),
      z,
    )


class _Block(nn.Module):
  """One block, in the form that `nn.scan` wants."""

  width: int
  heads: int
  split: bool
  std: float
  out_std: float
  qk_norm: bool
  cap: float | None
  method: str
  dtype: Any
  tap: Tap | None = None

  @nn.compact
  def __call__(
    self, h: Float[Array, "b t d"], _: None
  ) -> tuple[Float[Array, "b t d"], Taps]:
    same = {"width": self.width, "std": self.std, "out_std": self.out_std}
    attend = _Attention(
      **same,
      heads=self.heads,
      split=self.split,
      qk_norm=self.qk_norm,
      cap=self.cap,
      method=self.method,
      dtype=self.dtype,
      name="attention",
    )
    added, query, key = attend(_layer_norm("attention_norm", self.dtype)(h))
    after = h + added.astype(h.dtype)
    mlp = _MLP(**same, dtype=self.dtype, name="mlp")
    added, z = mlp(_layer_norm("mlp_norm", self.dtype)(after))
    taps = {}
    if self.tap is not None:
      taps = self.tap(
        {
          "stream": h,
          "logits": attention_logits(query, key, cap=self.cap),
          "preactivation": z,
        }
      )
    return after + added.astype(h.dtype), taps


class _Embed(nn.Module):
  """Token and position tables, added."""

  vocabulary: int
  context: int
  width: int
  std: float

  @nn.compact
  def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
    init = _normal(self.std)
    table = self.param("tokens", init, (self.vocabulary, self.width))
    positions = self.param("positions", init, (self.context, self.width))
    return table[tokens] + positions[None, : tokens.shape[1]]


class _GPT2(nn.Module):
  vocabulary: int
  context: int
  depth: int
  embed_std: float
  remat: bool
  unroll: int
  block: Mapping[str, Any]
  tap: Tap | None = None

  @nn.compact
  def __call__(
    self, tokens: Int[Array, "b t"]
  ) -> tuple[Float[Array, "b t d"], Taps]:
    width, dtype = self.block["width"], self.block["dtype"]
    h = _Embed(
      self.vocabulary, self.context, width, self.embed_std, name="embed"
    )(tokens)
    blocks = nn.scan(
      nn.remat(_Block, prevent_cse=False) if self.remat else _Block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      length=self.depth,
      unroll=self.unroll,
    )
    h, taps = blocks(**self.block, tap=self.tap, name="blocks")(h, None)
    return _layer_norm("norm", dtype)(h), taps

"""A Llama-style transformer, and what arXiv 2605.04971 changes in it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from geom.models import activations
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

NORMS = ("rmsnorm", "layernorm")


def llama(
  *,
  vocabulary: int = 16384,
  context: int = 512,
  width: int = 512,
  depth: int = 8,
  heads: int = 8,
  kv_heads: int = 8,
  head_width: int | None = None,
  hidden: int = 1376,
  activation: str = "silu",
  radius: float = 1.0,
  norm: str = "rmsnorm",
  eps: float = 1e-5,
  residual: bool = True,
  mixing: str = "softmax",
  value_activation: str = "identity",
  rope_base: float = 10_000.0,
  tied: bool = True,
  init_std: float = 0.02,
  embed_std: float = 0.02,
  attention: str = "plain",
  dtype: str = "float32",
  remat: bool = False,
  unroll: int = 1,
) -> LanguageModel:
  """Pre-norm blocks under a scan: rotary attention, then a gated MLP.

      h = h + O(attention(Q n, K n, V n)),  n = norm(h)
      h = h + Down(act(Gate n) * Up n),     n = norm(h)

  The defaults have 33.7M parameters, in 8 layers as in arXiv 2605.04971.
  Kernels are stacks over layers, `(depth, in, out)`, without biases:
  `blocks/attention/q/kernel` `(depth, width, heads head_width)`, `k` and `v`
  with `kv_heads`, `o`; `blocks/mlp/gate/kernel` `(depth, width, hidden)`,
  `up`, `down`. `embed/tokens` is `(vocabulary, width)`, and `head/kernel`
  `(width, vocabulary)` where it is not tied to it.

  Args:
    vocabulary: size of the table of tokens.
    context: most tokens in a sequence.
    width: of the residual stream.
    depth: number of blocks.
    heads: of queries.
    kv_heads: of keys and values, a divisor of heads.
    head_width: of a head, even; None: width / heads.
    hidden: width of the MLP.
    activation: of the gate, a name of `geom.models.activations.NAMES`.
    radius: of the activation `radial`.
    norm: `rmsnorm`, or `layernorm` without bias.
    eps: of the norms.
    residual: False: a block's attention and MLP replace the stream.
    mixing: a name of `geom.models.attention.MIXINGS`.
    value_activation: of what V gives, a name as for `activation`.
    rope_base: the angle of position t in pair i of a head, of positions i
      and `i + head_width / 2`, is `t rope_base^(-2 i / head_width)`.
    tied: logits by the table of tokens.
    init_std: of normal kernels; those that write the stream have it divided
      by `sqrt(2 depth)`.
    embed_std: of the table of tokens.
    attention: a name of `geom.models.attention.METHODS`.
    dtype: of the products; parameters, residual stream, softmax and logits
      are float32.
    remat: compute a block again in the backward pass, to save memory.
    unroll: blocks in one iteration of the scan; `depth` unrolls it.

  Raises:
    ValueError: head counts or widths do not fit, or a name is unknown. From
      `features` and `apply`: more tokens than context.
  """
  if head_width is None:
    if width % heads:
      raise ValueError(f"{heads} heads do not divide width {width}")
    head_width = width // heads
  if head_width % 2:
    raise ValueError(f"a rotary head has an even width, not {head_width}")
  for what, name, names in (
    ("norm", norm, NORMS),
    ("dtype", dtype, DTYPES),
    ("activation", activation, activations.NAMES),
    ("value_activation", value_activation, activations.NAMES),
  ):
    if name not in names:
      raise ValueError(f"{what} {name!r} is none of {', '.join(names)}")
  require(heads, kv_heads, cap=None, method=attention, mixing=mixing)
  body = partial(
    _Llama,
    vocabulary=vocabulary,
    width=width,
    depth=depth,
    tied=tied,
    embed_std=embed_std,
    remat=remat,
    unroll=unroll,
    block=dict(
      normed=partial(_norm, norm, eps, DTYPES[dtype]),
      attention=dict(
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        base=rope_base,
        activation=activations.activation(value_activation, radius),
        method=attention,
        mixing=mixing,
      ),
      mlp=dict(
        hidden=hidden, activation=activations.activation(activation, radius)
      ),
      kernels=dict(
        width=width,
        std=init_std,
        out_std=init_std / (2 * depth) ** 0.5,
        dtype=DTYPES[dtype],
      ),
      residual=residual,
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
    return params["embed"]["tokens"] if tied else params["head"]["kernel"].T

  return language_model(init, features, unembedding)


def rotary(
  x: Float[Array, "b t h d"], *, base: float
) -> Float[Array, "b t h d"]:
  """Turns pairs (i, i + d/2) of every head by `t base^(-2 i / d)` radians.

  In float32, whatever the dtype (RoFormer, arXiv 2104.09864, in the pairing
  of Hugging Face's Llama).
  """
  half = x.shape[-1] // 2
  frequency = base ** (-jnp.arange(half) / half)
  angle = jnp.arange(x.shape[1])[:, None] * frequency[None, :]
  cos, sin = (f(angle)[None, :, None] for f in (jnp.cos, jnp.sin))
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _norm(norm: str, eps: float, dtype: Any, name: str) -> nn.Module:
  if norm == "rmsnorm":
    return nn.RMSNorm(epsilon=eps, dtype=dtype, name=name)
  return nn.LayerNorm(use_bias=False, epsilon=eps, dtype=dtype, name=name)


def _dense(features: int, std: float, dtype: Any, name: str) -> nn.Dense:
  return nn.Dense(
    features,
    use_bias=False,
    kernel_init=nn.initializers.normal(std),
    dtype=dtype,
    name=name,
  )


class _Attention(nn.Module):
  """Reads the normed stream; returns what is added, queries and keys."""

  heads: int
  kv_heads: int
  head_width: int
  base: float
  activation: activations.Activation
  method: str
  mixing: str
  width: int
  std: float
  out_std: float
  dtype: Any

  @nn.compact
  def __call__(
    self, n: Float[Array, "b t d"]
  ) -> tuple[
    Float[Array, "b t d"], Float[Array, "b t h k"], Float[Array, "b t g k"]
  ]:
    def by_head(name: str, heads: int) -> Float[Array, "b t g k"]:
      dense = _dense(heads * self.head_width, self.std, self.dtype, name)
      return dense(n).reshape(*n.shape[:2], heads, self.head_width)

    query = rotary(by_head("q", self.heads), base=self.base)
    key = rotary(by_head("k", self.kv_heads), base=self.base)
    value = self.activation(by_head("v", self.kv_heads))
    out = causal_attention(
      query, key, value, method=self.method, mixing=self.mixing
    ).reshape(*n.shape[:2], -1)
    return _dense(self.width, self.out_std, self.dtype, "o")(out), query, key


class _MLP(nn.Module):
  """Reads the normed stream; returns what is added, and pre-activations."""

  hidden: int
  activation: activations.Activation
  width: int
  std: float
  out_std: float
  dtype: Any

  @nn.compact
  def __call__(
    self, n: Float[Array, "b t d"]
  ) -> tuple[Float[Array, "b t d"], Float[Array, "b t f"]]:
    z = _dense(self.hidden, self.std, self.dtype, "gate")(n)
    up = _dense(self.hidden, self.std, self.dtype, "up")(n)
    down = _dense(self.width, self.out_std, self.dtype, "down")
    return down(self.activation(z) * up), z


class _Block(nn.Module):
  """One block, in the form that `nn.scan` wants."""

  normed: Any  # name -> norm
  attention: Mapping[str, Any]
  mlp: Mapping[str, Any]
  kernels: Mapping[str, Any]
  residual: bool
  tap: Tap | None = None

  @nn.compact
  def __call__(
    self, h: Float[Array, "b t d"], _: None
  ) -> tuple[Float[Array, "b t d"], Taps]:
    attend = _Attention(**self.attention, **self.kernels, name="attention")
    added, query, key = attend(self.normed(name="attention_norm")(h))
    after = self._joined(h, added)
    mlp = _MLP(**self.mlp, **self.kernels, name="mlp")
    added, z = mlp(self.normed(name="mlp_norm")(after))
    taps = {}
    if self.tap is not None:
      logits = attention_logits(query, key)
      taps = self.tap({"stream": h, "logits": logits, "preactivation": z})
    return self._joined(after, added), taps

  def _joined(
    self, h: Float[Array, "b t d"], added: Float[Array, "b t d"]
  ) -> Float[Array, "b t d"]:
    added = added.astype(h.dtype)
    return h + added if self.residual else added


class _Table(nn.Module):
  """A matrix of its own: of vectors of tokens, or the head's kernel."""

  shape: tuple[int, int]
  std: float
  called: str

  @nn.compact
  def __call__(self) -> Float[Array, "m n"]:
    init = nn.initializers.normal(self.std)
    return self.param(self.called, init, self.shape)


class _Llama(nn.Module):
  vocabulary: int
  width: int
  depth: int
  tied: bool
  embed_std: float
  remat: bool
  unroll: int
  block: Mapping[str, Any]
  tap: Tap | None = None

  @nn.compact
  def __call__(
    self, tokens: Int[Array, "b t"]
  ) -> tuple[Float[Array, "b t d"], Taps]:
    shape = (self.vocabulary, self.width)
    h = _Table(shape, self.embed_std, "tokens", name="embed")()[tokens]
    if not self.tied:  # Read by `unembedding`.
      _Table(shape[::-1], self.block["kernels"]["std"], "kernel", name="head")()
    blocks = nn.scan(
      nn.remat(_Block, prevent_cse=False) if self.remat else _Block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      length=self.depth,
      unroll=self.unroll,
    )
    h, taps = blocks(**self.block, tap=self.tap, name="blocks")(h, None)
    return self.block["normed"](name="norm")(h), taps

"""Causal attention over heads: how keys are weighed, two ways to compute it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

METHODS = ("plain", "fused")
# From logits to weights. Only the first normalises: its rows sum to 1.
MIXINGS = ("softmax", "sigmoid", "linear")


def causal_attention(
  query: Float[Array, "b t h d"],
  key: Float[Array, "b t g d"],
  value: Float[Array, "b t g d"],
  *,
  cap: float | None = None,
  method: str = "plain",
  mixing: str = "softmax",
) -> Float[Array, "b t h d"]:
  """`softmax(Q K.T / sqrt(d)) V` of every head; time t sees 0..t.

  The weights are computed in float32, whatever the dtype.

  Args:
    query: by batch, time, head, depth.
    key, value: likewise; of fewer heads, each for `h / g` queries in turn.
    cap: logits x become `cap tanh(x / cap)`; None: as they are.
    method: `plain` writes the logits out, `fused` is
      `jax.nn.dot_product_attention`, which on a GPU does not.
    mixing: `softmax`; or, of logits x and t keys in sight, `sigmoid`,
      `1 / (1 + t exp(-x))`, elementwise and near 1 / t at x = 0, or `linear`,
      `x / t`, no nonlinearity at all.

  Raises:
    ValueError: an unknown name, heads that do not divide, or `fused` with a
      cap or without softmax, which it has not.
  """
  require(query.shape[2], key.shape[2], cap=cap, method=method, mixing=mixing)
  if method == "fused":
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)
  logits = attention_logits(query, key, cap=cap)
  weights = _weights(logits, mixing).astype(value.dtype)
  shared = query.shape[2] // value.shape[2]
  value = jnp.repeat(value, shared, axis=2)
  return jnp.einsum("bhts,bshd->bthd", weights, value)


def require(
  heads: int, shared: int, *, cap: float | None, method: str, mixing: str
) -> None:
  """Raises ValueError unless `causal_attention` can be had so."""
  for what, name, names in (
    ("attention", method, METHODS),
    ("mixing", mixing, MIXINGS),
  ):
    if name not in names:
      raise ValueError(f"{what} {name!r} is none of {', '.join(names)}")
  if heads % shared:
    raise ValueError(f"{heads} heads cannot share {shared} of keys evenly")
  if method == "fused" and cap is not None:
    raise ValueError("fused attention takes no logit_cap: use plain")
  if method == "fused" and mixing != "softmax":
    raise ValueError(f"fused attention has no {mixing} mixing: use plain")


def attention_logits(
  query: Float[Array, "b t h d"],
  key: Float[Array, "b t g d"],
  *,
  cap: float | None = None,
) -> Float[Array, "b h t t"]:
  """What the softmax is given, in float32: -inf where a key is not seen."""
  depth = query.shape[-1]
  key = jnp.repeat(key, query.shape[2] // key.shape[2], axis=2)
  logits = jnp.einsum(
    "bthd,bshd->bhts",
    query * (depth**-0.5),
    key,
    preferred_element_type=jnp.float32,
  )
  if cap is not None:
    logits = cap * jnp.tanh(logits / cap)
  return jnp.where(_seen(query.shape[1]), logits, -jnp.inf)


def _seen(time: int) -> Bool[Array, "1 1 t t"]:
  return jnp.tril(jnp.ones((1, 1, time, time), bool))


def _weights(
  logits: Float[Array, "b h t t"], mixing: str
) -> Float[Array, "b h t t"]:
  if mixing == "softmax":
    return jax.nn.softmax(logits, axis=-1)
  time = logits.shape[-1]
  in_sight = jnp.arange(1.0, time + 1)[None, None, :, None]
  if mixing == "sigmoid":
    return jax.nn.sigmoid(logits - jnp.log(in_sight))
  return jnp.where(_seen(time), logits, 0) / in_sight

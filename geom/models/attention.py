"""Causal attention over heads: two ways to the same numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

METHODS = ("plain", "fused")


def causal_attention(
  query: Float[Array, "b t h d"],
  key: Float[Array, "b t h d"],
  value: Float[Array, "b t h d"],
  *,
  cap: float | None = None,
  method: str = "plain",
) -> Float[Array, "b t h d"]:
  """`softmax(Q K.T / sqrt(d)) V` of every head; time t sees 0..t.

  The softmax is taken in float32, whatever the dtype.

  Args:
    query, key, value: by batch, time, head, depth.
    cap: logits x become `cap tanh(x / cap)`; None: as they are.
    method: `plain` writes the logits out, `fused` is
      `jax.nn.dot_product_attention`, which on a GPU does not.

  Raises:
    ValueError: an unknown method, or `fused` with a cap, which it has not.
  """
  if method not in METHODS:
    raise ValueError(f"attention {method!r} is none of {', '.join(METHODS)}")
  if method == "fused":
    if cap is not None:
      raise ValueError("fused attention takes no logit_cap: use plain")
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)
  logits = attention_logits(query, key, cap=cap)
  weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
  return jnp.einsum("bhts,bshd->bthd", weights, value)


def attention_logits(
  query: Float[Array, "b t h d"],
  key: Float[Array, "b t h d"],
  *,
  cap: float | None = None,
) -> Float[Array, "b h t t"]:
  """What the softmax is given, in float32: -inf where a key is not seen."""
  time, depth = query.shape[1], query.shape[-1]
  logits = jnp.einsum(
    "bthd,bshd->bhts",
    query * (depth**-0.5),
    key,
    preferred_element_type=jnp.float32,
  )
  if cap is not None:
    logits = cap * jnp.tanh(logits / cap)
  seen = jnp.tril(jnp.ones((time, time), bool))
  return jnp.where(seen[None, None], logits, -jnp.inf)

"""Cross-entropy of a large vocabulary, a few positions at a time."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(
  features: Float[Array, "n d"],
  table: Float[Array, "v d"],
  targets: Int[Array, " n"],
  *,
  chunk: int | None = None,
) -> Float[Array, ""]:
  """Mean of `logsumexp(x @ table.T) - (x @ table.T)[target]`, in nats.

  Logits are float32. With `chunk` never more than that many rows of them
  exist: the gradient of a chunk is computed with its loss, so that nothing is
  computed twice.

  Args:
    features: one position a row.
    table: the unembedding.
    targets: of each row, 0 <= target < v.
    chunk: rows at a time; None: all.
  """
  chunk = min(chunk or len(targets), len(targets))
  return _chunked(features, table, targets, chunk) / len(targets)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _chunked(
  x: Float[Array, "n d"],
  table: Float[Array, "v d"],
  targets: Int[Array, " n"],
  chunk: int,
) -> Float[Array, ""]:
  """The sum over rows."""
  table = table.astype(x.dtype)

  def one(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
    rows, at, real = part
    return total + _sum(_logits(rows, table), at, real), None

  return jax.lax.scan(one, jnp.zeros(()), _parts(x, targets, chunk))[0]


def _forward(
  x: Float[Array, "n d"],
  table: Float[Array, "v d"],
  targets: Int[Array, " n"],
  chunk: int,
) -> tuple[Float[Array, ""], Any]:
  """The sum, and its gradients, which are linear in what comes back."""
  small = table.astype(x.dtype)

  def one(carry: Any, part: Any) -> tuple[Any, Array]:
    total, d_table = carry
    rows, at, real = part
    logits = _logits(rows, small)
    value, pull = jax.vjp(lambda z: _sum(z, at, real), logits)
    (d_logits,) = pull(jnp.ones(()))
    d_logits = d_logits.astype(x.dtype)
    d_rows = jnp.einsum("cv,vd->cd", d_logits, small)
    d_table += jnp.einsum(
      "cv,cd->vd", d_logits, rows, preferred_element_type=jnp.float32
    )
    return (total + value, d_table), d_rows

  start = (jnp.zeros(()), jnp.zeros(table.shape))
  (total, d_table), d_x = jax.lax.scan(one, start, _parts(x, targets, chunk))
  d_x = d_x.reshape(-1, x.shape[1])[: len(x)]
  return total, (d_x, d_table.astype(table.dtype))


def _backward(
  chunk: int, gradients: Any, by: Float[Array, ""]
) -> tuple[Array, Array, None]:
  del chunk
  d_x, d_table = gradients
  return d_x * by.astype(d_x.dtype), d_table * by.astype(d_table.dtype), None


_chunked.defvjp(_forward, _backward)


def _parts(
  x: Float[Array, "n d"], targets: Int[Array, " n"], chunk: int
) -> tuple[Array, Array, Array]:
  """Chunks of rows, their targets, and which rows are real."""
  n = len(targets)
  more = -n % chunk
  real = jnp.arange(n + more) < n
  x = jnp.pad(x, ((0, more), (0, 0)))
  return (
    x.reshape(-1, chunk, x.shape[1]),
    jnp.pad(targets, (0, more)).reshape(-1, chunk),
    real.reshape(-1, chunk),
  )


def _logits(
  rows: Float[Array, "c d"], table: Float[Array, "v d"]
) -> Float[Array, "c v"]:
  return jnp.einsum(
    "cd,vd->cv", rows, table, preferred_element_type=jnp.float32
  )


def _sum(
  logits: Float[Array, "c v"], targets: Int[Array, " c"], real: Array
) -> Float[Array, ""]:
  picked = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
  each = jax.nn.logsumexp(logits, axis=1) - picked
  return jnp.sum(jnp.where(real, each, 0.0))

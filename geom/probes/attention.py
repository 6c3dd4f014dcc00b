"""What attention and an MLP do with what they are given, layer by layer.

The signs by which arXiv 2606.13276 explains why attention blows up: singular
values of W_Q and W_K grow, logits with them, the softmax saturates, and its
Jacobian vanishes, and with it the gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.linalg import matmul

SATURATED = 0.99  # A probability above which a row of attention has one key.
GELU_OFF = 3.0  # Beyond it GELU is within .005 of 0, or of the identity.


def attention_numbers(
  logits: Float[Array, "b h t t"],
) -> dict[str, Float[Array, ""]]:
  """Numbers of one layer's attention, from the logits of its softmax.

  Args:
    logits: with -inf where a key is not seen; every row sees one at least.

  Returns:
    `logit_max`, the largest |logit|, and `logit_rms`, of what is seen; of the
    rows that see two keys or more, on average, `entropy_nats`, `entropy`, the
    same over log(number of keys), and `jacobian`, the Frobenius norm of the
    softmax's Jacobian `diag(p) - p p.T`; and `saturation`, the share of them
    whose largest probability is above .99. Without such rows these are NaN.
  """
  z = logits.astype(jnp.float32)
  seen = z != -jnp.inf
  keys = jnp.sum(seen, axis=-1)
  choice = keys > 1
  p = _softmax(z)

  def mean(rows: Float[Array, "b h t"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(choice, rows, 0.0)) / jnp.sum(choice)

  safe = jnp.where(p > 0, p, 1.0)
  entropy = -jnp.sum(p * jnp.log(safe), axis=-1)
  only = jnp.where(seen, z, 0.0)
  largest = jnp.max(p, axis=-1)
  return {
    "logit_max": jnp.max(jnp.abs(only)),
    "logit_rms": jnp.sqrt(jnp.sum(only**2) / jnp.sum(seen)),
    "entropy_nats": mean(entropy),
    "entropy": mean(entropy / jnp.log(jnp.maximum(keys, 2))),
    "jacobian": mean(_jacobian_norm(p)),
    "saturation": mean((largest > SATURATED) + 0 * largest),  # NaN is not 0.
  }


def mlp_numbers(z: Float[Array, "*b f"]) -> dict[str, Float[Array, ""]]:
  """Numbers of one layer's MLP, from its pre-activations.

  Returns:
    `preactivation_rms`; `dead` and `linear`, the shares below -3 and above 3,
    where GELU is 0 and the identity to .005. Neither can saturate the way a
    softmax does: beyond 3 its slope is 1.
  """
  z = z.astype(jnp.float32)
  return {
    "preactivation_rms": jnp.sqrt(jnp.mean(z**2)),
    "dead": jnp.mean((z < -GELU_OFF).astype(jnp.float32)),
    "linear": jnp.mean((z > GELU_OFF).astype(jnp.float32)),
  }


def query_key_norms(
  query: Float[Array, "*s m n"], key: Float[Array, "*s m n"], heads: int
) -> Float[Array, "*s {heads}"]:
  """The largest singular value of `W_Q W_K.T` of every head.

  What the logit of a unit vector with itself is bounded by, but for
  `1 / sqrt(depth)`. No LAPACK: with `A = W_Q.T W_Q` and `B = W_K.T W_K` it is
  the square root of the largest eigenvalue of A B, which the trace of
  `(A B)^(2^k)` gives to `log(depth) / 2^k`.

  Args:
    query, key: kernels `(in, heads depth)`, heads side by side.
    heads: how many; it divides the last axis.
  """

  def heads_of(kernel: Float[Array, "*s m n"]) -> Float[Array, "*s h m d"]:
    w = kernel.astype(jnp.promote_types(kernel.dtype, jnp.float32))
    return jnp.moveaxis(w.reshape(*w.shape[:-1], heads, -1), -2, -3)

  def gram(w: Float[Array, "*s h m d"]) -> Float[Array, "*s h d d"]:
    return matmul(jnp.swapaxes(w, -1, -2), w)

  (query, q_size), (key, k_size) = map(_unit, map(heads_of, (query, key)))
  power, size = _unit(matmul(gram(query), gram(key)))
  log_norm = jnp.log(size) / 2
  for k in range(_SQUARINGS):
    power, size = _unit(matmul(power, power))
    log_norm += jnp.log(size) / 2 ** (k + 2)
  trace = jnp.trace(power, axis1=-2, axis2=-1)
  log_norm += jnp.log(jnp.maximum(trace, 1.0)) / 2 ** (_SQUARINGS + 1)
  norm = jnp.where(trace == 0, 0.0, jnp.exp(log_norm))
  return norm * q_size * k_size


_SQUARINGS = 20


def _unit(
  a: Float[Array, "*s m n"],
) -> tuple[Float[Array, "*s m n"], Float[Array, "*s"]]:
  """Matrices of largest entry 1, or zero, and what they were divided by."""
  size = jnp.max(jnp.abs(a), axis=(-1, -2))
  safe = jnp.where(size == 0, 1.0, size)
  return a / safe[..., None, None], safe


def _softmax(z: Float[Array, "b h t t"]) -> Float[Array, "b h t t"]:
  z = z - jnp.max(z, axis=-1, keepdims=True)
  e = jnp.exp(z)
  return e / jnp.sum(e, axis=-1, keepdims=True)


def _jacobian_norm(p: Float[Array, "b h t t"]) -> Float[Array, "b h t"]:
  """`||diag(p) - p p.T||_F` of every row, without cancellation near p = 1.

  Its square is the sum of `p_i^2 (1 - p_i)^2` and of `p_i^2 p_j^2`, i != j;
  the largest p is kept apart from the others.
  """
  largest = jnp.max(p, axis=-1)
  is_largest = jax.nn.one_hot(jnp.argmax(p, axis=-1), p.shape[-1], dtype=bool)
  others = jnp.where(is_largest, 0.0, p)
  beside = jnp.sum(others, axis=-1)
  two, four = (jnp.sum(others**k, axis=-1) for k in (2, 4))
  diagonal = (largest * beside) ** 2 + jnp.sum(
    (others * (1 - others)) ** 2, axis=-1
  )
  pairs = 2 * largest**2 * two + jnp.maximum(two**2 - four, 0.0)
  return jnp.sqrt(diagonal + pairs)

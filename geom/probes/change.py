"""What training has changed: dominance, transfer, drift of singular vectors."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from geom.linalg import Triplets
from geom.probes.continuity import is_defined, vectors


def transfer(
  weights: Triplets, added: Triplets, side: str
) -> Float[Array, "*s layer"]:
  """`|<v1(W_l), v1(A_l)>|` of each layer's weights and what was added to them.

  A is W - W(0), or the sum of gradients. Near 1 once the weights have taken
  over the leading direction of their updates; chance `chance_cosine(d)`.

  Args:
    weights: at least two leading triplets of `(*s, L, in, out)`.
    added: likewise.
    side: `input` or `output`.

  Returns:
    NaN where either leading vector is not defined.

  Raises:
    ValueError: another side.
  """
  v, w = vectors(weights, side)[..., 0], vectors(added, side)[..., 0]
  cos = jnp.minimum(jnp.abs(jnp.sum(v * w, axis=-1)), 1)
  return jnp.where(_leads(weights) & _leads(added), cos, jnp.nan)


def rotation_drift(
  now: Triplets, before: Triplets, side: str
) -> Float[Array, "*s layer"]:
  """The angle in radians by which a layer's leading vector has turned.

  From 0 to pi/2, the sign being arbitrary; accurate for small angles, where
  the arc cosine of a float32 is not.

  Returns:
    NaN where the vector was or is not defined.

  Raises:
    ValueError: another side.
  """
  v, w = vectors(now, side)[..., 0], vectors(before, side)[..., 0]
  inner = jnp.sum(v * w, axis=-1, keepdims=True)
  apart = jnp.linalg.norm(v - jnp.where(inner < 0, -w, w), axis=-1)
  angle = 2 * jnp.arcsin(jnp.minimum(apart / 2, 1))
  return jnp.where(_leads(now) & _leads(before), angle, jnp.nan)


def _leads(t: Triplets) -> Bool[Array, "*s layer"]:
  """Whether there is a leading singular vector."""
  return is_defined(t.values[..., 0], t.values[..., 1])

"""Alignment of adjacent layers over the whole spectrum.

Two readings of the sigma^2-weighted alignment of arXiv 2605.04971. `centred`
needs no decomposition: with the Gram matrices A, B of adjacent layers on one
side, scaled to trace 1 and less I/d, it is their cosine. Uncentred it would be
near d'/(d + d') for any two random kernels and tell little. `matched`
compares singular vectors of the same index, weighted by their energy.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.linalg import Triplets, matmul, unit_frobenius
from geom.probes.continuity import index_defined, vectors

# A centred Gram matrix counts if it is more than this share of the whole: its
# rounding error is about 1e-6 of the whole.
CENTRED_FLOOR = 1e-3
# The energy in undefined singular vectors that `matched` puts up with. In the
# bulk of a large matrix some neighbours are always too close: about a
# twentieth of the energy of Gaussian (768, 3072) kernels.
UNDEFINED_ENERGY = 0.1


def centred_alignment(
  stack: Float[Array, "*s layer m n"], side: str
) -> Float[Array, "*s pair"]:
  """Cosine of the centred Gram matrices of adjacent kernels; chance 0.

  Args:
    stack: kernels `(*s, L, in, out)`.
    side: `input`, Gram matrices K K.T, the paper's W.T W; or `output`, K.T K.

  Returns:
    In [-1, 1]; NaN where a centred Gram matrix vanishes: a zero matrix, or
    one with equal singular values in every direction of that side.

  Raises:
    ValueError: another side.
  """
  if side not in ("input", "output"):
    raise ValueError(f"side {side!r} is neither input nor output")
  a, _ = unit_frobenius(stack)  # So that the Gram matrices have trace 1.
  if side == "output":
    a = jnp.swapaxes(a, -1, -2)
  a_t = jnp.swapaxes(a, -1, -2)
  d, other = a.shape[-2:]
  if d <= other:
    gram = matmul(a, a_t)
    size = jnp.linalg.norm(gram, axis=(-1, -2))
    gram = gram - jnp.broadcast_to(jnp.eye(d, dtype=a.dtype) / d, gram.shape)
    norm = jnp.linalg.norm(gram, axis=(-1, -2))
    inner = jnp.sum(gram[..., :-1, :, :] * gram[..., 1:, :, :], axis=(-1, -2))
  else:
    # The same from smaller matrices: tr(K.T K K'.T K') = ||K K'.T||_F^2.
    size = jnp.linalg.norm(matmul(a_t, a), axis=(-1, -2))
    norm = jnp.sqrt(jnp.maximum(size**2 - 1 / d, 0))
    cross = matmul(a_t[..., :-1, :, :], a[..., 1:, :, :])
    inner = jnp.sum(cross**2, axis=(-1, -2)) - 1 / d
  norm = jnp.where(norm > CENTRED_FLOOR * size, norm, jnp.nan)
  return inner / (norm[..., :-1] * norm[..., 1:])


def matched_alignment(triplets: Triplets, side: str) -> Float[Array, "*s pair"]:
  """`sum_i (w_i + w'_i) / 2 |<v_i, v'_i>|` with `w_i = s_i^2 / sum s^2`.

  Args:
    triplets: all of them, min(in, out), of a stack `(*s, L, in, out)`.
    side: `input` or `output`.

  Returns:
    In [0, 1]; the mean over the singular vectors that are defined in both
    layers, NaN where more than `UNDEFINED_ENERGY` of the weight is on others.

  Raises:
    ValueError: another side.
  """
  v = vectors(triplets, side)
  energy = (triplets.values / triplets.values[..., :1]) ** 2
  w = energy / jnp.sum(energy, axis=-1, keepdims=True)
  weight = (w[..., :-1, :] + w[..., 1:, :]) / 2
  alone = index_defined(triplets)
  both = alone[..., :-1, :] & alone[..., 1:, :]
  cos = jnp.abs(jnp.sum(v[..., :-1, :, :] * v[..., 1:, :, :], axis=-2))
  value = jnp.sum(jnp.where(both, weight * cos, 0), axis=-1)
  undefined = jnp.sum(jnp.where(both, 0, weight), axis=-1)
  defined = undefined <= UNDEFINED_ENERGY
  return jnp.where(defined, value / (1 - undefined), jnp.nan)


def effective_rank(values: Float[Array, "*s k"]) -> Float[Array, "*s"]:
  """`exp` of the entropy of `s^2 / sum s^2`: from 1 to k; NaN for zero.

  Args:
    values: all singular values of each matrix, descending.
  """
  energy = (values / values[..., :1]) ** 2
  p = energy / jnp.sum(energy, axis=-1, keepdims=True)
  return jnp.exp(-jnp.sum(jnp.where(p > 0, p * jnp.log(p), p), axis=-1))

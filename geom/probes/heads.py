"""Continuity of single heads: slices of the kernels of attention.

Heads of a layer have no order that training knows of, so head h of one layer
has no partner in the next: two of the three numbers do not depend on how
heads are numbered.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from geom.linalg import Triplets
from geom.probes.continuity import is_defined, vectors

WAYS = ("pairs", "best", "same")


def split(
  stack: Float[Array, "layer m n"], heads: int, axis: str
) -> Float[Array, "layer head a b"]:
  """The slices of heads that lie side by side along `in` or `out`.

  Args:
    stack: of kernels.
    heads: how many; they divide that axis.
    axis: `out` for what makes heads, Q, K and V; `in` for O, which reads them.

  Raises:
    ValueError: another axis, or heads do not divide it.
  """
  layers, m, n = stack.shape
  if axis not in ("in", "out"):
    raise ValueError(f"axis {axis!r} is neither in nor out")
  if (m if axis == "in" else n) % heads:
    raise ValueError(f"{heads} heads do not divide {axis} of {(m, n)}")
  if axis == "in":
    return stack.reshape(layers, heads, m // heads, n)
  apart = stack.reshape(layers, m, heads, n // heads)
  return jnp.swapaxes(apart, 1, 2)


def head_cosines(
  triplets: Triplets, side: str
) -> dict[str, Float[Array, " pair"]]:
  """|cos| of the leading vectors of heads of adjacent layers, three ways.

  Args:
    triplets: two at least, of slices `(layer, head, in, out)`.
    side: `input` or `output`.

  Returns:
    Of every pair of layers: `pairs`, the mean over all pairs of heads; `best`,
    the mean over heads of the largest with any head of the next layer; `same`,
    the mean over heads of that with the head of the same number. NaN where no
    pair of heads has leading vectors, else of those that have. Chance levels:
    `chance_cosine(d)`, for `best` `chance_best(d, heads)`.
  """
  s = triplets.values
  defined = is_defined(s[..., 0], s[..., 1])
  v = vectors(triplets, side)[..., 0]
  inner = jnp.einsum("lhd,lgd->lhg", v[:-1], v[1:], precision="highest")
  both = defined[:-1, :, None] & defined[1:, None, :]
  cos = jnp.where(both, jnp.minimum(jnp.abs(inner), 1), jnp.nan)
  return {
    "pairs": jnp.nanmean(cos, axis=(1, 2)),
    "best": jnp.nanmean(jnp.nanmax(cos, axis=2), axis=1),
    "same": jnp.nanmean(jnp.diagonal(cos, axis1=1, axis2=2), axis=1),
  }


def chance_best(d: int, heads: int, trials: int = 4000) -> float:
  """Mean of the largest |cos| of a direction with `heads` random ones.

  By simulation, always the same; right to about a hundredth of itself.

  Args:
    d: dimension.
    heads: how many there are to choose from.
    trials: of the simulation.
  """
  # |cos| with a fixed axis: a chi variable over the norm of d normal ones.
  rng = np.random.default_rng(0)
  along = rng.standard_normal((trials, heads))
  rest = rng.chisquare(d - 1, (trials, heads)) if d > 1 else 0.0
  cos = np.abs(along) / np.sqrt(along**2 + rest)
  return float(cos.max(axis=1).mean())

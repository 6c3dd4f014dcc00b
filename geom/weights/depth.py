"""How leading vectors go on from layer to layer, all pairs of layers."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def cosines(
  vectors: Sequence[Float[np.ndarray, " d"] | None],
) -> Float[np.ndarray, "l l"]:
  """|cos| of the vectors of every two layers; NaN where one is None.

  Args:
    vectors: one a layer, of norm 1; None where it is not defined.
  """
  there = [i for i, v in enumerate(vectors) if v is not None]
  found = np.full((len(vectors), len(vectors)), np.nan)
  if there:
    stack = np.stack([np.asarray(vectors[i], np.float64) for i in there])
    found[np.ix_(there, there)] = np.minimum(np.abs(stack @ stack.T), 1.0)
  return found


def overlap(a: Float[np.ndarray, "d k"], b: Float[np.ndarray, "d k"]) -> float:
  """`||A.T B||_F^2 / k` of two orthonormal bases; chance is k/d."""
  return float(np.sum((a.T @ b) ** 2, dtype=np.float64) / a.shape[1])

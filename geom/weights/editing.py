"""Stacks of kernels with a basis shared by layers, and with layers left out."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from geom.models.base import Params
from geom.weights import measure, sharing

Stack = Float32[np.ndarray, "l m n"]


def groups(layers: int, window: int) -> list[range]:
  """Consecutive layers that share; window 0: all. The last may be shorter."""
  step = window or layers
  return [range(i, min(i + step, layers)) for i in range(0, layers, step)]


def unit_grams(kernels: Stack, side: str) -> list[np.ndarray]:
  """The Gram of every layer on a side, of kernels scaled to about 1."""
  found = []
  for kernel in kernels:
    scaled = kernel.copy()
    measure.scale(scaled)
    found.append(measure.gram(scaled, side))
  return found


def bases(
  grams: Sequence[Float32[np.ndarray, "d d"]], window: int, k: int
) -> list[Float32[np.ndarray, "d k"]]:
  """A basis for every group of layers, best for the group as a whole."""
  return [
    sharing.basis([grams[i] for i in group], k)
    for group in groups(len(grams), window)
  ]


def shared(
  kernels: Stack,
  bases: Sequence[Float32[np.ndarray, "d k"]],
  window: int,
  side: str,
  k: int,
) -> Stack:
  """Kernels projected onto `k` directions of their group's basis.

  B B.T K on the input side, K B B.T on the output side.
  """
  edited = np.empty_like(kernels)
  for group, basis in zip(groups(len(kernels), window), bases, strict=True):
    b = basis[:, :k]
    for i in group:
      kernel = kernels[i]
      edited[i] = b @ (b.T @ kernel) if side == "input" else (kernel @ b) @ b.T
  return edited


def without_layer(params: Params, layer: int) -> Params:
  """A Llama whose block `layer` adds nothing to the residual stream."""
  blocks = dict(params["blocks"])
  for module, projection in (("attention", "o"), ("mlp", "down")):
    kernel = blocks[module][projection]["kernel"].at[layer].set(0.0)
    blocks[module] = {**blocks[module], projection: {"kernel": kernel}}
  return {**params, "blocks": blocks}

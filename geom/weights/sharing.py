"""How much of a stack's energy one basis keeps: common to all layers, or few.

Every kernel counts alike: its Gram on the side of the residual stream is
divided by its trace. The best `k` directions common to several layers are the
leading eigenvectors of the sum of these, and the share they keep, mean over
the layers, is the sum of the leading eigenvalues over the number of layers; so
that a sum is all that has to be remembered.
"""

import pathlib
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from geom.data.fetch import replacing
from geom.weights import spectra

ALL = 0  # A window of all layers.


class Share(NamedTuple):
  """What the layers of one window keep in their common basis.

  Attributes:
    window: layers in it; 0: all.
    start: its first layer.
    layers: how many were added; a layer that cannot be read is left out.
    kept: share of the energy by k.
  """

  window: int
  start: int
  layers: int
  kept: dict[int, float]


class Sums:
  """Running sums of unit Grams over all layers and over windows of some.

  Args:
    d: width of the residual stream.
    windows: how many consecutive layers share a basis; they do not overlap.
    ks: sizes of the basis.
    full_below: see `spectra.spectrum`.
  """

  def __init__(
    self, d: int, windows: Sequence[int], ks: Sequence[int], full_below: int
  ):
    self.ks = [k for k in ks if k <= d]
    self.full_below = full_below
    self.sums = {w: np.zeros((d, d), np.float32) for w in (ALL, *windows)}
    self.counts = dict.fromkeys(self.sums, 0)

  def add(self, gram: Float32[np.ndarray, "d d"]) -> None:
    """Takes a layer's Gram, which is divided by its trace in place."""
    trace = np.trace(gram, dtype=np.float64)
    if not trace > 0:
      return  # A zero kernel has no energy to keep.
    gram /= np.float32(trace)
    for window, total in self.sums.items():
      total += gram
      self.counts[window] += 1

  def ended(self, layer: int, layers: int) -> list[Share]:
    """The windows that end with a layer; their sums start anew."""
    found = []
    for window, total in self.sums.items():
      last = layer + 1 == layers
      whole = window != ALL and (layer + 1) % window == 0
      if not (whole or (last and window == ALL)):
        continue  # A last window that is not full would not compare.
      n = self.counts[window]
      start = 0 if window == ALL else layer + 1 - window
      # A window that lacks a layer would not compare with the others.
      if self.ks and (n if window == ALL else n == window):
        values = spectra.spectrum(
          total, max(self.ks), full_below=self.full_below
        ).values
        kept = {k: float(values[:k].sum() / n) for k in self.ks}
        found.append(Share(window, start, n, kept))
      total[:] = 0
      self.counts[window] = 0
    return found

  def save(self, path: pathlib.Path, layer: int) -> None:
    """Keeps the sum over all layers, at a layer where no window is open."""
    with replacing(path) as temporary, temporary.open("wb") as file:
      np.savez(file, sum=self.sums[ALL], count=self.counts[ALL], after=layer)

  def load(self, path: pathlib.Path) -> int:
    """Takes up a sum that was kept; returns the number of layers in it.

    0, and nothing is taken, where there is none, or none that can be read.
    """
    try:
      # numpy leaves a file open that it cannot read, if it opened it.
      with path.open("rb") as file, np.load(file) as saved:
        if saved["sum"].shape != self.sums[ALL].shape:
          return 0
        self.sums[ALL] = saved["sum"]
        self.counts[ALL] = int(saved["count"])
        return int(saved["after"]) + 1
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
      return 0


def own(
  s: Float[np.ndarray, " k"], norm: float, ks: Sequence[int]
) -> dict[int, float]:
  """The share that each layer's own best basis keeps, by its size."""
  energy = np.asarray(s, np.float64) ** 2
  return {
    k: float(energy[:k].sum() / norm**2) if norm > 0 else float("nan")
    for k in ks
    if k <= len(energy)
  }


def basis(
  grams: Sequence[Float32[np.ndarray, "d d"]], k: int
) -> Float[np.ndarray, "d k"]:
  """The `k` directions that keep most of several layers' energy together."""
  total = sum(g / np.float32(np.trace(g, dtype=np.float64)) for g in grams)
  return spectra.spectrum(total, k, full_below=len(total)).vectors

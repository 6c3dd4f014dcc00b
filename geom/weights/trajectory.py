"""Leading vectors of a projection through all layers, from what was kept."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from geom.weights import depth, measure
from geom.weights.kernels import Matrix

Row = dict[str, Any]


def of_projection(
  projection: str,
  stack: Sequence[Matrix],
  vectors: pathlib.Path,
  ks: Sequence[int],
) -> Row:
  """|cos| of all pairs of layers, and overlaps of adjacent ones.

  Args:
    projection: its name.
    stack: its kernels.
    vectors: the folder of their singular vectors, `LAYER.npz`.
    ks: sizes of leading spaces.
  """
  leads: dict[str, list[np.ndarray | None]] = {
    f"{form}{side}": []
    for form in ("", "folded_")
    for side in ("input", "output")
  }
  overlaps: dict[str, list[float]] = {}
  last = None
  for matrix in stack:
    path = vectors / f"{matrix.layer:04d}.npz"
    this = None
    # A file of another kernel may be left where this one cannot be read.
    if matrix.problem is None and path.exists():
      with np.load(path) as saved:
        this = {name: saved[name] for name in saved.files}
    for name, stacked in leads.items():
      stacked.append(_leading(this, name))
    if matrix.layer:
      for side in ("input", "output"):
        for k in ks:
          overlaps.setdefault(f"overlap_{side}/{k}", []).append(
            _overlap(last, this, side, k)
          )
    last = this
  row: Row = {
    "step": 0,
    "kind": "cosines",
    "condition": "weights",
    "projection": projection,
  }
  for name, stacked in leads.items():
    if any(v is not None for v in stacked) or "folded" not in name:
      row[name] = depth.cosines(stacked)
  return row | overlaps


def _leading(
  saved: Mapping[str, np.ndarray] | None, name: str
) -> np.ndarray | None:
  """The leading vector, where it is defined."""
  if saved is None or name not in saved:
    return None
  folded = name.startswith("folded_")
  s = saved["folded_s" if folded else "s"]
  if not measure.defined(float(s[0]), float(s[1]) if len(s) > 1 else 0.0):
    return None
  return saved[name] if folded else saved[name][:, 0]


def _overlap(
  a: Mapping[str, np.ndarray] | None,
  b: Mapping[str, np.ndarray] | None,
  side: str,
  k: int,
) -> float:
  """NaN where one of the two spaces of k dimensions is not defined."""
  for of in (a, b):
    if of is None or k > of[side].shape[1] or k >= len(of["s"]):
      return float("nan")
    s = of["s"]
    if measure.EPS * s[0] ** 2 > measure.LARGEST_TURN * (
      s[k - 1] ** 2 - s[k] ** 2
    ):
      return float("nan")
  return depth.overlap(a[side][:, :k], b[side][:, :k])

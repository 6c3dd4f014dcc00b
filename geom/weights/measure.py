"""What is measured of one kernel, and its Gram on the residual stream's side.

In numpy, one kernel at a time: the memory is a kernel, its Gram and little
else, and all cores work in its products.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from geom.weights import spectra

EPS = float(np.finfo(np.float32).eps)
# Vectors that the rounding of float32 may turn by more are not defined.
LARGEST_TURN = 1e-3


class Measured(NamedTuple):
  """Of one kernel K, `(in, out)`.

  Attributes:
    s: leading singular values, largest first, one more than vectors if there
      are more.
    input: v of the paper, `(in, k)`: left singular vectors of K.
    output: u of the paper, `(out, k)`.
    folded: the leading input vector of diag(gain) K, `(in,)`, the leading
      output vector, `(out,)`, and s1, s2 of that; None without a gain.
    norm: Frobenius norm.
    rank: effective rank.
    full: the rank is of all singular values, not an estimate.
    residual: of the leading two eigenpairs, relative to the first.
  """

  s: Float[np.ndarray, " s"]
  input: Float[np.ndarray, "m k"]
  output: Float[np.ndarray, "n k"]
  folded: tuple[np.ndarray, np.ndarray, np.ndarray] | None
  norm: float
  rank: float
  full: bool
  residual: float


def scale(kernel: Float32[np.ndarray, "m n"]) -> float:
  """Divides a kernel by its largest entry, in place, and returns that.

  Squares of what is as small as 1e-30 are not in float32. 1 of a zero kernel.
  """
  largest = max(float(kernel.max()), -float(kernel.min()))
  if not largest:
    return 1.0
  kernel /= np.float32(largest)
  return largest


def gram(
  kernel: Float32[np.ndarray, "m n"], side: str
) -> Float32[np.ndarray, "d d"]:
  """K K.T on the input side, K.T K on the output side."""
  # numpy sees both factors are one array and does half the products.
  return kernel @ kernel.T if side == "input" else kernel.T @ kernel


def measure(
  kernel: Float32[np.ndarray, "m n"],
  k: int,
  *,
  full_below: int = 2048,
  residual_gram: Float32[np.ndarray, "d d"] | None = None,
  side: str = "input",
  gain: Float32[np.ndarray, " m"] | None = None,
) -> Measured:
  """Leading singular vectors on both sides, s1/s2, effective rank.

  Args:
    kernel: finite, of entries about 1. Others go through `scale` first, and
      `s` and `norm` times what it returns are those of the kernel.
    k: vectors kept.
    full_below: the shorter side up to which all singular values are computed.
    residual_gram: the Gram of the side, where it is at hand already.
    side: of `residual_gram`.
    gain: of the norm that the kernel reads.
  """
  m, n = kernel.shape
  shorter = "input" if m <= n else "output"
  given = residual_gram if side == shorter else None
  small = gram(kernel, shorter) if given is None else given
  found = spectra.spectrum(small, k + 1, full_below=full_below)
  norm = float(np.sqrt(np.trace(small, dtype=np.float64)))
  rank = (
    spectra.effective_rank(found.values)
    if found.full
    else spectra.estimated_rank(small, found)
  )
  s = np.sqrt(found.values[: k + 1])
  mine = np.ascontiguousarray(found.vectors[:, :k])
  theirs = _other(kernel, mine, shorter)
  folded = None
  if gain is not None:
    size = max(float(np.abs(gain).max()), 1e-30)
    gain = gain / np.float32(size)  # Squares are finite.
  if gain is not None and not m <= n:
    # The Gram of the longer side is not made for this.
    folded = _folded_output(kernel, gain)
  elif gain is not None:
    wide = small if shorter == "input" else gram(kernel, "input")
    folded = _folded_input(kernel, wide, gain)
  if folded is not None:
    folded = (*folded[:2], folded[2] * size)
  return Measured(
    s=s,
    input=mine if shorter == "input" else theirs,
    output=theirs if shorter == "input" else mine,
    folded=folded,
    norm=norm,
    rank=rank,
    full=found.full,
    residual=found.residual,
  )


def _folded_input(
  kernel: np.ndarray, gram: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  found = spectra.spectrum(gram * gain[:, None] * gain, 2, full_below=0)
  v = found.vectors[:, :1]
  u = _unit(kernel.T @ (gain[:, None] * v))
  return v[:, 0], u[:, 0], np.sqrt(found.values[:2])


def _folded_output(
  kernel: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  scaled = kernel * gain[:, None]
  found = spectra.spectrum(gram(scaled, "output"), 2, full_below=0)
  u = found.vectors[:, :1]
  return _unit(scaled @ u)[:, 0], u[:, 0], np.sqrt(found.values[:2])


def _other(kernel: np.ndarray, vectors: np.ndarray, shorter: str) -> np.ndarray:
  """The vectors of the longer side, each of norm 1."""
  return _unit((kernel.T if shorter == "input" else kernel) @ vectors)


def _unit(columns: np.ndarray) -> np.ndarray:
  norms = np.linalg.norm(columns, axis=0)
  return np.divide(columns, norms, out=np.zeros_like(columns), where=norms > 0)


def defined(s1: float, s2: float) -> bool:
  """Whether the rounding of float32 leaves a leading vector."""
  return bool(s1 > 0 and EPS * s1**2 <= LARGEST_TURN * (s1**2 - s2**2))

"""Which tokens come when: windows of a stream, in a fixed order by seed."""

import hashlib
from collections.abc import Sequence

import grain
import numpy as np
from jaxtyping import Int32, Int64

from geom.data import fetch, token_files

ORDERS = ("random", "packed")


class Windows:
  """Random-access source: element t is what step t reads.

  `{"tokens": (seed, batch, length) int32}`: inputs are `[..., :-1]`, targets
  `[..., 1:]`. Element t depends on nothing but the arguments, so a position
  in the data is a number, and a seed sees the same alone or beside others.

  In the order `random` windows begin anywhere, drawn anew every step. In the
  order `packed` each epoch has all documents in a fresh random order, and the
  epochs follow each other as one row without gaps. Windows are cut from it so
  that each begins with the last token of the one before: every token of an
  epoch is a target once.

  Args:
    stream: the tokens.
    batch_size: windows a step and seed, >= 1.
    length: tokens of a window, the context and one more, >= 2.
    seeds: one order each.
    num_steps: length of the source.
    order: "random" or "packed".

  Raises:
    DataError: an argument is wrong, the stream is shorter than a window, or
      it has no documents to pack.
  """

  def __init__(
    self,
    stream: token_files.Stream,
    *,
    batch_size: int,
    length: int,
    seeds: Sequence[int],
    num_steps: int,
    order: str = "random",
  ):
    if order not in ORDERS:
      raise fetch.DataError(f"no order {order!r}: there are random and packed")
    if batch_size < 1 or length < 2:
      raise fetch.DataError(
        f"a batch of {batch_size} windows of {length} tokens has no targets"
      )
    if len(stream) < length:
      raise fetch.DataError(
        f"{len(stream)} tokens are fewer than a window of {length}"
      )
    if order == "packed" and stream.documents is None:
      raise fetch.DataError(
        "the order packed needs documents: give end_of_text, the id between"
        " them, or take the order random"
      )
    self.stream = stream
    self.batch_size = batch_size
    self.length = length
    self.seeds = tuple(seeds)
    self.num_steps = num_steps
    self.order = order
    self._epochs: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

  def __len__(self) -> int:
    return self.num_steps

  def __getitem__(
    self, step: int
  ) -> dict[str, Int32[np.ndarray, "seed batch length"]]:
    if not 0 <= step < self.num_steps:
      raise IndexError(f"step {step} is not in 0..{self.num_steps - 1}")
    return {"tokens": self._read(step)}

  def _read(self, step: int) -> Int32[np.ndarray, "seed batch length"]:
    read = self._packed if self.order == "packed" else self._random
    return np.stack([read(seed, step) for seed in self.seeds])

  def _random(self, seed: int, step: int) -> Int32[np.ndarray, "batch length"]:
    rng = np.random.default_rng((seed, step))
    last = len(self.stream) - self.length
    starts = rng.integers(0, last, self.batch_size, endpoint=True)
    return self.stream.gather(starts, self.length)

  def _packed(self, seed: int, step: int) -> Int32[np.ndarray, "batch length"]:
    stride = self.length - 1
    count = self.batch_size * stride
    row = np.empty(count + 1, np.int32)
    position, done = step * count, 0
    while done <= count:
      epoch, offset = divmod(position + done, len(self.stream))
      done += self._read_epoch(seed, epoch, offset, row[done:])
    return np.lib.stride_tricks.sliding_window_view(row, self.length)[::stride]

  def _read_epoch(
    self, seed: int, epoch: int, offset: int, out: Int32[np.ndarray, " token"]
  ) -> int:
    """Fills `out` from `offset` of the epoch on; returns how much it has."""
    shifts, ends = self._shuffled(seed, epoch)
    first = int(np.searchsorted(ends, offset, side="right"))
    last = int(np.searchsorted(ends, offset + len(out)))
    here = slice(first, last + 1)
    pieces = zip(shifts[here].tolist(), ends[here].tolist(), strict=True)
    done = 0
    for shift, end in pieces:
      count = min(end - offset, len(out)) - done
      self.stream.read_into(out[done : done + count], shift + offset + done)
      done += count
    return done

  def _shuffled(
    self, seed: int, epoch: int
  ) -> tuple[Int64[np.ndarray, " document"], Int64[np.ndarray, " document"]]:
    """The documents of an epoch in their order; the last few are remembered.

    Returns what to add to a position in the epoch to have the position in the
    stream, and where in the epoch the document ends.
    """
    key = (seed, epoch)
    if key not in self._epochs:
      starts = self.stream.documents
      lengths = np.diff(starts, append=len(self.stream))
      order = np.random.default_rng(key).permutation(len(starts))
      ends = np.cumsum(lengths[order])
      shifts = starts[order] - (ends - lengths[order])
      kept = list(self._epochs.items())[-2 * len(self.seeds) :]
      self._epochs = dict([*kept, (key, (shifts, ends))])
    return self._epochs[key]

  def fingerprint(self) -> str:
    """Names the order itself: what every seed reads first, hashed."""
    numbers = (self.order, self.batch_size, self.length, self.seeds)
    h = hashlib.sha256(repr((*numbers, self.stream.fingerprint())).encode())
    h.update(self._read(0).astype("<i4").tobytes())
    return h.hexdigest()[:16]


def iterator(windows: Windows) -> grain.DatasetIterator:
  """Iterator of the elements of `windows`, one a step.

  It reads ahead in a thread; its `get_state` is the position of what has been
  handed out, not of what has been read.
  """
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
  dataset = grain.MapDataset.source(windows)
  return iter(dataset.to_iter_dataset(options))

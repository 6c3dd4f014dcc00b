"""Which example comes when: a fixed order by seed, batches by index."""

import hashlib
from collections.abc import Mapping, Sequence

import grain
import numpy as np
from jaxtyping import Int, Shaped


class Order:
  """Random-access source of batches: element t is what step t reads.

  Each seed has a stream of its own: all examples in a fresh random order,
  then all again in another, cut into batches without regard to where an epoch
  ends. Element t depends on nothing but the arguments, so a position in the
  data is a number, and a seed sees the same data alone or beside others.

  Args:
    num_examples: size of the data set, >= 1.
    batch_size: examples a step and seed, >= 1.
    seeds: one stream each.
    num_steps: length of the source.
  """

  def __init__(
    self,
    *,
    num_examples: int,
    batch_size: int,
    seeds: Sequence[int],
    num_steps: int,
  ):
    self.num_examples = num_examples
    self.batch_size = batch_size
    self.seeds = tuple(seeds)
    self.num_steps = num_steps
    self._epochs: dict[int, np.ndarray] = {}

  def __len__(self) -> int:
    return self.num_steps

  def __getitem__(self, step: int) -> Int[np.ndarray, "seed batch"]:
    if not 0 <= step < self.num_steps:
      raise IndexError(f"step {step} is not in 0..{self.num_steps - 1}")
    positions = step * self.batch_size + np.arange(self.batch_size)
    epochs, rows = np.divmod(positions, self.num_examples)
    out = np.empty((len(self.seeds), self.batch_size), np.int64)
    for epoch in np.unique(epochs):
      here = epochs == epoch
      out[:, here] = self._epoch(int(epoch))[:, rows[here]]
    return out

  def _epoch(self, epoch: int) -> Int[np.ndarray, "seed example"]:
    """The order of an epoch for all seeds; the last few are remembered."""
    if epoch not in self._epochs:
      order = np.stack(
        [
          np.random.default_rng((seed, epoch)).permutation(self.num_examples)
          for seed in self.seeds
        ]
      )
      kept = list(self._epochs.items())[-2:]
      self._epochs = dict([*kept, (epoch, order)])
    return self._epochs[epoch]

  def fingerprint(self) -> str:
    """Names the order itself: what every seed reads first, hashed."""
    h = hashlib.sha256(repr((self.num_examples, self.batch_size)).encode())
    for seed in self.seeds:
      rng = np.random.default_rng((seed, 0))
      h.update(rng.permutation(self.num_examples).astype("<i8").tobytes())
    return h.hexdigest()[:16]


def batches(
  order: Order, arrays: Mapping[str, Shaped[np.ndarray, "example *shape"]]
) -> grain.DatasetIterator:
  """Iterator of dicts of arrays `(seed, batch, *shape)`, one a step.

  It reads ahead in a thread; its `get_state` is the position of what has been
  handed out, not of what has been read.
  """

  def gather(index: Int[np.ndarray, "seed batch"]) -> dict[str, np.ndarray]:
    return {name: array[index] for name, array in arrays.items()}

  dataset = grain.MapDataset.source(order).map(gather)
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
  return iter(dataset.to_iter_dataset(options))

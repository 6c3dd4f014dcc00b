"""geom.data.order: epochs, seeds, determinism, and resuming the iterator."""

import itertools
import time

import numpy as np
import pytest

from geom.data.order import Order, batches

BASE = {"num_examples": 10, "batch_size": 4, "seeds": (3, 5), "num_steps": 50}


def order_of(**changes):
  return Order(**{**BASE, **changes})


def stream(order, seed_index=0, steps=None):
  """All examples that one seed reads, in their order."""
  steps = len(order) if steps is None else steps
  return np.concatenate([order[t][seed_index] for t in range(steps)])


def test_an_element_is_a_batch_of_indices_for_each_seed():
  order = order_of()
  assert len(order) == 50
  assert order[0].shape == (2, 4)
  assert order[0].dtype == np.int64


@pytest.mark.parametrize("batch_size", [1, 4, 10, 13, 27])
def test_every_epoch_is_a_permutation(batch_size):
  """Whatever the batch: none divides 10, some are larger than it."""
  order = order_of(batch_size=batch_size, num_steps=60 // batch_size + 1)
  for seed in range(2):
    read = stream(order, seed)
    for epoch in read[:60].reshape(6, 10):
      assert sorted(epoch) == list(range(10))


def test_every_epoch_of_every_seed_has_an_order_of_its_own():
  order = order_of(num_examples=20, batch_size=20, seeds=range(5), num_steps=5)
  orders = {tuple(row) for epoch in range(5) for row in order[epoch]}
  assert len(orders) == 25
  assert tuple(range(20)) not in orders


def test_an_order_depends_on_its_arguments_only():
  order, same = order_of(), order_of()
  forth = [order[t] for t in range(50)]
  back = [same[t] for t in reversed(range(50))]
  np.testing.assert_array_equal(forth, back[::-1])
  np.testing.assert_array_equal([order[t] for t in range(50)], forth)
  longer = order_of(num_steps=99)
  np.testing.assert_array_equal([longer[t] for t in range(50)], forth)


def test_batches_are_cut_from_one_stream():
  """The batch size cuts the stream, it does not change it."""
  small, large = order_of(batch_size=3), order_of(batch_size=14)
  np.testing.assert_array_equal(
    stream(small, 1, steps=28), stream(large, 1, steps=6)
  )


def test_a_seed_alone_reads_what_it_reads_beside_others():
  beside = order_of(seeds=(9, 3, 5))
  for i, seed in enumerate(beside.seeds):
    alone = order_of(seeds=(seed,))
    np.testing.assert_array_equal(stream(alone), stream(beside, i))


def test_the_largest_seed():
  assert order_of(seeds=(2**32 - 1,))[0].shape == (1, 4)


def test_few_epochs_are_kept_in_memory():
  order = order_of()
  for t in range(len(order)):
    order[t]
  assert len(order._epochs) <= 3


@pytest.mark.parametrize(
  "change",
  [
    {"num_examples": 11},
    {"batch_size": 5},
    {"seeds": (3, 6)},
    {"seeds": (4, 5)},
    {"seeds": (5, 3)},
    {"seeds": (3,)},
    {"seeds": (3, 5, 6)},
  ],
  ids=str,
)
def test_fingerprint_tells_orders_apart(change):
  assert order_of(**change).fingerprint() != order_of().fingerprint()


def test_fingerprint_is_short_and_does_not_depend_on_the_length():
  mark = order_of().fingerprint()
  assert mark == order_of(num_steps=7).fingerprint()
  assert len(mark) == 16 and int(mark, 16) >= 0


def test_fingerprint_names_what_is_read_not_only_the_numbers(monkeypatch):
  mark = order_of().fingerprint()
  fresh = np.random.default_rng
  monkeypatch.setattr(np.random, "default_rng", lambda key: fresh((7, *key)))
  assert order_of().fingerprint() != mark


ARRAYS = {
  "images": np.arange(10 * 2 * 3, dtype=np.uint8).reshape(10, 2, 3),
  "labels": np.arange(100, 110, dtype=np.int32),
}


def test_batches_gather_the_rows_of_every_array():
  order = order_of()
  read = list(batches(order, ARRAYS))
  assert len(read) == 50
  for t, batch in enumerate(read):
    assert set(batch) == {"images", "labels"}
    assert batch["images"].shape == (2, 4, 2, 3)
    assert batch["images"].dtype == np.uint8
    np.testing.assert_array_equal(batch["labels"], 100 + order[t])
    np.testing.assert_array_equal(
      batch["images"][..., 0, 0], ARRAYS["images"][order[t], 0, 0]
    )


def labels(iterator, count=None):
  return [b["labels"].tolist() for b in itertools.islice(iterator, count)]


@pytest.mark.parametrize("taken", [0, 1, 7, 49, 50])
def test_a_saved_position_resumes_exactly(taken):
  """However far it has read ahead, the position is what was handed out."""
  whole = labels(batches(order_of(), ARRAYS))
  iterator = batches(order_of(), ARRAYS)
  assert labels(iterator, taken) == whole[:taken]
  state = iterator.get_state()
  assert labels(iterator) == whole[taken:]
  fresh = batches(order_of(), ARRAYS)
  fresh.set_state(state)
  assert labels(fresh) == whole[taken:]
  iterator.set_state(state)
  assert labels(iterator) == whole[taken:]


def test_the_iterator_reads_ahead_but_not_without_end():
  class Watched(Order):
    furthest = 0

    def __getitem__(self, step):
      self.furthest = max(self.furthest, step)
      return super().__getitem__(step)

  order = Watched(**{**BASE, "num_steps": 5000})
  iterator = batches(order, ARRAYS)
  next(iterator)
  until = time.monotonic() + 20
  while order.furthest < 10 and time.monotonic() < until:
    time.sleep(0.01)
  time.sleep(0.2)
  assert 10 <= order.furthest < 100


@pytest.mark.parametrize("step", [-1, 20, 21])
def test_there_is_no_step_outside_the_run(step):
  source = Order(num_examples=9, batch_size=4, seeds=(0,), num_steps=20)
  with pytest.raises(IndexError, match=r"0\.\.19"):
    source[step]
  assert len(list(source)) == 20

"""geom.data.windows: both orders, seeds, determinism, resuming."""

import itertools

import numpy as np
import pytest

from geom.data import fetch
from geom.data.token_files import Stream
from geom.data.windows import Windows, iterator

# Twelve documents of different lengths; no id but the end, 0, comes twice.
LENGTHS = [3, 9, 1, 14, 6, 2, 21, 5, 8, 11, 4, 16]
BASE = {"batch_size": 4, "length": 6, "seeds": (3, 5), "num_steps": 40}


def documents():
  cuts = np.cumsum([0, *LENGTHS]) + 1
  return [
    np.append(np.arange(a, b), 0).astype("<u2")
    for a, b in itertools.pairwise(cuts)
  ]


def stream_of(end_of_text=0):
  row = np.concatenate(documents())
  return Stream([row[:40], row[40:]], end_of_text)


def windows_of(order="random", stream=None, **changes):
  stream = stream_of() if stream is None else stream
  return Windows(stream, order=order, **{**BASE, **changes})


def tokens_of(windows, steps=None):
  steps = len(windows) if steps is None else steps
  return np.stack([windows[t]["tokens"] for t in range(steps)])


both = pytest.mark.parametrize("order", ["random", "packed"])


@both
def test_an_element_is_windows_for_each_seed(order):
  windows = windows_of(order)
  assert len(windows) == 40
  assert set(windows[0]) == {"tokens"}
  assert windows[0]["tokens"].shape == (2, 4, 6)
  assert windows[0]["tokens"].dtype == np.int32


@both
def test_elements_depend_on_the_arguments_only(order):
  windows, same = windows_of(order), windows_of(order, num_steps=99)
  forth = tokens_of(windows)
  back = [same[t]["tokens"] for t in reversed(range(40))]
  np.testing.assert_array_equal(back[::-1], forth)
  np.testing.assert_array_equal(tokens_of(windows), forth)
  assert len(windows._epochs) <= 6


@both
def test_a_seed_alone_reads_what_it_reads_beside_others(order):
  beside = tokens_of(windows_of(order, seeds=(9, 3, 5)))
  for i, seed in enumerate((9, 3, 5)):
    alone = tokens_of(windows_of(order, seeds=(seed,)))
    np.testing.assert_array_equal(alone[:, 0], beside[:, i])
  assert (beside[:, 0] != beside[:, 1]).any()


def test_random_windows_begin_everywhere():
  row = stream_of()[:]
  whole = np.lib.stride_tricks.sliding_window_view(row, 6)
  begun = {tuple(w) for w in whole.tolist()}
  windows = tokens_of(windows_of(num_steps=400)).reshape(-1, 6)
  assert {tuple(w) for w in windows.tolist()} == begun
  steps = tokens_of(windows_of())
  assert len(np.unique(steps[:, 0], axis=0)) == 40


def test_random_windows_of_the_whole_stream():
  row = stream_of()[:]
  got = windows_of(length=len(row))[0]["tokens"]
  np.testing.assert_array_equal(got, np.broadcast_to(row, (2, 4, len(row))))


@pytest.mark.parametrize("batch_size, length", [(4, 6), (1, 2), (3, 50)])
def test_packed_windows_are_epochs_of_whole_documents(batch_size, length):
  """Without gaps, each window from the last token of the one before."""
  total = len(stream_of())
  steps = 5 * total // (batch_size * (length - 1)) + 2
  windows = windows_of(
    "packed", batch_size=batch_size, length=length, num_steps=steps
  )
  orders = set()
  for seed in range(2):
    cut = tokens_of(windows)[:, seed].reshape(-1, length)
    np.testing.assert_array_equal(cut[1:, 0], cut[:-1, -1])
    row = np.append(cut[0, 0], cut[:, 1:])
    for epoch in row[: 5 * total].reshape(5, total):
      pieces = np.split(epoch, np.flatnonzero(epoch == 0) + 1)[:-1]
      read = [tuple(p) for p in pieces]
      assert sorted(read) == sorted(tuple(d) for d in documents())
      orders.add(tuple(read))
  assert len(orders) == 10


@both
def test_fingerprint_tells_orders_apart(order):
  mark = windows_of(order).fingerprint()
  assert len(mark) == 16 and int(mark, 16) >= 0
  assert mark == windows_of(order, num_steps=7).fingerprint()
  others = [
    windows_of("packed" if order == "random" else "random"),
    windows_of(order, stream=Stream([stream_of()[:-1].astype("<u2")], 0)),
    *(
      windows_of(order, **change)
      for change in [
        {"batch_size": 5},
        {"length": 7},
        {"seeds": (5, 3)},
        {"seeds": (3,)},
      ]
    ),
  ]
  marks = {windows.fingerprint() for windows in others}
  assert len(marks | {mark}) == len(others) + 1


def test_fingerprint_tells_seeds_apart_that_read_the_same_at_first():
  mark = windows_of(length=112, seeds=(3,)).fingerprint()
  assert windows_of(length=112, seeds=(4,)).fingerprint() != mark


@both
def test_fingerprint_names_what_is_read(order, monkeypatch):
  mark = windows_of(order).fingerprint()
  fresh = np.random.default_rng
  monkeypatch.setattr(np.random, "default_rng", lambda key: fresh((7, *key)))
  assert windows_of(order).fingerprint() != mark


@both
@pytest.mark.parametrize("taken", [0, 7, 39])
def test_a_saved_position_resumes_exactly(order, taken):
  whole = tokens_of(windows_of(order))

  def rest(read):
    return np.stack([element["tokens"] for element in read])

  read = iterator(windows_of(order))
  for t in range(taken):
    np.testing.assert_array_equal(next(read)["tokens"], whole[t])
  state = read.get_state()
  np.testing.assert_array_equal(rest(read), whole[taken:])
  fresh = iterator(windows_of(order))
  fresh.set_state(state)
  np.testing.assert_array_equal(rest(fresh), whole[taken:])


@pytest.mark.parametrize("step", [-1, 40])
def test_there_is_no_step_outside_the_run(step):
  with pytest.raises(IndexError, match=r"0\.\.39"):
    windows_of()[step]


@pytest.mark.parametrize(
  "change, message",
  [
    ({"order": "sorted"}, "no order 'sorted'"),
    ({"batch_size": 0}, "0 windows of 6 tokens"),
    ({"length": 1}, "4 windows of 1 tokens"),
    ({"length": 113}, "112 tokens are fewer than a window of 113"),
    (
      {"order": "packed", "stream": stream_of(end_of_text=None)},
      "packed needs documents: give end_of_text",
    ),
    (
      {"order": "packed", "stream": stream_of(end_of_text=300)},
      "300 is not in the tokens",
    ),
  ],
)
def test_wrong_arguments_are_one_line(change, message):
  with pytest.raises(fetch.DataError, match=message):
    windows_of(**change)

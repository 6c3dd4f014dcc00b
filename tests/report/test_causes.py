"""Onsets of curves whose order is known."""

import numpy as np
import pytest

from geom.report import causes
from geom.report.causes import (
  BATCHES,
  LEAST_LOSS,
  SHARE,
  Onset,
  before,
  onset,
  onsets,
  order,
)

STEPS = np.arange(0.0, 101.0)


def rises(at, *, to=100.0, over=30.0):
  """1 up to a step, then by an exponential up to a value."""
  way = np.clip((STEPS - at) / over, 0, 1)
  return to**way


@pytest.mark.parametrize("at", [0, 17, 60])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_step_at_a_tenth_of_the_way_in_logarithms(at, sign):
  signal = rises(at) ** sign
  found = onset(STEPS, signal, sign=sign, log=True)
  assert found.step == pytest.approx(at + SHARE * 30)
  assert found.resolution == 1


def test_of_shares_the_way_is_not_logarithmic():
  share = np.clip((STEPS - 40) / 20, 0, 1)
  found = onset(STEPS, share, sign=1, log=False)
  assert found.step == pytest.approx(42)


def test_the_baseline_is_the_least_before():
  """A norm that falls at first, as norms of gradients do."""
  signal = rises(50) * np.where(STEPS < 20, 5 - STEPS / 5, 1)
  assert onset(STEPS, signal, sign=1, log=True).step == pytest.approx(53)


def test_a_loss_that_was_learnt_and_lost_has_moved_below_its_start():
  loss = np.interp(STEPS, [0, 40, 60, 80], [7, 4, 4, 6])
  assert onset(STEPS, loss, sign=1, log=False).step == pytest.approx(62)
  only_learnt = np.interp(STEPS, [0, 40, 60], [7, 4, 4.2])
  found = onset(STEPS, only_learnt, sign=1, log=False, least=LEAST_LOSS)
  assert np.isnan(found.step)


def test_what_comes_back_had_not_left_for_good():
  signal = rises(50)
  signal[10:15] = 30.0
  assert onset(STEPS, signal, sign=1, log=True).step == pytest.approx(53)


@pytest.mark.parametrize(
  "signal", [np.ones(101), rises(20, to=1.05), np.full(101, np.nan)]
)
def test_what_does_not_move_has_no_onset(signal):
  assert np.isnan(onset(STEPS, signal, sign=1, log=True).step)
  assert np.isnan(onset(STEPS, -signal, sign=1, log=False).step)


def test_what_came_back_to_stay_has_no_onset():
  assert np.isnan(onset(STEPS, rises(20) / rises(60), sign=1, log=True).step)


def test_the_baseline_is_before_the_extreme():
  """It went furthest at first; lower than its start only after that."""
  signal = np.interp(STEPS, [0, 20, 40, 80], [0, 5, -1, 3])
  found = onset(STEPS, signal, sign=1, log=False)
  assert found.step == pytest.approx(55)  # Where it is last at a tenth of 5.


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_what_has_no_logarithm_is_left_out(bad):
  signal = rises(20)
  signal[90:] = bad
  found = onset(STEPS, signal, sign=1, log=True)
  assert found.step == pytest.approx(23)


def test_a_coarse_grid_is_interpolated_and_says_so():
  coarse = STEPS[::10]
  found = onset(coarse, rises(20)[::10], sign=1, log=True)
  assert found.step == pytest.approx(23)
  assert found.resolution == 10


def test_noise_does_not_move_an_onset_far():
  noise = np.exp(0.05 * np.random.default_rng(0).normal(size=101))
  found = onset(STEPS, rises(40) * noise, sign=1, log=True)
  assert found.step == pytest.approx(43, abs=2)


def test_order_and_ties():
  found = {
    "logit": Onset(30.0, 10.0),
    "sigma": Onset(10.0, 10.0),
    "entropy": Onset(37.0, 10.0),
    "loss": Onset(float("nan"), float("nan")),
    "gradient": Onset(60.0, 1.0),
  }
  assert order(found) == [["sigma"], ["logit", "entropy"], ["gradient"]]


def test_ties_are_with_the_first_of_a_group_and_of_the_coarser_resolution():
  fine, coarse = Onset(10.0, 1.0), Onset(14.0, 4.0)
  assert order({"a": fine, "b": coarse}) == [["a", "b"]]
  assert order({"a": coarse, "b": Onset(18.0, 1.0)}) == [["a", "b"]]
  chain = {
    name: Onset(at, 4.0) for name, at in zip("abc", (0, 3, 6), strict=True)
  }
  assert order(chain) == [["a", "b"], ["c"]]


def test_signals_of_one_seed_up_to_a_step():
  def rows(seed, shift):
    for step in range(0, 101, 5):
      way = min(max((step - 20 - shift) / 40, 0), 1)
      frame = {"step": step, "condition": "arm", "seed": seed}
      yield {
        **frame, "kind": "probe",
        "q/weights/sigma_1": [1.0, 1.0], "k/weights/sigma_1": [1.0, 10**way],
        "attention/logit_max": [2.0, 2 * 100**way],
        "attention/entropy_nats": [3.0, 3 * 0.01**way],
        "attention/saturation": [0.0, way],
      }  # fmt: skip
      yield {**frame, "kind": "train", "loss": 5.0, "grad_norm": 1.0}

  mine = [*rows(0, 0), *rows(1, 30)]
  first, second = (onsets(mine, "arm", seed, 60) for seed in (0, 1))
  assert first["sigma of Q, K"].step == pytest.approx(24)
  assert first["logit"].step == pytest.approx(24)
  assert first["saturation"].step == pytest.approx(24)
  assert first["sigma of Q, K"].resolution == 5
  assert np.isnan(first["gradient norm"].step)
  assert "Jacobian" not in first
  # Of its way until step 60, a quarter of the whole.
  assert second["logit"].step == pytest.approx(51)
  assert set(first) <= set(causes.SIGNALS)


def unstable(*, first, then, seed=0, noticed=90):
  """Logits that move at one step, saturation at another; batches too."""
  frame = {"condition": "arm", "seed": seed}
  for i in range(0, 101, 5):
    yield {
      **frame, "kind": "probe", "step": i,
      "attention/logit_max": [float(rises(first)[i])],
      "attention/saturation": [float(np.clip((i - then) / 30, 0, 1))],
    }  # fmt: skip
  for i in range(101):
    loss, norm = max(7 - i / 10, 4) + (i > 60), 50.0 if i > 70 else 1.0
    yield {**frame, "kind": "train", "step": i, "loss": loss, "grad_norm": norm}
  if noticed:
    yield {
      **frame, "kind": "event", "step": noticed, "event": "unstable",
      "cause": "saturation",
    }  # fmt: skip


def test_batches_resolve_no_better_than_their_median():
  found = onsets(list(unstable(first=20, then=50)), "arm", 0, 90)
  assert found["loss"].step == pytest.approx(60, abs=1)
  assert found["gradient norm"].step == pytest.approx(70, abs=1)
  assert (
    found["loss"].resolution == found["gradient norm"].resolution == (BATCHES)
  )


@pytest.mark.parametrize(
  ("first", "then", "noticed", "wanted"),
  [(20, 50, 90, 1), (50, 20, 90, 0), (22, 20, 90, np.nan), (20, 50, 0, None),
   (20, 100, 90, np.nan)],
)  # fmt: skip
def test_which_of_two_signals_moved_first(first, then, noticed, wanted):
  """In order, reversed, a tie, not noticed, not moved."""
  rows = list(unstable(first=first, then=then, noticed=noticed))
  found = before("logit", "saturation")(rows, "arm")
  if wanted is None:
    assert found is None
  else:
    np.testing.assert_array_equal(found[1], [wanted])


def test_a_seed_that_was_not_noticed_has_no_order():
  rows = [
    *unstable(first=20, then=50),
    *unstable(first=20, then=50, seed=1, noticed=0),
  ]
  found = before("logit", "saturation")(rows, "arm")
  np.testing.assert_array_equal(found[1], [1, np.nan])


def test_what_batches_go_by_noise_is_no_move():
  rows = [
    {"condition": "arm", "seed": 0, "kind": "train", "step": i,
     "loss": 4 + 0.25 * (i > 50), "grad_norm": 1 + 2 * (i > 50)}
    for i in range(101)
  ]  # fmt: skip
  assert not any(
    np.isfinite(x.step) for x in onsets(rows, "arm", 0, 100).values()
  )


# By signal: key, rest, what it goes to, and what is then taken of it.
MOVES = {
  "sigma of Q, K": ("k/weights/sigma_1", [1.0, 2.0], [1.0, 200.0], 200),
  "sigma of W_Q W_K.T": (
    "attention/qk_sigma", [[1.0, 2.0]] * 2, [[1.0, 200.0], [1.0, 1.0]], 200,
  ),
  "logit": ("attention/logit_max", [2.0, 3.0], [2.0, 300.0], 300),
  "entropy": ("attention/entropy_nats", [3.0, 2.0], [0.02, 2.0], 0.02),
  "saturation": ("attention/saturation", [0.0, 0.0], [0.4, 0.8], 0.6),
  "Jacobian": ("attention/jacobian", [0.3, 0.2], [0.3, 0.002], 0.002),
  "gradient norm": ("grad_norm", 1.0, 100.0, 100),
  "loss": ("loss", 3.0, 5.0, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", causes.SIGNALS)
def test_what_each_signal_is_and_which_way_it_moves(name):
  key, rest, after, taken = MOVES[name]
  signal = causes.SIGNALS[name]

  def rows(first, then):
    fixed = {"q/weights/sigma_1": [1.0, 1.0]} if "sigma of Q" in name else {}
    return [
      {"condition": "arm", "seed": 0, "kind": signal.kind, "step": step,
       key: then if step >= 50 else first, **fixed}
      for step in range(101)
    ]  # fmt: skip

  _, found = causes.values(rows(rest, after), "arm", signal)
  assert found[-1] == pytest.approx(taken)
  moved = onsets(rows(rest, after), "arm", 0, 100)
  assert list(moved) == [name]
  assert moved[name].step == pytest.approx(49.1, abs=0.1)
  assert np.isnan(onsets(rows(after, rest), "arm", 0, 100)[name].step)


def test_one_batch_is_no_signal():
  def rows(count):
    return [
      {"condition": "arm", "seed": 0, "kind": "train", "step": i,
       "loss": 9.0 if i in (3, 4) else 4.0, "grad_norm": 1.0}
      for i in range(count)
    ]  # fmt: skip

  steps, found = causes.values(rows(8), "arm", causes.SIGNALS["loss"])
  np.testing.assert_array_equal(steps, [2, 3, 4, 5])
  np.testing.assert_array_equal(found, [4.0] * 4)
  # Of fewer than five there is no such median.
  steps, found = causes.values(rows(4), "arm", causes.SIGNALS["loss"])
  np.testing.assert_array_equal(found, [4.0, 4.0, 4.0, 9.0])

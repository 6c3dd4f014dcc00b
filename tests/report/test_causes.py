"""Onsets of curves whose order is known."""

import numpy as np
import pytest

from geom.report import causes
from geom.report.causes import (
  BATCHES,
  LEAST_LOSS,
  SHARE,
  Onset,
  in_order,
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
  [(20, 50, 90, 1), (50, 20, 90, 0), (22, 20, 90, 1), (20, 50, 0, None),
   (20, 100, 90, np.nan)],
)  # fmt: skip
def test_whether_signals_moved_in_order(first, then, noticed, wanted):
  """In order, reversed, reversed within a tie, not noticed, not moved."""
  rows = list(unstable(first=first, then=then, noticed=noticed))
  found = in_order("logit", "saturation")(rows, "arm")
  if wanted is None:
    assert found is None
  else:
    np.testing.assert_array_equal(found[1], [wanted])

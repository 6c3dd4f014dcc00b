"""The watch: when it fires, what it then does, and that cuts change nothing."""

import functools
import signal

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import record
from geom.train import watch as watch_of
from geom.train.checkpoint import Checkpoints
from geom.train.grid import log_and_every
from geom.train.run import Measure, Setup, run_condition
from geom.train.state import HEALTHY, new_state
from geom.train.step import make_chunk, make_step
from geom.train.stop import Stopped, StopSignal
from geom.train.watch import NOT_YET, Watch

TX = optax.sgd(1.0)
PLAIN = Watch(margin=1.0, smoothing=1, patience=3, saturation=None, stop=False)
SATURATING = PLAIN._replace(saturation=0.5, saturation_of=lambda r: r["share"])
LENGTH = 40
QUIET = [5.0, 4.0, 3.0, 2.0, *[2.5] * 36]


def loss(params, batch):
  """What the batch says; every update moves w by -1."""
  w = params["w"]
  return batch["level"] + w - jax.lax.stop_gradient(w), {}


@functools.cache
def chunk_of(watch):
  return jax.jit(make_chunk(make_step(loss, TX, watch), LENGTH))


def fed(levels, watch=PLAIN, *, reference=None):
  """The state after these losses, and the watch's numbers step by step."""
  n = len(levels)
  padded = np.pad(np.asarray(levels, np.float32), (0, LENGTH - n))
  state = new_state({"w": jnp.zeros(())}, TX, reference or {}, watch)
  state, metrics = chunk_of(watch)(state, {"level": padded}, np.int32(n))
  return state, jax.tree.map(lambda x: np.asarray(x)[:n], metrics["watch"])


def fired_at(levels, watch=PLAIN):
  return int(fed(levels, watch)[0].watch.fired_at)


def test_it_fires_at_the_step_that_exhausts_its_patience():
  levels = [5, 4, 2, 3.1, 3.1, 2.9, 3.5, 9, 7, 1, 1, 99, 99, 99, 99]
  state, seen = fed(levels)
  assert list(seen.above[:9]) == [0, 0, 0, 1, 2, 0, 1, 2, 3]
  assert list(seen.fired_at) == [NOT_YET] * 8 + [9] * 7
  # What it was then is kept, and the run goes on.
  assert (float(seen.smoothed[-1]), float(seen.lowest[-1])) == (7, 2)
  assert int(seen.lowest_step[-1]) == 3
  assert watch_of.event(jax.tree.map(lambda x: x[-1], seen)) == {
    "event": "unstable", "cause": "loss", "lowest": 2, "lowest_step": 3,
    "smoothed": 7, "saturation": pytest.approx(np.nan, nan_ok=True),
  }  # fmt: skip
  assert int(state.step) == -int(state.params["w"]) == len(levels)


def test_noise_is_smoothed_away():
  rng = np.random.default_rng(0)
  noisy = np.linspace(6, 3, LENGTH) + rng.normal(size=LENGTH)
  watch = PLAIN._replace(patience=1)
  assert fired_at(noisy, watch) != NOT_YET
  assert fired_at(noisy, watch._replace(smoothing=8)) == NOT_YET


def test_the_average_is_corrected_for_its_start():
  levels, k = np.random.default_rng(1).normal(size=9), 4
  watch = PLAIN._replace(smoothing=k)
  seen = fed(levels, watch)[1]
  for n in range(1, 10):
    weights = (1 - 1 / k) ** np.arange(n)[::-1]
    wanted = np.sum(weights * levels[:n]) / np.sum(weights)
    np.testing.assert_allclose(seen.smoothed[n - 1], wanted, rtol=1e-5)


def test_a_slow_rise_counts_once_it_is_above_the_margin():
  slow = np.linspace(2, 2.95, LENGTH)
  assert fired_at(slow) == NOT_YET
  assert fired_at([*slow[:-4], 3.05, 3.05, 3.05]) == LENGTH - 1


def test_a_step_that_is_not_finite_is_not_seen():
  state, seen = fed([3, 2, np.nan, 9, 9, 9, 9])
  assert (int(state.failed_at), int(state.watch.fired_at)) == (3, NOT_YET)
  np.testing.assert_array_equal(seen.smoothed[1:], 2)


def test_with_stop_nothing_moves_after_it():
  watch = PLAIN._replace(stop=True)
  levels = [2, 9, 9, 9, 1, np.nan, 1]
  stopped, _ = fed(levels, watch)
  whole, _ = fed(levels[:4], watch)
  jax.tree.map(np.testing.assert_array_equal, stopped, whole)
  assert (int(stopped.step), int(stopped.watch.fired_at)) == (4, 4)
  assert (float(stopped.params["w"]), int(stopped.failed_at)) == (-4, HEALTHY)


def test_saturation_fires_too():
  for share, step in ((0.5, NOT_YET), (0.6, 3), (np.nan, NOT_YET)):
    reference = {"share": jnp.float32(share)}
    seen = fed(QUIET, SATURATING, reference=reference)[0].watch
    assert int(seen.fired_at) == step
  found = fed(QUIET, SATURATING, reference={"share": jnp.float32(0.75)})[
    0
  ].watch
  event = watch_of.event(found)
  assert (event["cause"], float(event["saturation"])) == ("saturation", 0.75)
  assert "share of 0.75" in watch_of.sentence(found)


def test_saturation_counts_steps_in_a_row():
  look = jax.jit(functools.partial(watch_of.look, SATURATING))
  seen, counts = watch_of.begin(SATURATING), []
  for i, share in enumerate((0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.1)):
    reference, one = {"share": jnp.float32(share)}, jnp.float32(1)
    seen = look(seen, step=jnp.int32(i + 1), loss=one, reference=reference)
    counts.append(int(seen.saturated))
  assert counts == [1, 2, 0, 1, 2, 3, 3]
  assert int(seen.fired_at) == 6


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"margin": 0.0}, "margin 0.0 must be positive"),
    ({"margin": np.inf}, "margin inf must be positive"),
    ({"smoothing": 0}, "smoothing 0 must be at least 1"),
    ({"patience": 0}, "patience 0 must be at least 1"),
    ({"saturation": 1.5}, "saturation 1.5 is no share"),
    ({"saturation": 0.5}, "saturation needs saturation_of"),
  ],
)
def test_settings_must_make_sense(change, says):
  with pytest.raises(ValueError, match=says):
    watch_of.begin(PLAIN._replace(**change))


# Whole runs. Seed 1 leaves at step 11 and fires at 13; from step 15 on all
# are saturated, which fires at 18.

STEPS = 23
LEVELS = np.tile(np.float32(QUIET[:STEPS])[:, None], (1, 3))
LEVELS[10:, 1] = 9


class Levels:
  """A source of batches: the losses that seeds are to have."""

  def __init__(self, levels):
    self.levels = levels

  def __len__(self):
    return len(self.levels)

  def __getitem__(self, step):
    return {"level": self.levels[step]}


def measured(state):
  taken = state.reference["taken"] + 1
  share = jnp.where(state.step >= 15, 0.9, 0.1)
  return {"w": state.params["w"]}, {"taken": taken, "share": share}


def run(directory, *, ends, levels=LEVELS, stop=None, length=4):
  grid = log_and_every(per_decade=1, every=5, num_steps=STEPS)
  with StopSignal() as default:
    return run_condition(
      Setup(
        init=lambda key: {"w": jnp.zeros(())},
        loss=loss,
        tx=TX,
        reference=lambda _: {"taken": jnp.zeros(()), "share": jnp.zeros(())},
        measures=[Measure("probe", grid, measured)],
        watch=SATURATING._replace(stop=ends),
      ),
      condition="line",
      seeds=range(levels.shape[1]),
      data=iter(grain.MapDataset.source(Levels(levels)).to_iter_dataset()),
      num_steps=STEPS,
      steps_per_dispatch=length,
      log_every=1,
      checkpoints=Checkpoints(
        directory / "checkpoints", every=10, keep=3, keep_every=None
      ),
      meta={},
      writer=record.Writer(directory / "metrics.jsonl"),
      stop=stop or default,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An unbroken run: where it is, and how it ended."""

  @functools.cache
  def of(ends):
    directory = tmp_path_factory.mktemp("whole")
    return directory, run(directory, ends=ends)

  return of


def rows_of(directory):
  """All but what depends on when the run was started, in one order."""
  rows = record.read(directory / "metrics.jsonl")
  return sorted(
    (r for r in rows if "seed" in r),
    key=lambda r: (r["step"], r["seed"], r["kind"], str(r.get("event"))),
  )


def events_of(directory):
  rows = [r for r in rows_of(directory) if r["kind"] == "event"]
  return [(r["event"], r["step"], r["seed"]) for r in rows]


class StopsAt(StopSignal):
  """A signal that comes once a step has been written to the metrics."""

  def __init__(self, directory, step):
    super().__init__()
    self.directory, self.step = directory, step

  @property
  def received(self):
    late = any(r["step"] >= self.step for r in rows_of(self.directory))
    return signal.SIGTERM if late else None

  @received.setter
  def received(self, value):
    pass


def test_a_run_says_so_and_goes_on(whole):
  directory, finished = whole(False)
  assert (finished.failed, finished.stopped) == ({}, {})
  np.testing.assert_array_equal(finished.state.step, STEPS)
  assert events_of(directory) == [
    ("unstable", 13, 1), ("unstable", 18, 0), ("unstable", 18, 2),
  ]  # fmt: skip
  first, second, _ = [r for r in rows_of(directory) if r["kind"] == "event"]
  first = {k: first[k] for k in ("cause", "lowest", "lowest_step", "smoothed")}
  assert first == {
    "cause": "loss", "lowest": 2, "lowest_step": 4, "smoothed": 9,
  }  # fmt: skip
  assert (second["cause"], second["saturation"]) == ("saturation", 0.9)
  train = [r for r in rows_of(directory) if r["kind"] == "train"]
  assert len(train) == 3 * STEPS
  assert all("watch" not in r for r in train)


def test_a_stopped_seed_ends_while_the_others_go_on(whole):
  directory, finished = whole(True)
  assert (finished.failed, finished.stopped) == ({}, {0: 18, 1: 13, 2: 18})
  np.testing.assert_array_equal(finished.state.step, [18, 13, 18])
  assert events_of(directory)[:3] == [
    ("stopped", 13, 1), ("unstable", 13, 1), ("stopped", 18, 0),
  ]  # fmt: skip
  for seed, last in finished.stopped.items():
    mine = [r for r in rows_of(directory) if r["seed"] == seed]
    train = [r["step"] for r in mine if r["kind"] == "train"]
    assert train == list(range(1, last + 1))
    assert max(r["step"] for r in mine) == last
  assert (directory / "checkpoints" / "18").is_dir()
  # Started again it does nothing, and says the same.
  rows = record.read(directory / "metrics.jsonl")
  assert run(directory, ends=True).stopped == finished.stopped
  assert record.read(directory / "metrics.jsonl") == rows


def test_cuts_change_nothing(tmp_path, whole):
  directory, expected = whole(True)
  found = run(tmp_path, ends=True, length=1)
  jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
  assert rows_of(tmp_path) == rows_of(directory)


@pytest.mark.parametrize(("ends", "step"), [(False, 10), (True, 13)])
def test_resumed_is_unbroken(tmp_path, whole, capfd, ends, step):
  directory, expected = whole(ends)
  capfd.readouterr()  # What that run said, if it was here that it ran.
  with pytest.raises(Stopped):
    run(tmp_path, ends=ends, stop=StopsAt(tmp_path, step))
  if step == 10:
    # What a process killed after the event, before a checkpoint, had written.
    late = [r for r in rows_of(directory) if 10 < r["step"] <= 14]
    record.Writer(tmp_path / "metrics.jsonl").write(late)
  found = run(tmp_path, ends=ends)
  assert found.stopped == expected.stopped
  jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
  assert rows_of(tmp_path) == rows_of(directory)
  said = capfd.readouterr().err
  line = "line, seed 1: unstable at step 13, its smoothed loss 9 stays above 2"
  assert said.count(line) == 1
  assert ("this seed stops" in said) is ends

"""The loop: what it writes, when, and that stopping loses nothing."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import record
from geom.data import order
from geom.train.checkpoint import Checkpoints
from geom.train.grid import log_and_every
from geom.train.run import Measure, Setup, run_condition
from geom.train.stop import Stopped, StopSignal

STEPS = 23
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = (X @ RNG.normal(size=5)).astype(np.float32)


def init(key):
  return {"w": jax.random.normal(key, (5,))}


def loss(params, batch):
  return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2), {}


def measured(state):
  moved = state.params["w"] - state.reference["w"]
  values = {"size": jnp.linalg.norm(state.params["w"]), "moved": moved}
  seen = state.reference["seen"] + 1
  return values | {"seen": seen}, {**state.reference, "seen": seen}


def run(directory, *, stop=None, y=Y, seeds=(0, 1), **changes):
  options = {
    "condition": "line",
    "steps_per_dispatch": 4,
    "log_every": 1,
    "meta": {"data": "xy"},
    **changes,
  }
  grid = log_and_every(per_decade=1, every=8, num_steps=STEPS)
  source = order.Order(
    num_examples=40, batch_size=8, seeds=seeds, num_steps=STEPS
  )
  with StopSignal() as default:
    return run_condition(
      Setup(
        init=init,
        loss=loss,
        tx=optax.adam(0.1),
        reference=lambda params: {**params, "seen": jnp.zeros(())},
        measures=[Measure("probe", grid, measured)],
      ),
      seeds=seeds,
      data=order.batches(source, {"x": X, "y": y}),
      num_steps=STEPS,
      checkpoints=Checkpoints(
        directory / "checkpoints", every=10, keep=3, keep_every=None
      ),
      writer=record.Writer(directory / "metrics.jsonl"),
      stop=stop or default,
      **options,
    )


def numbers(directory):
  rows = record.read(directory / "metrics.jsonl")
  rows = [r for r in rows if r["kind"] != "event"]
  return sorted(rows, key=lambda r: (r["step"], r["kind"], r["seed"]))


class StopsAt(StopSignal):
  """A signal that comes once a step has been written to the metrics."""

  def __init__(self, directory, step):
    super().__init__()
    self.directory, self.step = directory, step

  @property
  def received(self):
    rows = record.read(self.directory / "metrics.jsonl")
    late = any(r["step"] >= self.step for r in rows)
    return signal.SIGTERM if late else None

  @received.setter
  def received(self, value):
    pass


def test_rows_are_where_they_should_be(tmp_path):
  run(tmp_path)
  rows = numbers(tmp_path)
  for seed in (0, 1):
    steps = {
      kind: [r["step"] for r in rows if (r["kind"], r["seed"]) == (kind, seed)]
      for kind in ("train", "probe")
    }
    assert steps["train"] == list(range(1, STEPS + 1))
    assert steps["probe"] == [0, 1, 8, 10, 16, 23]
  events = [
    r["event"]
    for r in record.read(tmp_path / "metrics.jsonl")
    if r["kind"] == "event"
  ]
  assert events == ["start", "end"]


def test_train_rows_are_of_the_batch_before_the_update(tmp_path):
  run(tmp_path, seeds=(3,))
  first = next(r for r in numbers(tmp_path) if r["kind"] == "train")
  source = order.Order(
    num_examples=40, batch_size=8, seeds=(3,), num_steps=STEPS
  )
  rows = source[0][0]
  params = init(jax.random.key(3))
  value, _ = loss(params, {"x": X[rows], "y": Y[rows]})
  assert first["loss"] == pytest.approx(float(value), rel=1e-6)


def test_probes_are_of_the_state_after_its_step(tmp_path):
  run(tmp_path)
  probes = [r for r in numbers(tmp_path) if r["kind"] == "probe"]
  assert all(np.any(r["moved"]) == (r["step"] > 0) for r in probes)
  # Adam's first step has size lr in every coordinate.
  one = next(r for r in probes if r["step"] == 1)
  np.testing.assert_allclose(np.abs(one["moved"]), 0.1, rtol=1e-4)


def test_a_measurement_may_remember(tmp_path):
  run(tmp_path, seeds=(0,))
  probes = [r for r in numbers(tmp_path) if r["kind"] == "probe"]
  assert [r["seen"] for r in probes] == [1, 2, 3, 4, 5, 6]


def test_log_every(tmp_path):
  run(tmp_path, log_every=5)
  steps = {r["step"] for r in numbers(tmp_path) if r["kind"] == "train"}
  assert steps == {5, 10, 15, 20}


@pytest.mark.parametrize("length", [1, 3, 64])
def test_steps_per_dispatch_changes_nothing(tmp_path, length):
  run(tmp_path / "a")
  run(tmp_path / "b", steps_per_dispatch=length)
  assert numbers(tmp_path / "a") == numbers(tmp_path / "b")


@pytest.mark.parametrize("step", [1, 9, 10, 17, 20])
def test_stopped_and_resumed_is_unbroken(tmp_path, step):
  expected = run(tmp_path / "a")
  with pytest.raises(Stopped) as stopped:
    run(tmp_path / "b", stop=StopsAt(tmp_path / "b", step))
  assert stopped.value.exit_code == 75
  last = max(r["step"] for r in numbers(tmp_path / "b"))
  assert (tmp_path / "b" / "checkpoints" / str(last)).is_dir()
  found = run(tmp_path / "b")
  jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
  assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
  rows = record.read(tmp_path / "b" / "metrics.jsonl")
  events = [(r["event"], r["step"]) for r in rows if r["kind"] == "event"]
  if last < STEPS:
    assert events == [
      ("start", 0),
      ("stop", last),
      ("resume", last),
      ("end", STEPS),
    ]


def test_a_killed_run_measures_again_what_came_after_its_checkpoint(tmp_path):
  expected = run(tmp_path / "a")
  with pytest.raises(Stopped):
    run(tmp_path / "b", stop=StopsAt(tmp_path / "b", 10))
  # What a process killed at step 12 had written since.
  extra = {"step": 12, "kind": "train", "condition": "line", "seed": 0}
  record.Writer(tmp_path / "b" / "metrics.jsonl").write([{**extra, "loss": 9}])
  found = run(tmp_path / "b")
  jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
  assert numbers(tmp_path / "a") == numbers(tmp_path / "b")


def test_a_finished_run_does_nothing_again(tmp_path):
  run(tmp_path)
  before = numbers(tmp_path)
  run(tmp_path)
  assert numbers(tmp_path) == before


def test_a_failed_seed_stops_and_is_saved_as_it_was(tmp_path, capfd):
  # Example 7 is poisoned: each seed meets it at its own step.
  y = Y.copy()
  y[7] = np.nan
  finished = run(tmp_path, y=y)
  source = order.Order(
    num_examples=40, batch_size=8, seeds=(0, 1), num_steps=STEPS
  )
  meets = {
    seed: next(t + 1 for t in range(STEPS) if 7 in source[t][i])
    for i, seed in enumerate((0, 1))
  }
  assert finished.failed == meets
  assert len(set(meets.values())) == 2
  rows = record.read(tmp_path / "metrics.jsonl")
  for i, seed in enumerate((0, 1)):
    mine = [r for r in rows if r.get("seed") == seed]
    assert max(r["step"] for r in mine) == meets[seed]
    event = next(r for r in mine if r["kind"] == "event")
    assert (event["step"], event["event"]) == (meets[seed], "not finite")
    assert int(finished.state.step[i]) == meets[seed] - 1
    assert np.isfinite(finished.state.params["w"][i]).all()
    said = f"line, seed {seed}: loss nan"
    assert said in capfd.readouterr().err or i
  last = max(meets.values()) - 1
  assert (tmp_path / "checkpoints" / str(last)).is_dir()
  # Started again it is where it was, and says the same.
  again = run(tmp_path, y=y)
  assert again.failed == meets
  jax.tree.map(np.testing.assert_array_equal, again.state, finished.state)


def test_the_next_dispatch_is_made_before_the_last_is_read(tmp_path):
  """Nothing of a chunk is waited for before the next one is under way."""
  order_of_calls = []
  import geom.train.loop as loop

  read = loop._Rows.write

  def noted(self, pending):
    order_of_calls.append(("read", pending.step))
    read(self, pending)

  take = loop._take

  def taken(*args):
    order_of_calls.append(("dispatch", None))
    return take(*args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(loop._Rows, "write", noted)
    patch.setattr(loop, "_take", taken)
    run(tmp_path)
  kinds = [kind for kind, _ in order_of_calls]
  assert kinds[:2] == ["dispatch", "read"]
  assert order_of_calls[1] == ("read", 0)
  second = kinds.index("dispatch", 1)
  assert ("read", 1) not in order_of_calls[:second]

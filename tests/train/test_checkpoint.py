"""Checkpoints: exact, whole or not at all, of this run or refused."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom.data import order
from geom.train.checkpoint import Checkpoints, ResumeError, saved_states
from geom.train.state import new_state

META = {"data": "abc", "optim": {"name": "adam", "lr": 0.1}}
TX = optax.adam(0.1)


def make(directory, **changes):
  options = {"every": 10, "keep": 3, "keep_every": None, **changes}
  return Checkpoints(directory / "relu", **options)


def state(fill: float):
  params = {"hidden": {"kernel": jnp.full((2, 3, 3), fill)}}
  return new_state(params, TX, {"weights": jnp.full((2, 3, 3), fill)})


def data():
  source = order.Order(
    num_examples=50, batch_size=4, seeds=(0, 1), num_steps=100
  )
  return order.batches(source, {"x": np.arange(50)})


def saved(directory, *steps: int, **changes):
  """Writes checkpoints; the state of step n is filled with n."""
  checkpoints, it = make(directory, **changes), data()
  done = 0
  for step in steps:
    for _ in range(step - done):
      next(it)
    done = step
    checkpoints.save(step, state(step), it, META)
  checkpoints.close()
  return it


def restored(directory, meta=META):
  checkpoints, it = make(directory), data()
  found = checkpoints.restore(state(0), it, meta)
  checkpoints.close()
  return found, it


def assert_is(found, fill):
  jax.tree.map(np.testing.assert_array_equal, found, state(fill))


def test_state_and_place_in_the_data_come_back(tmp_path):
  it = saved(tmp_path, 3, 7)
  found, again = restored(tmp_path)
  assert_is(found, 7)
  np.testing.assert_array_equal(next(again)["x"], next(it)["x"])


def test_none_where_there_is_none(tmp_path):
  assert restored(tmp_path)[0] is None


def test_the_state_may_be_donated_as_soon_as_save_returns(tmp_path):
  checkpoints, s = make(tmp_path), state(5)
  checkpoints.save(5, s, data(), META)
  jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)(s)
  checkpoints.close()
  assert_is(restored(tmp_path)[0], 5)


def test_when_one_is_due(tmp_path):
  checkpoints = make(tmp_path, every=10)
  assert [s for s in range(31) if checkpoints.due(s)] == [0, 10, 20, 30]
  assert not make(tmp_path, every=None).due(10)


def test_keeps_the_newest_and_every_nth(tmp_path):
  saved(tmp_path, 1, 2, 4, 5, 6, 7, keep=2, keep_every=4)
  names = {p.name for p in (tmp_path / "relu").iterdir()}
  assert names == {"4", "6", "7"}


def test_a_step_saved_twice_is_saved_once(tmp_path):
  saved(tmp_path, 3, 3)
  assert_is(restored(tmp_path)[0], 3)


@pytest.mark.parametrize(
  "meta, said",
  [
    ({**META, "data": "xyz"}, "run.data ('abc' there, 'xyz' now)"),
    (
      {**META, "optim": {"name": "sgd"}},
      "run.optim.lr, run.optim.name ('adam' there",
    ),
    ({**META, "order": "new"}, "run.order"),
  ],
)
def test_another_run_s_checkpoint_is_refused_by_name(tmp_path, meta, said):
  saved(tmp_path, 3)
  with pytest.raises(ResumeError) as error:
    restored(tmp_path, meta)
  assert said in str(error.value)
  assert "\n" not in str(error.value)


def truncate(directory):
  for path in (directory / "state").rglob("*"):
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove_data(directory):
  for path in (directory / "data").iterdir():
    path.unlink()


def remove_meta(directory):
  (directory / "meta" / "metadata").unlink()


def empty(directory):
  for path in directory.rglob("*"):
    if path.is_file():
      path.unlink()


@pytest.mark.parametrize("damage", [truncate, remove_data, remove_meta, empty])
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path, capfd, damage):
  saved(tmp_path, 3, 7)
  damage(tmp_path / "relu" / "7")
  found, it = restored(tmp_path)
  assert_is(found, 3)
  assert it.get_state()["next_index"] == 3
  assert "checkpoint of step 7 is damaged" in capfd.readouterr().err
  assert (tmp_path / "relu.damaged" / "7").is_dir()
  # Its step can be saved again.
  saved(tmp_path, 7)
  assert_is(restored(tmp_path)[0], 7)


def test_what_a_killed_save_leaves_is_not_picked_up(tmp_path):
  saved(tmp_path, 3, 7)
  half = tmp_path / "relu" / "7.orbax-checkpoint-tmp"
  (tmp_path / "relu" / "7").rename(half)
  (half / "commit_success.txt").unlink()
  assert_is(restored(tmp_path)[0], 3)


def test_all_damaged_is_refused_and_nothing_removed(tmp_path):
  saved(tmp_path, 3, 7)
  for step in "37":
    truncate(tmp_path / "relu" / step)
  with pytest.raises(ResumeError, match=r"no checkpoint in .* can be read"):
    restored(tmp_path)
  assert {p.name for p in (tmp_path / "relu").iterdir()} == {"3", "7"}


# Reading what a run has saved, afterwards.


def test_saved_states_come_oldest_first_and_stay(tmp_path):
  saved(tmp_path, 3, 7, 12)
  directory = tmp_path / "relu"
  before = sorted(p.name for p in directory.rglob("*"))
  found = list(saved_states(directory, state(0), META))
  assert [step for step, _ in found] == [3, 7, 12]
  for step, one in found:
    assert_is(one, step)
  assert sorted(p.name for p in directory.rglob("*")) == before


def test_saved_states_leave_what_is_being_written_alone(tmp_path):
  saved(tmp_path, 3)
  unfinished = tmp_path / "relu" / "7.orbax-checkpoint-tmp"
  unfinished.mkdir()
  found = list(saved_states(tmp_path / "relu", state(0), META))
  assert [step for step, _ in found] == [3]
  assert unfinished.is_dir()


@pytest.mark.parametrize("make_it", [True, False])
def test_no_saved_states(tmp_path, make_it):
  if make_it:
    (tmp_path / "relu").mkdir()
  with pytest.raises(ResumeError, match="no checkpoints in"):
    list(saved_states(tmp_path / "relu", state(0), META))
  assert (tmp_path / "relu").exists() == make_it


def test_saved_states_of_another_run(tmp_path):
  saved(tmp_path, 3)
  meta = {**META, "data": "other"}
  with pytest.raises(ResumeError, match=r"differs in run\.data"):
    list(saved_states(tmp_path / "relu", state(0), meta))


def test_a_damaged_saved_state_is_passed_over(tmp_path, capsys):
  saved(tmp_path, 3, 7)
  for file in (tmp_path / "relu" / "7" / "state").rglob("*"):
    if file.is_file():
      file.write_bytes(b"")
  found = list(saved_states(tmp_path / "relu", state(0), META))
  assert [step for step, _ in found] == [3]
  assert "7 is passed over, it cannot be read" in capsys.readouterr().err
  assert (tmp_path / "relu" / "7").is_dir()
  shutil.rmtree(tmp_path / "relu" / "3")
  with pytest.raises(ResumeError, match="that can be read"):
    list(saved_states(tmp_path / "relu", state(0), META))

"""Checkpoints by orbax: the state, the place in the data, and what they are.

Only this file knows orbax. A checkpoint appears under its final name once it
is complete; one that cannot be read all the same (a full disk, a copy broken
off) is set aside in favour of the one before.
"""

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp

from geom import record
from geom.train.state import State

Meta = dict[str, Any]


class ResumeError(RuntimeError):
  """A checkpoint is there but must not, or cannot, be continued."""


class Checkpoints:
  """The checkpoints of one run, in a directory of their own.

  Args:
    directory: made when the first checkpoint is written.
    every: save when this divides the step; None saves only at the end.
    keep: how many of the newest are kept.
    keep_every: those whose step this divides are kept for good; None: none.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    every: int | None,
    keep: int,
    keep_every: int | None,
  ):
    self.directory = directory.absolute()
    self.every = every
    self.options = ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      keep_period=keep_every,
      cleanup_tmp_directories=True,
    )
    self.manager = ocp.CheckpointManager(self.directory, options=self.options)

  def due(self, step: int) -> bool:
    return self.every is not None and step % self.every == 0

  def save(
    self, step: int, state: State, data: grain.DatasetIterator, meta: Meta
  ) -> None:
    """Starts saving; the state may be donated as soon as this returns."""
    if step in self.manager.all_steps():
      return
    self.manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        data=grain.checkpoint.CheckpointSave(data),
        meta=ocp.args.JsonSave(meta),
      ),
    )

  def restore(
    self, like: State, data: grain.DatasetIterator, meta: Meta
  ) -> State | None:
    """The newest complete checkpoint, or None where there is none.

    Args:
      like: a state of the same structure, arrays or ShapeDtypeStructs with
        the shardings to restore onto.
      data: an iterator, moved to the saved position.
      meta: what the run is (fingerprints of data and order, say).

    Raises:
      ResumeError: the checkpoint is of a run with another meta (it names the
        entries that differ), or none of the checkpoints can be read.
    """
    steps = sorted(self.manager.all_steps(), reverse=True)
    broken = []
    for step in steps:
      try:
        saved = self._read_meta(step)
        if saved == meta:
          state = self._read(step, like, data)
      except Exception as error:  # Whatever a damaged file raises.
        broken.append((step, error))
        continue
      if saved != meta:
        changed = ", ".join(record.differing(saved, meta, "run"))
        raise ResumeError(
          f"{self.directory / str(step)} is of another run; it differs in "
          f"{changed}"
        )
      for bad, error in broken:
        self._set_aside(bad, error)
      return state
    if broken:
      step, error = broken[0]
      raise ResumeError(
        f"no checkpoint in {self.directory} can be read; the newest, of step "
        f"{step}: {_first_line(error)}. Remove the directory to start anew"
      )
    return None

  def close(self) -> None:
    """Waits until everything is on disk."""
    self.manager.wait_until_finished()
    self.manager.close()

  def _read_meta(self, step: int) -> Meta:
    args = ocp.args.Composite(meta=ocp.args.JsonRestore())
    return self.manager.restore(step, args=args).meta

  def _read(self, step: int, like: State, data: grain.DatasetIterator) -> State:
    return self.manager.restore(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(_abstract(like)),
        data=grain.checkpoint.CheckpointRestore(data),
      ),
    ).state

  def _set_aside(self, step: int, error: Exception) -> None:
    """Renames a damaged checkpoint, so that its step can be saved again."""
    broken = self.directory.with_name(f"{self.directory.name}.damaged")
    broken.mkdir(exist_ok=True)
    target = broken / str(step)
    n = 0
    while target.exists():
      n += 1
      target = broken / f"{step}.{n}"
    (self.directory / str(step)).rename(target)
    self.manager.reload()
    print(
      f"checkpoint of step {step} is damaged ({_first_line(error)}); "
      f"moved to {target}, going on from the one before",
      file=sys.stderr,
    )


def saved_states(
  directory: pathlib.Path, like: State, meta: Meta
) -> Iterator[tuple[int, State]]:
  """The complete checkpoints of a run, oldest first; changes nothing there.

  Args:
    directory: of the checkpoints.
    like: a state of the same structure, with the shardings to restore onto.
    meta: what the run is.

  One that cannot be read, say because its deletion was broken off, is passed
  over with a line on stderr.

  Raises:
    ResumeError: there is none that can be read, or one is of another run.
  """
  if not directory.is_dir():
    raise ResumeError(f"no checkpoints in {directory}")
  options = ocp.CheckpointManagerOptions(read_only=True)
  args = ocp.args.Composite(
    state=ocp.args.StandardRestore(_abstract(like)), meta=ocp.args.JsonRestore()
  )
  with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
    readable = 0
    for step in sorted(manager.all_steps()):
      try:
        found = manager.restore(step, args=args)
      except Exception as error:  # Whatever a damaged file raises.
        print(
          f"{directory / str(step)} is passed over, it cannot be read: "
          f"{_first_line(error)}",
          file=sys.stderr,
        )
        continue
      readable += 1
      if found.meta != meta:
        changed = ", ".join(record.differing(found.meta, meta, "run"))
        raise ResumeError(
          f"{directory / str(step)} is of another run; it differs in {changed}"
        )
      yield step, found.state
    if not readable:
      raise ResumeError(f"no checkpoints in {directory} that can be read")


def _abstract(like: State) -> State:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like
  )


def _first_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

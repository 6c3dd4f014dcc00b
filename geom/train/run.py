"""Runs one condition with all its seeds: compile, resume, train, save."""

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

from geom import record
from geom.models.base import Params
from geom.train.checkpoint import (
  Checkpoints,
  Meta,
  ResumeError,
  saved_states,
)
from geom.train.grid import Due
from geom.train.loop import Finished, Measurement, failures, stops, train
from geom.train.profiling import profiled
from geom.train.progress import Progress
from geom.train.start import Project, start_states
from geom.train.state import State
from geom.train.step import Loss, make_chunk, make_step, over_seeds
from geom.train.stop import StopSignal
from geom.train.watch import NOT_YET, Watch


class Measure(NamedTuple):
  """A measurement of one seed.

  Attributes:
    kind: of row, `eval` or `probe`.
    due: at which steps.
    of: a pure function of the state -> named numbers, and the reference that
      the state is to have from now on (`state.reference` if it does not
      change).
  """

  kind: str
  due: Due
  of: Callable[[State], tuple[Mapping[str, Any], Any]]


class Setup(NamedTuple):
  """What an experiment says of one condition; pure functions of one seed.

  Attributes:
    init: key -> parameters.
    loss: `(params, batch) -> (loss, named scalars)`.
    tx: the optimizer.
    reference: parameters at step 0 -> what measurements compare with.
    measures: what is taken of the state, and when.
    project: what moves parameters to where training is to start, or None.
    watch: what counts as unstable, and what then; None: nothing does.
  """

  init: Callable[[Any], Params]
  loss: Loss
  tx: optax.GradientTransformation
  reference: Callable[[Params], Any]
  measures: Sequence[Measure]
  project: Project | None = None
  watch: Watch | None = None


def run_condition(
  setup: Setup,
  *,
  condition: str,
  seeds: Sequence[int],
  data: grain.DatasetIterator,
  num_steps: int,
  steps_per_dispatch: int,
  log_every: int,
  checkpoints: Checkpoints,
  meta: Meta,
  writer: record.Writer,
  stop: StopSignal,
  profile: pathlib.Path | None = None,
) -> Finished:
  """Trains all seeds of a condition, from its newest checkpoint if it has one.

  Args:
    setup: the pure functions.
    condition: its name, for rows and messages.
    seeds: of initialisation (`jax.random.key(seed)`).
    data: yields dicts of arrays `(seed, batch, ...)`, one a step, by the names
      that the loss reads.
    num_steps: the run's length.
    steps_per_dispatch: most steps in one call of the compiled program.
    log_every: see `geom.train.loop.train`.
    checkpoints, meta, writer, stop: likewise.
    profile: where to write a trace of a few dispatches, or None.

  Raises:
    ResumeError: the checkpoint there is of another run.
    Stopped: a signal came; the state is saved.
  """
  length = min(steps_per_dispatch, num_steps)
  step = make_step(setup.loss, setup.tx, setup.watch)
  one = make_chunk(step, length)
  chunk = jax.jit(over_seeds(one), donate_argnums=0)

  state, moved = _start(setup, seeds)
  with contextlib.closing(checkpoints):
    saved = checkpoints.restore(state, data, meta)
    state = state if saved is None else saved
    first = int(np.max(np.asarray(state.step)))
    failed = failures(seeds, state)
    stopped = stops(seeds, state, setup.watch)
    writer.rewind(condition, -1 if saved is None else first, failed)
    if saved is not None:
      last = {seed: step - 1 for seed, step in failed.items()} | stopped
      _require_rows(writer.path, condition, seeds, last, setup, first)
    if first >= num_steps or len({*failed, *stopped}) == len(seeds):
      print(f"{condition}: done before", file=sys.stderr)
      return Finished(state, failed, stopped)
    writer.write([_started(condition, first)])
    if saved is None:
      writer.write(_projected(condition, seeds, moved))
    progress = Progress(condition, num_steps, first)
    with (
      contextlib.closing(progress),
      _timed(writer, condition, progress),
      profiled(chunk, profile) as profiled_chunk,
    ):
      return train(
        state,
        condition=condition,
        seeds=seeds,
        chunk=profiled_chunk,
        length=length,
        data=data,
        num_steps=num_steps,
        log_every=log_every,
        measurements=[
          Measurement(m.kind, m.due, _of_all(m.of, setup.watch))
          for m in setup.measures
        ],
        writer=writer,
        checkpoints=checkpoints,
        meta=meta,
        progress=progress,
        stop=stop,
        watch=setup.watch,
      )


def measure_checkpoints(
  setup: Setup,
  trained: Setup,
  *,
  condition: str,
  seeds: Sequence[int],
  directory: pathlib.Path,
  meta: Meta,
  start: Callable[[Any, Any], Any],
  writer: record.Writer,
) -> None:
  """Takes the measures of a setup of the saved states of a run, afterwards.

  Each measure sees every checkpoint once, oldest first, and the reference
  that the measures before it have left; when it is due plays no part. Seeds
  that failed are named again; those that a watch stopped only end.

  Args:
    setup: what to measure.
    trained: the setup that the run was trained with; its links decide what
      there is beside weights.
    condition, seeds: of the run, and for the rows.
    directory: its checkpoints.
    meta: what the run is.
    start: (a new reference, the saved one) -> the one to begin with.
    writer: where rows go; what it has of the condition is replaced.

  Raises:
    ResumeError: there is no checkpoint, or one is damaged or of another run.
  """
  writer.rewind(condition, -1, {})
  like, _ = _start(trained, seeds)
  fresh, reference = _start(setup, seeds)[0].reference, None
  compiled = [(m.kind, _of_all(m.of)) for m in setup.measures]
  failed: dict[int, int] = {}
  for step, state in saved_states(directory, like, meta):
    for seed, at in failures(seeds, state).items():
      if seed not in failed:
        failed[seed] = at
        writer.write([_event(condition, at, "not finite", seed=seed)])
    stopped = stops(seeds, state, trained.watch)
    if reference is None:
      reference = start(fresh, state.reference)
    for kind, of in compiled:
      values, reference = of(state._replace(reference=reference))
      values = jax.device_get(dict(values))
      writer.write(
        {"step": step, "kind": kind, "condition": condition, "seed": seed}
        | {k: v[i] for k, v in values.items()}
        for i, seed in enumerate(seeds)
        if seed not in failed and step <= stopped.get(seed, step)
      )
    print(f"{condition}: measured step {step}", file=sys.stderr)
  writer.sync()


def _start(
  setup: Setup, seeds: Sequence[int]
) -> tuple[State, list[Mapping[str, Any]]]:
  return start_states(
    setup.init, setup.tx, setup.reference, seeds, setup.project, setup.watch
  )


@contextlib.contextmanager
def _timed(
  writer: record.Writer, condition: str, progress: Progress
) -> Iterator[None]:
  """Writes an event with the seconds that passed: `end`, or `stop`."""
  began = time.monotonic()
  event = "stop"
  try:
    yield
    event = "end"
  finally:
    seconds = round(time.monotonic() - began, 3)
    writer.write([_event(condition, progress.step, event, seconds=seconds)])


def _require_rows(
  path: pathlib.Path,
  condition: str,
  seeds: Sequence[int],
  last: Mapping[int, int],
  setup: Setup,
  step: int,
) -> None:
  """Raises ResumeError unless what was measured up to a step is on file.

  Of seeds that ended before, up to their last step.
  """
  there = {
    (r.get("seed"), r["kind"], r["step"])
    for r in record.read(path)
    if r.get("condition") == condition
  }
  for kind, is_due, _ in setup.measures:
    due = [s for s in range(step + 1) if is_due(s)]
    for seed in seeds:
      wanted = [s for s in due if s <= last.get(seed, step)]
      lacks = [s for s in wanted if (seed, kind, s) not in there]
      if lacks:
        raise ResumeError(
          f"{path} lacks the {kind} of {condition}, seed {seed}, step "
          f"{lacks[0]}, which was measured before the checkpoint of step "
          f"{step}; put it back, or remove the checkpoints to train anew"
        )


def _of_all(
  of: Callable[[State], tuple[Mapping[str, Any], Any]],
  watch: Watch | None = None,
) -> Callable[[State], tuple[Mapping[str, Any], Any]]:
  """A function of one state -> a compiled one of stacked states.

  A state that the watch has stopped keeps its reference: how often it is
  measured afterwards depends on how the run is cut into chunks.
  """

  def kept(state: State) -> tuple[Mapping[str, Any], Any]:
    values, new = of(state)
    going = state.watch.fired_at == NOT_YET
    return values, jax.tree.map(
      lambda x, old: jnp.where(going, x, old), new, state.reference
    )

  one = kept if watch is not None and watch.stop else of
  return jax.jit(lambda states: jax.lax.map(one, states))


def _event(condition: str, step: int, event: str, **values: Any) -> record.Row:
  where = {"step": step, "kind": "event", "condition": condition}
  return {**where, "event": event, "time": round(time.time(), 3), **values}


def _started(condition: str, step: int) -> record.Row:
  device = jax.devices()[0]
  return _event(
    condition,
    step,
    "resume" if step else "start",
    jax=jax.__version__,
    device=f"{jax.device_count()} x {device.device_kind}",
  )


def _projected(
  condition: str, seeds: Sequence[int], moved: Sequence[Mapping[str, Any]]
) -> Iterator[record.Row]:
  """Rows of how far each parameter was moved before step 0, by its norm."""
  for seed, distances in zip(seeds, moved, strict=False):
    named = {f"moved/{path}": d for path, d in distances.items()}
    yield _event(condition, 0, "projected", seed=seed, **named)

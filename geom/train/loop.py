"""The one impure loop: dispatch, then read what the last dispatch measured."""

import collections
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grain
import jax
import numpy as np

from geom import record
from geom.train import watch as watch_of
from geom.train.checkpoint import Checkpoints, Meta
from geom.train.grid import Due
from geom.train.progress import Progress
from geom.train.state import HEALTHY, State
from geom.train.step import Chunk
from geom.train.stop import StopSignal
from geom.train.watch import NOT_YET, Watch, Watched


class Measurement(NamedTuple):
  """Something taken of the state now and then.

  Attributes:
    kind: `eval` or `probe`.
    due: at which steps.
    of: compiled; stacked states -> named arrays with a leading seed axis, and
      the reference that the state is to have from now on.
  """

  kind: str
  due: Due
  of: Callable[[State], tuple[Mapping[str, Any], Any]]


class _Pending(NamedTuple):
  """Arrays that the device may still be computing, and what they are of."""

  kind: str
  step: int  # Updates made at the end of it.
  n: int  # For `train`, how many steps it covers.
  values: Mapping[str, Any]


class Finished(NamedTuple):
  """How a run ended.

  Attributes:
    state: the last state, with its leading seed axis.
    failed: for seeds whose loss or gradient was not finite, the step.
    stopped: for seeds that a watch has ended, their last step.
  """

  state: State
  failed: dict[int, int]
  stopped: dict[int, int]


def train(
  state: State,
  *,
  condition: str,
  seeds: Sequence[int],
  chunk: Chunk,
  length: int,
  data: grain.DatasetIterator,
  num_steps: int,
  log_every: int,
  measurements: Sequence[Measurement],
  writer: record.Writer,
  checkpoints: Checkpoints,
  meta: Meta,
  progress: Progress,
  stop: StopSignal,
  watch: Watch | None = None,
) -> Finished:
  """Trains all seeds to `num_steps`, from wherever the state is.

  Before a checkpoint is written, everything measured up to its step is in
  `metrics.jsonl`; nothing measured later counts when it is resumed. A seed
  that fails stays as it was before the failing step, and one that a watch
  stops as it was after its last, while the others go on; when none is left the
  run ends there.

  Args:
    state: states of all seeds, stacked; donated.
    condition: goes into every row.
    seeds: goes into the rows, one a leading entry of the state.
    chunk: compiled `(state, batches, n) -> (state, metrics)`, donating state.
    length: of the chunk: most steps a dispatch.
    data: yields dicts of arrays `(seed, batch, ...)`, one a step.
    num_steps: updates in all.
    log_every: `train` rows are written when this divides the step.
    measurements: taken at step 0 too.
    writer, checkpoints, meta: where numbers and states go, and what they are.
    progress, stop: what the user sees and says.
    watch: that of the chunk and the state.

  Raises:
    Stopped: a signal came; the state is saved.
  """
  run = _Rows(condition, seeds, log_every, writer, progress, watch)
  run.failed = failures(seeds, state)
  run.stopped = stops(seeds, state, watch)
  step = int(np.max(np.asarray(state.step)))
  pending: collections.deque[_Pending] = collections.deque()

  def measure(state: State, step: int) -> State:
    for m in measurements:
      if m.due(step):
        values, reference = m.of(state)
        state = state._replace(reference=reference)
        pending.append(_Pending(m.kind, step, 0, values))
    return state

  if step == 0:
    state = measure(state, 0)
  ends = [checkpoints.due, *(m.due for m in measurements)]
  while step < num_steps and not run.over:
    n = 1
    while n < min(length, num_steps - step) and not any(
      due(step + n) for due in ends
    ):
      n += 1
    state, metrics = chunk(state, _take(data, n, length), np.int32(n))
    step += n
    before = len(pending)
    pending.append(_Pending("train", step, n, metrics))
    state = measure(state, step)
    for _ in range(before):
      run.write(pending.popleft())
    if checkpoints.due(step) or stop.received:
      run.drain(pending)
      if run.over:
        break
      writer.sync()
      checkpoints.save(step, state, data, meta)
      stop.raise_if_received(f"{condition} at step {step}, saved")
  run.drain(pending)
  writer.sync()
  checkpoints.save(int(np.max(np.asarray(state.step))), state, data, meta)
  return Finished(state, run.failed, run.stopped)


def failures(seeds: Sequence[int], state: State) -> dict[int, int]:
  """Seeds whose state has failed, with the step that was not finite."""
  failed_at = np.asarray(state.failed_at)
  return {
    seed: int(step)
    for seed, step in zip(seeds, failed_at, strict=True)
    if step != HEALTHY
  }


def stops(
  seeds: Sequence[int], state: State, watch: Watch | None
) -> dict[int, int]:
  """Seeds that the watch has ended, with their last step."""
  if watch is None or not watch.stop:
    return {}
  fired_at = np.asarray(state.watch.fired_at)
  return {
    seed: int(step)
    for seed, step in zip(seeds, fired_at, strict=True)
    if step != NOT_YET
  }


def _take(
  data: grain.DatasetIterator, n: int, length: int
) -> dict[str, np.ndarray]:
  """The next n batches as arrays `(seed, length, batch, ...)`.

  Entries from n on repeat the last; the chunk does not read them.
  """
  steps = [next(data) for _ in range(n)]
  steps += steps[-1:] * (length - n)
  return jax.tree.map(lambda *xs: np.stack(xs, axis=1), *steps)


class _Rows:
  """Turns what the device measured into rows, and notices failure."""

  def __init__(
    self,
    condition: str,
    seeds: Sequence[int],
    log_every: int,
    writer: record.Writer,
    progress: Progress,
    watch: Watch | None,
  ):
    self.condition = condition
    self.seeds = seeds
    self.log_every = log_every
    self.writer = writer
    self.progress = progress
    self.watch = watch
    self.failed: dict[int, int] = {}
    self.stopped: dict[int, int] = {}

  @property
  def over(self) -> bool:
    """Whether no seed is left."""
    return len({*self.failed, *self.stopped}) == len(self.seeds)

  def drain(self, pending: collections.deque[_Pending]) -> None:
    while pending:
      self.write(pending.popleft())

  def write(self, p: _Pending) -> None:
    """Waits for the numbers and writes them."""
    values = jax.device_get(dict(p.values))
    rows = self.train(p, values) if p.kind == "train" else self.taken(p, values)
    self.writer.write(rows)

  def row(self, step: int, kind: str, seed: int, **values: Any) -> record.Row:
    where = {"condition": self.condition, "seed": seed}
    return {"step": step, "kind": kind, **where, **values}

  def taken(
    self, p: _Pending, values: Mapping[str, np.ndarray]
  ) -> Iterator[record.Row]:
    for i, seed in enumerate(self.seeds):
      last = self.stopped.get(seed, p.step)
      if seed not in self.failed and p.step <= last:
        yield self.row(
          p.step, p.kind, seed, **{k: v[i] for k, v in values.items()}
        )

  def train(
    self, p: _Pending, values: Mapping[str, np.ndarray]
  ) -> Iterator[record.Row]:
    losses = {}
    seen = values.get("watch")
    values = {k: v for k, v in values.items() if k != "watch"}
    for i, seed in enumerate(self.seeds):
      for j in range(p.n):
        if seed in self.failed or seed in self.stopped:
          break
        step = p.step - p.n + j + 1
        numbers = {k: v[i, j] for k, v in values.items()}
        finite = math.isfinite(numbers["loss"]) and math.isfinite(
          numbers["grad_norm"]
        )
        if finite:
          losses[seed] = numbers["loss"]
        else:
          self.failed[seed] = step
          print(
            f"{self.condition}, seed {seed}: loss {numbers['loss']}, gradient "
            f"norm {numbers['grad_norm']} at step {step}; this seed stops",
            file=sys.stderr,
          )
          yield self.row(
            step,
            "event",
            seed,
            event="not finite",
            loss=numbers["loss"],
            grad_norm=numbers["grad_norm"],
          )
        if not finite or step % self.log_every == 0:
          yield self.row(step, "train", seed, **numbers)
        if seen is not None and seen.fired_at[i, j] == step:
          yield from self.unstable(
            step, seed, jax.tree.map(lambda x, ij=(i, j): x[ij], seen)
          )
    loss = float(np.mean(list(losses.values()))) if losses else math.nan
    self.progress.update(p.step, loss)

  def unstable(
    self, step: int, seed: int, seen: Watched
  ) -> Iterator[record.Row]:
    """What there is to say where a watch has fired."""
    stop = self.watch is not None and self.watch.stop
    print(
      f"{self.condition}, seed {seed}: unstable at step {step}, "
      f"{watch_of.sentence(seen)}{'; this seed stops' if stop else ''}",
      file=sys.stderr,
    )
    yield self.row(step, "event", seed, **watch_of.event(seen))
    if stop:
      self.stopped[seed] = step
      yield self.row(step, "event", seed, event="stopped")

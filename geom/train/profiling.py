"""A trace of a few dispatches, for `xprof` or Perfetto."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax

from geom.train.step import Chunk


@contextlib.contextmanager
def profiled(
  chunk: Chunk, directory: pathlib.Path | None, skip: int = 2, count: int = 4
) -> Iterator[Chunk]:
  """The chunk itself, traced in calls skip .. skip + count - 1.

  Args:
    chunk: what a dispatch runs.
    directory: where the trace goes; None: no trace.
    skip: calls before it.
    count: calls in it.
  """
  if directory is None:
    yield chunk
    return
  calls = 0
  tracing = False

  def traced(*args: Any) -> Any:
    nonlocal calls, tracing
    if calls == skip:
      jax.profiler.start_trace(str(directory))
      tracing = True
    out = chunk(*args)
    calls += 1
    if calls == skip + count:
      jax.block_until_ready(out)
      jax.profiler.stop_trace()
      tracing = False
    return out

  try:
    yield traced
  finally:
    if tracing:
      jax.profiler.stop_trace()
    if calls <= skip:
      print(
        f"no profile: it begins with dispatch {skip + 1}, there were {calls}",
        file=sys.stderr,
      )

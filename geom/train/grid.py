"""When to measure: log-spaced steps early, every n later."""

from collections.abc import Callable

Due = Callable[[int], bool]


def log_and_every(
  *, per_decade: int, every: int | None, num_steps: int, first: int = 0
) -> Due:
  """Due at 0, at `10^(i / per_decade)` rounded, every n, and at the end.

  Args:
    per_decade: log-spaced points a factor of ten; 0 for none but step 0.
    every: also when this divides the step; None for never.
    num_steps: the last step, always due.
    first: every step up to this one is due.
  """
  grid = {num_steps, *range(min(first, num_steps) + 1)}
  i = 0
  while per_decade and (step := round(10 ** (i / per_decade))) < num_steps:
    grid.add(step)
    i += 1
  return lambda step: step in grid or (every is not None and step % every == 0)

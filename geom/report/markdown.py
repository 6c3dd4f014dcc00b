"""Tables and lines of a report, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from geom.record import Row
from geom.report import series


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """Rows of cells under a head."""
  rows = [head, ["---"] * len(head), *lines]
  return "\n".join(f"| {' | '.join(line)} |" for line in rows)


def number(value: Any, digits: int = 3) -> str:
  """A number for a table; a dash where there is none."""
  if value is None or not np.isfinite(value):
    return "–"
  if 0 < abs(value) < 10.0**-digits:
    return f"{value:.0e}"
  return f"{value:.{digits}f}"


def mean(values: Float[np.ndarray, " seed"], digits: int = 3) -> str:
  """Mean over seeds ± standard deviation; a dash for what is not defined."""
  middle, spread, n = series.mean_spread(values)
  if not n:
    return "–"
  return f"{number(middle, digits)} ± {number(spread, digits)}"


def setting(config: Mapping[str, Any], rows: Sequence[Row]) -> str:
  """What was run: sections of the config, what conditions change, seeds."""
  parts = [
    f"{name}: " + ", ".join(f"{k} {plain(v)}" for k, v in section.items())
    for name in ("model", "optim", "data", "train", "watch")
    if name in config
    and (section := {k: v for k, v in config[name].items() if v is not None})
  ]
  changes = [
    f"`{name}`: "
    + (
      ", ".join(
        f"{key} {plain(value)}"
        for section in change.values()
        for key, value in section.items()
      )
      or "as above"
    )
    for name, change in config["conditions"].items()
  ]
  seconds = sum(r.get("seconds", 0) for r in rows if r["kind"] == "event")
  return "\n".join(
    [
      f"* {'; '.join(parts)}.",
      f"* Conditions change that: {'; '.join(changes)}.",
      f"* Seeds {', '.join(map(str, config['seeds']))}. {seconds:.0f} s of "
      "compiling, training and probing, killed parts not counted.",
    ]
  )


def plain(value: Any) -> str:
  """A value of a config as one writes it."""
  if isinstance(value, (list, tuple)):
    return "/".join(map(str, value))
  if isinstance(value, Mapping):
    inner = ", ".join(f"{k}: {plain(v)}" for k, v in value.items())
    return f"{{{inner}}}"
  return str(value)


def failure(condition: str, seeds: Mapping[int, int]) -> str:
  """A line on seeds that were not finite."""
  steps = ", ".join(f"seed {s} at step {step}" for s, step in seeds.items())
  return f"**{condition}: loss or gradient not finite, {steps}.**"

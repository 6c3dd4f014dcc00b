"""Tables of the continuity of a transformer's projections."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from geom.record import Row
from geom.report import markdown as md
from geom.report import series

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
SIDES = ("input", "output")
# Heading, stack, when.
SEEN = (
  ("W", "weights", "last"),
  ("folded", "folded", "last"),
  ("dW", "updates", "last"),
  ("G at 0", "gradients", "start"),
  ("G", "gradients", "last"),
)
WAYS = {"pairs": "all pairs", "best": "best match", "same": "same number"}


def losses(rows: Sequence[Row], names: Sequence[str]) -> str:
  """Validation loss beside chance, by seed, and what a condition took."""
  head = [
    "condition", "validation loss", "seed by seed", "unigram", "below it",
    "seeds", "noticed as unstable", "seconds", "device",
  ]  # fmt: skip
  lines = []
  for name in names:
    found = series.values_at(rows, name, "eval", "loss", "last")
    loss = np.array([np.nan]) if found is None else found[1]
    level = unigram(rows, name)
    mine = [r for r in rows if r.get("condition") == name]
    lines.append(
      [
        f"`{name}`",
        md.mean(loss),
        " ".join(md.number(x) for x in loss),
        md.number(level),
        md.mean(level - loss),
        str(len(series.seeds(rows, name))),
        str(len(series.events(rows, name, "unstable"))),
        md.number(sum(r.get("seconds", 0) for r in mine), 0),
        ", ".join(dict.fromkeys(r["device"] for r in mine if "device" in r)),
      ]
    )
  return md.table(head, lines)


def unigram(rows: Sequence[Row], name: str) -> float:
  """Nats of who knows only how often tokens come, NaN where not said."""
  levels = [
    r["unigram_loss"]
    for r in rows
    if r.get("condition") == name and r.get("event") == "data"
  ]
  return float(levels[-1]) if levels else float("nan")


def projections(
  rows: Sequence[Row], name: str, chances: Mapping[str, float]
) -> str:
  """|cos| of adjacent layers of every projection of a condition, both sides."""
  head = ["projection"]
  for side in SIDES:
    head += [f"{side}: chance", *[title for title, _, _ in SEEN]]
  head += ["s1/s2 of W", "pairs not defined, W"]
  lines = []
  for p in PROJECTIONS:
    line = [p]
    for side in SIDES:
      line.append(md.number(chances[f"{p}/{side}"]))
      for _, stack, at in SEEN:
        key = f"{p}/{stack}/cos_{side}_mean"
        line.append(_cell(rows, name, key, at))
    gap = series.values_at(rows, name, "probe", f"{p}/weights/gap", "last")
    line.append("–" if gap is None else md.mean(_over_layers(gap[1]), 2))
    lines.append([*line, _undefined(rows, name, p)])
  return md.table(head, lines)


def heads(
  rows: Sequence[Row],
  names: Sequence[str],
  chances: Mapping[str, float],
  stack: str,
) -> str:
  """|cos| between heads of adjacent layers, three ways, with chance levels."""
  kinds = ("q", "k", "v", "o")
  if not any(f"q/heads/{stack}/best_input_mean" in r for r in rows):
    return "Not measured."
  head = ["condition", "projection"]
  head += [f"{side}: {title}" for side in SIDES for title in WAYS.values()]
  lines = []
  for name in names:
    for p in kinds:
      line = [f"`{name}`", p]
      for side in SIDES:
        for way in WAYS:
          key = f"{p}/heads/{stack}/{way}_{side}_mean"
          level = chances[f"{p}/heads/{way}_{side}"]
          cell = _cell(rows, name, key, "last")
          line.append(f"{cell} ({md.number(level, 2)})")
      lines.append(line)
  return md.table(head, lines)


def _cell(rows: Sequence[Row], name: str, key: str, at: str) -> str:
  found = series.values_at(rows, name, "probe", key, at)
  return "–" if found is None else md.mean(found[1], 2)


def _over_layers(
  values: Float[np.ndarray, "seed layer"],
) -> Float[np.ndarray, " seed"]:
  mean, _, _ = series.mean_spread(np.moveaxis(values, -1, 0))
  return mean


def _undefined(rows: Sequence[Row], name: str, p: str) -> str:
  """Of how many pairs, over seeds, there is no leading vector."""
  key = f"{p}/weights/cos_input"
  found = series.values_at(rows, name, "probe", key, "last")
  if found is None:
    return "–"
  return f"{int(np.isnan(found[1]).sum())} of {found[1].size}"

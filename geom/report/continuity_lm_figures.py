"""Pictures of the continuity of a transformer's projections."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geom.record import Row
from geom.report import figures, series
from geom.report.continuity_lm_tables import PROJECTIONS, SIDES, unigram

STACKS = {
  "weights": "W",
  "gradients": "gradients",
  "updates": "W − W(0)",
}
VECTORS = {"input": "$v_1$, input side", "output": "$u_1$, output side"}


@matplotlib.rc_context(figures.STYLE)
def losses(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """Validation and training loss, with what frequencies alone give."""
  figure, axes = figures.panels(1, 2, figsize=(10, 3.8))
  for ax, kind, title in zip(
    axes[0],
    ("eval", "train"),
    ("validation loss", "training loss"),
    strict=True,
  ):
    figures.curves(ax, rows, names, kind, "loss")
    ax.set_xscale("linear")
    ax.autoscale(axis="x")
    ax.set_title(f"{title}, nats a token")
    levels = {unigram(rows, name) for name in names}
    for level in levels - {float("nan")}:
      if np.isfinite(level):
        ax.axhline(level, color="black", ls=":", lw=1, label="unigram")
  return figures.finish(figure, [*names, "unigram"])


@matplotlib.rc_context(figures.STYLE)
def continuity(
  rows: Sequence[Row],
  chances: Mapping[str, float],
  names: Sequence[str],
  stack: str,
) -> Figure | None:
  """|cos| of adjacent layers against step: a column a projection."""
  key = f"{stack}/cos_{{}}_mean"
  figure = _by_projection(rows, names, key, STACKS[stack])
  for line, side in zip(_lines(figure), SIDES, strict=True):
    for ax, p in zip(line, PROJECTIONS, strict=True):
      figures.chance(ax, chances[f"{p}/{side}"])
      ax.set_ylim(-0.02, 1.02)
    line[0].set_ylabel(f"{VECTORS[side]}\n|cos| of adjacent layers")
  return figures.finish(figure, names)


@matplotlib.rc_context(figures.STYLE)
def drift(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """How fast leading vectors of W turn: radians a step between probes."""
  figure = _by_projection(rows, names, "drift/{}", "")
  for line, side in zip(_lines(figure), SIDES, strict=True):
    line[0].set_ylabel(f"{VECTORS[side]} of W\nradians a step")
    for ax in line:
      ax.set_yscale("log")
  return figures.finish(figure, names)


def _by_projection(
  rows: Sequence[Row], names: Sequence[str], key: str, title: str
) -> Figure:
  """A row of panels a side, a column a projection, a line a condition."""
  figure, axes = figures.panels(
    2, len(PROJECTIONS), figsize=(16, 5.4), sharex=True, sharey=True
  )
  for line, side in zip(axes, SIDES, strict=True):
    for ax, p in zip(line, PROJECTIONS, strict=True):
      for i, name in enumerate(names):
        curve = series.curve(rows, name, "probe", f"{p}/{key.format(side)}")
        if curve is not None:
          figures.band(ax, i, name, *_a_step(curve))
      _against_steps(ax)
      if side == "input":
        ax.set_title(f"{p}: {title}" if title else p)
      ax.label_outer()
  return figure


def _a_step(curve: series.Curve) -> tuple[np.ndarray, np.ndarray]:
  """Steps and numbers; of angles a layer since the last probe, a step."""
  if curve.values.ndim == 2:
    return curve.steps, curve.values
  mean, _, _ = series.mean_spread(np.moveaxis(curve.values, -1, 0))
  return curve.steps[1:], mean[:, 1:] / np.diff(curve.steps)


def _against_steps(ax: Axes) -> None:
  ax.set_xscale("symlog", linthresh=1)
  ax.set_xlim(left=0)
  ax.set_xlabel("step")


def _lines(figure: Figure) -> np.ndarray:
  return np.array(figure.axes).reshape(2, len(PROJECTIONS))


@matplotlib.rc_context(figures.STYLE)
def base(
  rows: Sequence[Row], name: str, chances: Mapping[str, float]
) -> Figure | None:
  """All projections of one condition beside each other."""
  figure, axes = figures.panels(
    2, len(STACKS), figsize=(11, 6), sharex=True, sharey=True
  )
  for line, side in zip(axes, SIDES, strict=True):
    for ax, (stack, title) in zip(line, STACKS.items(), strict=True):
      for i, p in enumerate(PROJECTIONS):
        key = f"{p}/{stack}/cos_{side}_mean"
        curve = series.curve(rows, name, "probe", key)
        if curve is not None:
          figures.band(ax, i, p, curve.steps, curve.values)
      # The widest and the narrowest space.
      levels = [chances[f"{p}/{side}"] for p in PROJECTIONS]
      for level in {min(levels), max(levels)}:
        figures.chance(ax, level)
      ax.set_ylim(-0.02, 1.02)
      _against_steps(ax)
      if side == "input":
        ax.set_title(f"{name}: {title}")
      ax.label_outer()
    line[0].set_ylabel(f"{VECTORS[side]}\n|cos| of adjacent layers")
  return figures.finish(figure, PROJECTIONS)


@matplotlib.rc_context(figures.STYLE)
def layer_pairs(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """|cos| of every pair of layers at the last probe: a map a side."""
  maps = {name: [_map(rows, name, side) for side in SIDES] for name in names}
  maps = {n: m for n, m in maps.items() if all(x is not None for x in m)}
  if not maps:
    return None
  figure, axes = figures.panels(
    len(maps), 2, figsize=(8, 0.6 + 2.0 * len(maps)), sharey=True, sharex=True
  )
  for line, (name, both) in zip(axes, maps.items(), strict=True):
    for ax, values, side in zip(line, both, SIDES, strict=True):
      image = ax.imshow(values, vmin=0, vmax=1, aspect="auto", cmap="viridis")
      ax.set_facecolor("0.8")  # Where no leading vector is defined.
      ax.grid(False)
      ax.set_yticks(range(len(PROJECTIONS)), PROJECTIONS)
      pairs = values.shape[1]
      ax.set_xticks(range(pairs), [f"{i}–{i + 1}" for i in range(pairs)])
      ax.set_title(f"{name}: W, {VECTORS[side]}")
  for ax in axes[-1]:
    ax.set_xlabel("pair of layers")
  figure.colorbar(image, ax=axes, label="|cos|, mean over seeds")
  return figure


def _map(rows: Sequence[Row], name: str, side: str) -> np.ndarray | None:
  """`(projection, pair)`, mean over seeds, of the last probe."""
  lines = []
  for p in PROJECTIONS:
    key = f"{p}/weights/cos_{side}"
    found = series.values_at(rows, name, "probe", key, "last")
    if found is None:
      return None
    lines.append(series.mean_spread(found[1])[0])
  return np.array(lines)

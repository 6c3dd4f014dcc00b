"""Continuity against dominance: does W follow once W - W(0) outweighs W(0)?"""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geom.record import Row
from geom.report import figures, series

LEVEL = 0.5  # Of |cos|, whose crossing is looked for.


@matplotlib.rc_context(figures.STYLE)
def crossing(
  rows: Sequence[Row], chances: Mapping[str, float], conditions: Sequence[str]
) -> Figure | None:
  """v1 continuity against dominance, a line a seed, with its crossing of .5.

  Between probes the lines are straight in both numbers, hence curved on the
  logarithmic axis, so that the crossings lie on them.
  """
  y_key = "weights/cos_input_mean"
  sides = {
    "dominance/spectral_mean": "$s_1(W - W(0))\\; /\\; s_1(W(0))$",
    "dominance/frobenius_mean": "$|W - W(0)|_F\\; /\\; |W(0)|_F$",
  }
  shown: dict[str, int] = {}
  height = 3.8 + 0.2 * len(conditions)
  figure, axes = figures.panels(1, 2, figsize=(9, height), sharey=True)
  for ax, (x_key, x_name) in zip(axes.flat, sides.items(), strict=True):
    positive = False
    for i, name in enumerate(conditions):
      found = series.path(rows, name, x_key, y_key)
      if found is None or not np.isfinite(found[0] + found[1]).any():
        continue
      positive |= bool(np.any(found[0] > 0))
      at = series.crossings(rows, name, x_key, y_key, LEVEL)
      for x, y in zip(*found, strict=True):
        _trajectory(ax, i, x, y)
      ax.plot([], [], label=f"{name}: {_seen(at)}", lw=1, **figures.look(i))
      ax.plot(
        at, np.full(len(at), LEVEL), figures.look(i)["marker"], ms=4, zorder=3,
        color=figures.look(i)["color"], mfc=figures.look(i)["mfc"],
      )  # fmt: skip
    ax.axhline(LEVEL, color="0.4", lw=0.8)
    figures.chance(ax, chances["input"])
    ax.set_ylim(-0.02, 1.02)
    if positive:  # Training with a learning rate of 0 leaves nothing to log.
      ax.set_xscale("log")
    ax.set_xlabel(x_name + ", mean over layers")
    _, labels = ax.get_legend_handles_labels()
    shown[x_key] = len(labels) - 1
    if shown[x_key]:
      ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=4.5,
        ncols=figures.fitting(labels, 4.2),
        title=f"crosses {LEVEL:g} at (mean ± sd over seeds)",
      )
    else:
      figures.unmeasured(ax)
  axes[0, 0].set_ylabel("|cos| of $v_1$ of adjacent W")
  return figure if any(shown.values()) else None


def _trajectory(ax: Axes, i: int, x: np.ndarray, y: np.ndarray) -> None:
  """One seed in order of steps, dots where it was probed."""
  defined = np.isfinite(x) & np.isfinite(y)
  x, y = x[defined], y[defined]
  if not len(x):
    return
  fine = np.linspace(0, len(x) - 1, 16 * (len(x) - 1) + 1)
  whole = np.arange(len(x))
  fine_x, fine_y = np.interp(fine, whole, x), np.interp(fine, whole, y)
  style = figures.look(i)
  seen, positive = x > 0, fine_x > 0
  ax.plot(
    fine_x[positive], fine_y[positive], color=style["color"],
    ls=style["linestyle"], lw=0.7, alpha=0.8,
  )  # fmt: skip
  ax.plot(x[seen], y[seen], ".", color=style["color"], ms=2)


def _seen(crossings: np.ndarray) -> str:
  """Mean and deviation of crossings, and how many seeds have one."""
  mean, spread, n = map(float, series.mean_spread(crossings))
  if not n:
    return "never"
  places = figures.digits(mean)
  text = f"{mean:.{places}f}"
  if n > 1:
    text += f" ± {spread:.{places}f}"
  return text if n == len(crossings) else f"{text} ({n:g} of {len(crossings)})"

"""How figures look: colours, curves, chance levels, legends, files.

Figures are drawn off screen, as objects, without global state. The place of a
condition among `conditions` is its colour, so that it has the same one in all
figures of a report; what has no numbers is left out, not drawn as nothing.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Int, Real
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geom.record import Row
from geom.report import series

# Colours that stay apart for most colour-blind readers (Okabe and Ito).
COLOURS = (
  "#0072b2", "#d55e00", "#009e73", "#cc79a7",
  "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
MARKERS = "os^Dv<>P"
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
STYLE = {
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "axes.titlesize": 9,
  "font.size": 9,
  "grid.alpha": 0.3,
  "legend.frameon": False,
  "legend.handlelength": 3,
}
MOST_POINTS = 60  # Of a curve of batches, which is averaged to so many.


def look(i: int) -> dict[str, Any]:
  """Colour, marker and line style of the i-th condition."""
  again, k = divmod(i, len(COLOURS))
  return {
    "color": COLOURS[k],
    "marker": MARKERS[k],
    "mfc": "white" if again % 2 else COLOURS[k],
    "linestyle": DASHES[again % len(DASHES)],
  }


def digits(value: float) -> int:
  """Decimals that show three digits of what is above 1, else thousandths."""
  if abs(value) < 1:
    return 3
  return max(0, 2 - math.floor(math.log10(abs(value))))


def panels(rows: int, columns: int, **more: Any) -> tuple[Figure, np.ndarray]:
  """A figure with its axes `(rows, columns)`; `figsize`, `sharey` and so on."""
  figsize = more.pop("figsize")
  figure = Figure(figsize=figsize, layout="constrained")
  return figure, figure.subplots(rows, columns, squeeze=False, **more)


def band(
  ax: Axes,
  i: int,
  name: str,
  x: Real[np.ndarray, " point"],
  values: Float[np.ndarray, "seed point"],
) -> None:
  """Mean over seeds and a band of one deviation, if anything is defined."""
  mean, spread, _ = series.mean_spread(values)
  if not np.isfinite(mean).any():
    return
  style = look(i)
  ax.plot(x, mean, label=name, ms=2.5, lw=1.2, **style)
  width = np.nan_to_num(spread)
  ax.fill_between(
    x, mean - width, mean + width, color=style["color"], alpha=0.18, lw=0
  )


def bars(
  ax: Axes,
  i: int,
  name: str,
  x: Real[np.ndarray, " point"],
  values: Float[np.ndarray, "seed point"],
) -> None:
  """Mean over seeds and a bar of one deviation, if anything is defined."""
  mean, spread, _ = series.mean_spread(values)
  if np.isfinite(mean).any():
    ax.errorbar(
      x, mean, np.nan_to_num(spread), label=name, ms=3, lw=1, **look(i)
    )


def curves(
  ax: Axes,
  rows: Sequence[Row],
  conditions: Sequence[str],
  kind: str,
  key: str,
  *,
  per_layer: bool = False,
) -> None:
  """Draws one quantity against step: mean over seeds, band of one deviation.

  Args:
    ax: where.
    rows: of `metrics.jsonl`.
    conditions: to draw, in the order of their colours.
    kind: of row.
    key: the quantity.
    per_layer: its values are lists over layers, of which the mean is drawn.

  Of `train` rows, numbers of one batch, consecutive ones are averaged.
  """
  for i, name in enumerate(conditions):
    curve = series.curve(rows, name, kind, key)
    if curve is not None:
      values = curve.values.mean(axis=-1) if per_layer else curve.values
      steps, values = _thinned(curve.steps, values, kind == "train")
      band(ax, i, name, steps, values)
  ax.set_xscale("symlog", linthresh=1)
  ax.set_xlim(left=0)
  ax.set_xlabel("step")


def _thinned(
  steps: Int[np.ndarray, " step"],
  values: Float[np.ndarray, "seed step"],
  thin: bool,
) -> tuple[np.ndarray, np.ndarray]:
  """Means of equally many consecutive points, if there are too many."""
  each = math.ceil(len(steps) / MOST_POINTS) if thin else 1
  starts = np.arange(0, len(steps), each)
  counts = np.diff(starts, append=len(steps))
  means = np.add.reduceat(values, starts, axis=1) / counts
  return np.add.reduceat(steps, starts) / counts, means


def chance(ax: Axes, level: float) -> None:
  """Draws the chance level."""
  ax.axhline(level, color="black", ls=":", lw=1, label="chance")


def unmeasured(ax: Axes) -> None:
  """Says of a panel that there is nothing to draw in it."""
  ax.text(
    0.5, 0.5, "not measured", transform=ax.transAxes, color="0.5",
    ha="center", va="center",
  )  # fmt: skip


def finish(figure: Figure, conditions: Sequence[str]) -> Figure | None:
  """One legend below, in the order of conditions, chance last.

  A panel that shows no condition says so. None for a figure of such panels
  alone: there is nothing to draw.
  """
  named: dict[str, Any] = {}
  for ax in figure.axes:
    handles, labels = ax.get_legend_handles_labels()
    named |= dict(zip(labels, handles, strict=True))
    if not set(labels) - {"chance"}:
      unmeasured(ax)
  shown = [name for name in conditions if name in named]
  if not shown:
    return None
  shown += ["chance"] * ("chance" in named)
  figure.legend(
    [named[name] for name in shown],
    shown,
    loc="outside lower center",
    ncols=fitting(shown, figure.get_figwidth()),
  )
  return figure


def fitting(labels: Sequence[str], inches: float) -> int:
  """How many columns of a legend fit into a width."""
  points = 0.62 * STYLE["font.size"] * max(map(len, labels)) + 50
  return max(1, min(len(labels), int(72 * inches / points)))


def save(figure: Figure, path: pathlib.Path) -> None:
  """Writes a PNG, the same bytes for the same figure."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with matplotlib.rc_context(STYLE):  # Ticks are made when they are drawn.
    figure.savefig(path, dpi=120, metadata={"Software": None})

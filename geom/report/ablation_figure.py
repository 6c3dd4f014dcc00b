"""The table of an ablation as a picture: a line a condition."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from geom.record import Row
from geom.report import series
from geom.report.figures import STYLE, digits

# Light to dark, so that it is read without seeing colours; 0 is not white.
COLOURS = matplotlib.colormaps["YlGnBu"]
COSINES = ("/cos_", "_cosine", "/same_index_", "transfer/")
MAX_TITLE = 13  # Characters a line.


@matplotlib.rc_context({**STYLE, "axes.grid": False, "axes.spines.left": False})
def ablation(
  rows: Sequence[Row],
  chances: Mapping[str, float],
  conditions: Sequence[str],
  columns: Mapping[str, tuple[str, str, str]],
) -> Figure | None:
  """Mean and, smaller, deviation over seeds, a row a condition.

  Cells of cosines are coloured by value, with the chance level on the colour
  bar; a dash stands for what is not defined or was not measured.

  Args:
    rows: of `metrics.jsonl`.
    chances: chance levels of |cos|, by side.
    conditions: the lines, from above; those without any number are left out.
    columns: title -> kind of row, key, and `start`, step 0, or `last` step
      having it; a list is averaged. Those without any number are left out.
  """
  cells = {
    (name, title): cell
    for name in conditions
    for title, column in columns.items()
    if (cell := _cell(rows, name, *column)) is not None
  }
  names = [n for n in conditions if any(n == name for name, _ in cells)]
  titles = [t for t in columns if any(t == title for _, title in cells)]
  if not names:
    return None
  wide = 0.075 * max(map(len, names))
  figure = Figure(
    figsize=(wide + 0.92 * len(titles) + 0.4, 0.34 * len(names) + 1.1),
    layout="constrained",
  )
  ax = figure.subplots()
  for j, title in enumerate(titles):
    cosine = any(mark in columns[title][1] for mark in COSINES)
    for i, name in enumerate(names):
      _draw(ax, i, j, cells.get((name, title), (math.nan, math.nan)), cosine)
  ax.set_xlim(0, len(titles))
  ax.set_ylim(len(names), 0)
  ax.set_xticks(
    np.arange(len(titles)) + 0.5,
    [textwrap.fill(t, MAX_TITLE) for t in titles],
    fontsize=8,
  )
  ax.set_yticks(np.arange(len(names)) + 0.5, names)
  ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
  ax.spines["bottom"].set_visible(False)
  bar = figure.colorbar(
    ScalarMappable(cmap=COLOURS), ax=ax, location="bottom", aspect=40,
    shrink=min(1.0, 5 / len(titles)), pad=0.4 / len(names),
    label="cosine; dotted: chance",
  )  # fmt: skip
  for level in set(chances.values()):
    bar.ax.axvline(level, color="black", ls=":", lw=1)
  return figure


def _cell(
  rows: Sequence[Row], condition: str, kind: str, key: str, at: str
) -> tuple[float, float] | None:
  """Mean and deviation over seeds; None where no row has the quantity."""
  found = series.values_at(rows, condition, kind, key, at)
  if found is None:
    return None
  values = found[1]
  if values.ndim > 1:
    values = values.mean(axis=tuple(range(1, values.ndim)))
  mean, spread, _ = series.mean_spread(values)
  return float(mean), float(spread)


def _draw(
  ax: Axes, i: int, j: int, cell: tuple[float, float], cosine: bool
) -> None:
  """One cell: mean above deviation, on its colour."""
  mean, spread = cell
  coloured = cosine and math.isfinite(mean)
  face = COLOURS(min(max(mean, 0.0), 1.0)) if coloured else "white"
  ax.add_patch(Rectangle((j, i), 1, 1, fc=face, ec="white", lw=1))
  ink = "white" if coloured and mean > 0.65 else "black"
  if not math.isfinite(mean):
    ax.text(j + 0.5, i + 0.5, "–", ha="center", va="center", color="0.5")
    return
  alone = not math.isfinite(spread)
  ax.text(
    j + 0.5, i + (0.5 if alone else 0.36), f"{mean:.{digits(mean)}f}",
    color=ink, fontsize=8, ha="center", va="center",
  )  # fmt: skip
  if not alone:
    ax.text(
      j + 0.5, i + 0.76, f"± {spread:.{digits(mean)}f}",
      color=ink, fontsize=5.5, ha="center", va="center",
    )  # fmt: skip

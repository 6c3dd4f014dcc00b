"""Figures from the rows of a run, as matplotlib draws them off screen."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from geom.record import Row
from geom.report import series

# Colours that stay apart for most colour-blind readers (Okabe and Ito).
COLOURS = (
  "#0072b2", "#d55e00", "#009e73", "#cc79a7",
  "#e69f00", "#56b4e9", "#000000", "#999933",
)  # fmt: skip
STYLE = {
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "font.size": 9,
  "grid.alpha": 0.3,
  "legend.frameon": False,
}


def curves(
  ax: Axes, rows: Sequence[Row], kind: str, key: str, *, per_layer: bool = False
) -> None:
  """Draws one quantity against step: mean over seeds, band of one deviation.

  Args:
    ax: where.
    rows: of `metrics.jsonl`.
    kind: of row.
    key: the quantity.
    per_layer: its values are lists over layers, of which the mean is drawn.
  """
  for i, name in enumerate(series.conditions(rows)):
    curve = series.curve(rows, name, kind, key)
    if curve is None:
      continue
    values = curve.values.mean(axis=-1) if per_layer else curve.values
    mean, spread, _ = series.mean_spread(values)
    colour = COLOURS[i % len(COLOURS)]
    ax.plot(curve.steps, mean, ".-", color=colour, label=name, ms=4, lw=1.2)
    band = np.nan_to_num(spread)
    ax.fill_between(
      curve.steps, mean - band, mean + band, color=colour, alpha=0.2, lw=0
    )
  ax.set_xscale("symlog", linthresh=1)
  ax.set_xlim(left=0)
  ax.set_xlabel("step")


def chance(ax: Axes, level: float) -> None:
  """Draws the chance level."""
  ax.axhline(level, color="black", ls=":", lw=1, label="chance")


def _legend_below(figure: Figure, ax: Axes) -> None:
  """One legend for the figure, chance last; none if there is nothing."""
  named = list(zip(*ax.get_legend_handles_labels(), strict=True))
  named.sort(key=lambda pair: pair[1] == "chance")
  if named:
    handles, labels = zip(*named, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=5)


def continuity(
  rows: Sequence[Row], chances: Mapping[str, float], title: str
) -> Figure:
  """|cos| of leading singular vectors against step: weights, gradients, dW."""
  columns = {
    "weights": "weights W",
    "gradients": "gradients G",
    "updates": "what training added, W - W(0)",
  }
  sides = {"input": "input side (v1 of W)", "output": "output side (u1 of W)"}
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for row, (side, side_name) in zip(axes, sides.items(), strict=True):
      for ax, (stack, name) in zip(row, columns.items(), strict=True):
        curves(ax, rows, "probe", f"{stack}/cos_{side}_mean")
        chance(ax, chances[side])
        ax.set_ylim(0, 1.02)
        ax.set_title(f"{name}, {side_name}", fontsize=9)
      row[0].set_ylabel("|cos| of adjacent layers")
    _legend_below(figure, axes[0, 0])
    figure.suptitle(title)
  return figure


def layer_pairs(rows: Sequence[Row], chances: Mapping[str, float]) -> Figure:
  """|cos| of each pair of layers in the weights at the last probe."""
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, side in zip(axes, ("input", "output"), strict=True):
      for i, name in enumerate(series.conditions(rows)):
        curve = series.curve(rows, name, "probe", f"weights/cos_{side}")
        if curve is None:
          continue
        mean, spread, _ = series.mean_spread(curve.values[:, -1])
        ax.errorbar(
          np.arange(len(mean)) + 0.06 * i,
          mean,
          np.nan_to_num(spread),
          fmt="o-",
          ms=3,
          lw=1,
          color=COLOURS[i % len(COLOURS)],
          label=name,
        )
      chance(ax, chances[side])
      ax.set_title(f"weights at the last step, {side} side")
      ax.set_xlabel("pair of layers l, l+1")
      ax.xaxis.set_major_locator(MaxNLocator(integer=True))
      ax.set_ylim(-0.05, 1.05)
    axes[0].set_ylabel("|cos|, mean and deviation over seeds")
    _legend_below(figure, axes[0])
  return figure


def context(rows: Sequence[Row]) -> Figure:
  """What to read beside v1: loss, accuracy, gap, likeness, dominance."""
  panels = [
    ("train", "loss", "training loss of a batch (nats)", False),
    ("eval", "accuracy", "test accuracy (fraction)", False),
    ("probe", "weights/gap", "gap s1/s2 of W, mean over layers", True),
    (
      "probe",
      "weights/flattened_cosine_mean",
      "cosine of adjacent W as long vectors",
      False,
    ),
    ("probe", "dominance/spectral", "s1(W - W(0)) / s1(W(0))", True),
    ("probe", "dominance/frobenius", "|W - W(0)| / |W(0)|, Frobenius", True),
  ]
  with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3)
    for ax, (kind, key, name, per_layer) in zip(axes.flat, panels, strict=True):
      curves(ax, rows, kind, key, per_layer=per_layer)
      ax.set_title(name, fontsize=9)
      if kind != "probe":  # Every so many steps: no points to show early.
        ax.set_xscale("linear")
        ax.autoscale(axis="x")
    _legend_below(figure, axes[0, 0])
  return figure


def save(figure: Figure, path: pathlib.Path) -> None:
  """Writes a PNG, the same bytes for the same figure."""
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=130, metadata={"Software": None})

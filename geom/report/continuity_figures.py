"""The figures of a continuity run, each from rows alone.

Every function takes the `conditions` to draw, up to about ten, in the order of
their colours, leaves out those without the numbers, and returns None where
none has them. `chances` are the chance levels of |cos| on the `input` and the
`output` side.
"""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from geom.record import Row
from geom.report import figures, series

SIDES = {"input": "input side ($v_i$ of W)", "output": "output side ($u_i$)"}
FIRST = {side: name.replace("_i", "_1") for side, name in SIDES.items()}
CLASSES = 10  # Of MNIST.
FLAT = 1e-5  # Nats; a change of loss below is drawn on a linear scale.


@matplotlib.rc_context(figures.STYLE)
def continuity(
  rows: Sequence[Row],
  chances: Mapping[str, float],
  title: str,
  conditions: Sequence[str],
) -> Figure | None:
  """|cos| of leading singular vectors against step: weights, gradients, dW."""
  stacks = {
    "weights": "weights W",
    "gradients": "gradients G",
    "updates": "what training added, W − W(0)",
  }
  keys = {stack: f"{stack}/cos_{{}}_mean" for stack in stacks}
  figure = _against_step(rows, chances, conditions, keys, stacks, (10.0, 5.6))
  figure.suptitle(title)
  return figures.finish(figure, conditions)


@matplotlib.rc_context(figures.STYLE)
def transfer(
  rows: Sequence[Row], chances: Mapping[str, float], conditions: Sequence[str]
) -> Figure | None:
  """|cos| of the weights' leading vectors with those of what was added."""
  stacks = {
    "updates": "with what training added, W − W(0)",
    "gradient_sum": "with the sum of gradients",
  }
  keys = {stack: f"transfer/{stack}_{{}}_mean" for stack in stacks}
  figure = _against_step(rows, chances, conditions, keys, stacks, (7.5, 5.6))
  for ax in figure.axes[::2]:
    ax.set_ylabel(ax.get_ylabel().replace("adjacent layers", "the same layer"))
  return figures.finish(figure, conditions)


def _against_step(
  rows: Sequence[Row],
  chances: Mapping[str, float],
  conditions: Sequence[str],
  keys: Mapping[str, str],
  names: Mapping[str, str],
  figsize: tuple[float, float],
) -> Figure:
  """|cos| against step, a row of panels a side, a column a stack."""
  figure, axes = figures.panels(
    2, len(keys), figsize=figsize, sharex=True, sharey=True
  )
  for line, (side, side_name) in zip(axes, FIRST.items(), strict=True):
    for ax, stack in zip(line, keys, strict=True):
      figures.curves(ax, rows, conditions, "probe", keys[stack].format(side))
      _cosines(ax, chances[side])
      if side == "input":
        ax.set_title(names[stack])
      ax.label_outer()
    line[0].set_ylabel(f"{side_name}\n|cos| of adjacent layers")
  return figure


def _cosines(ax: Axes, level: float) -> None:
  """The y axis of |cos|, all of [0, 1], with its chance level."""
  figures.chance(ax, level)
  ax.set_ylim(-0.02, 1.02)


@matplotlib.rc_context(figures.STYLE)
def layer_pairs(
  rows: Sequence[Row], chances: Mapping[str, float], conditions: Sequence[str]
) -> Figure | None:
  """|cos| of each pair of layers in the weights at the last probe."""
  figure = _at_last(rows, chances, conditions, "weights/cos_{}", 0, FIRST)
  for ax in figure.axes:
    ax.set_xlabel("pair of layers l, l + 1")
  figure.axes[0].set_ylabel("weights, |cos| of adjacent layers")
  return figures.finish(figure, conditions)


@matplotlib.rc_context(figures.STYLE)
def same_index(
  rows: Sequence[Row], chances: Mapping[str, float], conditions: Sequence[str]
) -> Figure | None:
  """|cos| of singular vectors of one index in adjacent weights, last probe."""
  key = "weights/same_index_{}"
  figure = _at_last(rows, chances, conditions, key, 1, SIDES)
  for ax in figure.axes:
    ax.set_xlabel("index i of the singular vectors")
  figure.axes[0].set_ylabel("weights, |cos| of adjacent layers")
  return figures.finish(figure, conditions)


def _at_last(
  rows: Sequence[Row],
  chances: Mapping[str, float],
  conditions: Sequence[str],
  key: str,
  start: int,
  names: Mapping[str, str],
) -> Figure:
  """A list of |cos| at the last probe, a panel a side, counted from start."""
  figure, axes = figures.panels(1, 2, figsize=(8, 3.6), sharey=True)
  for ax, (side, side_name) in zip(axes.flat, names.items(), strict=True):
    for i, name in enumerate(conditions):
      found = series.values_at(rows, name, "probe", key.format(side), "last")
      if found is not None:
        values = found[1]
        aside = 0.4 * ((i + 0.5) / len(conditions) - 0.5)
        figures.bars(
          ax, i, name, start + aside + np.arange(values.shape[1]), values
        )
    _cosines(ax, chances[side])
    ax.set_title(f"{side_name}, last probe")
    ax.xaxis.set_major_locator(MaxNLocator(16, integer=True))
  return figure


@matplotlib.rc_context(figures.STYLE)
def context(rows: Sequence[Row], conditions: Sequence[str]) -> Figure | None:
  """What to read beside v1: loss, accuracy, gap, likeness, dominance."""
  # What, its name, whether it is a list over layers, chance level, scale, and
  # a height above which a run that diverges is cut off.
  what = [
    ("train/loss", "training loss (nats)", False, None, "log", 10),
    ("eval/accuracy", "test accuracy", False, 1 / CLASSES, "linear", 1),
    ("probe/weights/gap", "gap $s_1/s_2$ of W", True, None, "linear", 10),
    (
      "probe/weights/flattened_cosine_mean",
      "cosine of adjacent W as long vectors", False, 0.0, "linear", 1,
    ),
    (
      "probe/dominance/spectral",
      "$s_1(W - W(0))\\; /\\; s_1(W(0))$", True, None, "linear", 100,
    ),
    (
      "probe/dominance/frobenius",
      "$|W - W(0)|_F\\; /\\; |W(0)|_F$", True, None, "linear", 100,
    ),
  ]  # fmt: skip
  figure, axes = figures.panels(2, 3, figsize=(10.0, 5.6))
  for ax, (path, name, per_layer, level, scale, most) in zip(
    axes.flat, what, strict=True
  ):
    kind, key = path.split("/", 1)
    figures.curves(ax, rows, conditions, kind, key, per_layer=per_layer)
    ax.set_yscale(scale)
    ax.set_title(name)
    if level is not None:
      figures.chance(ax, level)
    if kind != "probe":  # Every so many steps: no points to show early.
      ax.set_xscale("linear")
      ax.autoscale(axis="x")
    if ax.get_ylim()[1] > most * 1.1:
      ax.set_ylim(bottom=max(ax.get_ylim()[0], -most / 20), top=most)
  return figures.finish(figure, conditions)


@matplotlib.rc_context(figures.STYLE)
def orbits(
  rows: Sequence[Row],
  angles: Sequence[float],
  conditions: Sequence[str],
  chance_share: float,
) -> Figure | None:
  """How flat the loss is along rotations, and how much of a step goes along.

  Args:
    rows: of `metrics.jsonl`.
    angles: radians, of the lists `orbit/stream` and `orbit/between`.
    conditions: to draw.
    chance_share: `orbit/drift_share` of a random displacement.
  """
  what = {
    "orbit/stream": "whole stream turned, last probe",
    "orbit/between": "one layer turned, last probe",
  }
  figure, axes = figures.panels(1, 3, figsize=(10, 3.6))
  for ax, (key, name) in zip(axes.flat, what.items(), strict=False):
    for i, condition in enumerate(conditions):
      found = series.values_at(rows, condition, "orbit", key, "last")
      if found is not None:
        figures.band(ax, i, condition, np.asarray(angles), found[1])
    ax.axhline(0, color="0.4", lw=0.8)
    ax.set_xscale("log" if all(a > 0 for a in angles) else "linear")
    ax.set_yscale("symlog", linthresh=FLAT)
    ax.set_xlabel("angle (radians)")
    ax.set_title(name)
  limits = [(ax.dataLim.y0, ax.dataLim.y1) for ax in axes[0, :2]]
  for ax in axes[0, :2]:
    ax.set_ylim(
      min(-FLAT, 2 * min(low for low, _ in limits)),
      max(FLAT, 2 * max(high for _, high in limits)),
    )
  axes[0, 1].tick_params(labelleft=False)
  axes[0, 0].set_ylabel("Δ loss (nats), linear below $10^{-5}$")
  figures.curves(axes[0, 2], rows, conditions, "orbit", "orbit/drift_share")
  figures.chance(axes[0, 2], chance_share)
  axes[0, 2].set_ylim(bottom=0)
  axes[0, 2].set_title("share of a step along the orbit")
  return figures.finish(figure, conditions)

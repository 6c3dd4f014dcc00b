"""Pictures of runs under several assignments of manifolds."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geom.record import Row
from geom.report import figures, series
from geom.report.claims import over_layers

PROJECTIONS = ("q", "k", "v", "o", "up", "down")
# On which side a projection meets the residual stream.
SIDES = {"q": "input", "k": "input", "v": "input", "up": "input",
         "o": "output", "down": "output"}  # fmt: skip
# What is drawn: key, how over layers, whether logarithmic, title.
ATTENTION = (
  ("attention/logit_max", "max", True, "largest |logit|"),
  ("attention/entropy_nats", "min", True, "entropy, least layer, nats"),
  ("attention/saturation", "mean", False, "share of rows with p > .99"),
  ("attention/jacobian", "min", True, "softmax's Jacobian, least layer"),
)
MLP = (
  ("mlp/preactivation_rms", "max", True, "rms of pre-activations"),
  ("mlp/dead", "mean", False, "share below -3: GELU off"),
  ("mlp/linear", "mean", False, "share above 3: GELU linear"),
  ("stream/rms", "max", True, "rms of the residual stream"),
)


@matplotlib.rc_context(figures.STYLE)
def losses(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """Validation loss, training loss, norm of the gradient."""
  figure, axes = figures.panels(1, 3, figsize=(11, 3.4))
  for ax, (kind, key, title) in zip(
    axes[0],
    (
      ("eval", "loss", "validation loss, nats a token"),
      ("train", "loss", "training loss, nats a token"),
      ("train", "grad_norm", "norm of the gradient"),
    ),
    strict=True,
  ):
    figures.curves(ax, rows, names, kind, key)
    ax.set_xscale("linear")
    ax.set_xlim(auto=True)
    ax.autoscale(axis="x")
    ax.set_title(title)
  axes[0, 2].set_yscale("log")
  return figures.finish(figure, names)


@matplotlib.rc_context(figures.STYLE)
def sigmas(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """The largest singular value over layers, by projection."""
  figure, axes = figures.panels(2, 3, figsize=(11, 5.6))
  for ax, p in zip(axes.flat, PROJECTIONS, strict=True):
    _lines(ax, rows, names, f"{p}/weights/sigma_1", "max")
    ax.set_yscale("log")
    ax.set_title(f"{p}: largest singular value")
  return figures.finish(figure, names)


@matplotlib.rc_context(figures.STYLE)
def attention(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """Logits, entropy, saturation and Jacobian of attention."""
  return _four(rows, names, ATTENTION)


@matplotlib.rc_context(figures.STYLE)
def mlp(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """What the MLPs and the stream do meanwhile."""
  return _four(rows, names, MLP)


@matplotlib.rc_context(figures.STYLE)
def directions(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
  """Tangency and alignment of the directions taken, worst over layers."""
  kernels = ("qkv", "q", "o", "up", "down")
  shown = [k for k in kernels if any(f"{k}/tangency" in r for r in rows)]
  if not shown:
    return None
  figure, axes = figures.panels(2, len(shown), figsize=(2.75 * len(shown), 5.6))
  for column, kernel in zip(axes.T, shown, strict=True):
    for ax, (key, how) in zip(
      column, (("tangency", "max"), ("alignment", "min")), strict=True
    ):
      _lines(ax, rows, names, f"{kernel}/{key}", how)
      ax.set_title(f"{kernel}: {key}, {how}")
    column[0].set_yscale("symlog", linthresh=1e-3)
    column[1].set_ylim(0, 1.05)
  return figures.finish(figure, names)


@matplotlib.rc_context(figures.STYLE)
def continuity(
  rows: Sequence[Row], chances: Mapping[str, float], names: Sequence[str]
) -> Figure | None:
  """|cos| of adjacent layers' W - W(0) on the side of the residual stream."""
  figure, axes = figures.panels(2, 3, figsize=(11, 5.6), sharey=True)
  for ax, p in zip(axes.flat, PROJECTIONS, strict=True):
    side = SIDES[p]
    _lines(ax, rows, names, f"{p}/updates/cos_{side}", "mean")
    figures.chance(ax, chances[f"{p}/{side}"])
    ax.set_ylim(0, 1)
    ax.set_title(f"{p}: W - W(0), {side} side")
  return figures.finish(figure, names)


def _four(
  rows: Sequence[Row],
  names: Sequence[str],
  quantities: Sequence[tuple[str, str, bool, str]],
) -> Figure | None:
  figure, axes = figures.panels(1, 4, figsize=(13, 3.4))
  for ax, (key, how, log, title) in zip(axes[0], quantities, strict=True):
    _lines(ax, rows, names, key, how)
    if log:
      ax.set_yscale("log")
    else:
      ax.set_ylim(-0.02, 1.02)
    ax.set_title(title)
  return figures.finish(figure, names)


def _lines(
  ax: Axes, rows: Sequence[Row], names: Sequence[str], key: str, how: str
) -> None:
  """One number over layers against step, of every condition."""
  for i, name in enumerate(names):
    curve = series.curve(rows, name, "probe", key)
    if curve is not None:
      values = over_layers(curve.values, how, keep=2)
      keep = np.isfinite(values).any(axis=0)
      figures.band(ax, i, name, curve.steps[keep], values[:, keep])
  ax.set_xlabel("step")

"""Pictures of the analysis of a checkpoint."""

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from geom.report import figures
from geom.report import pretrained_rows as data
from geom.report.pretrained_rows import SIDES, Analysis
from geom.report.pretrained_tables import WINDOWS

VECTORS = {"input": "$v_1$, input side", "output": "$u_1$, output side"}
_UNDEFINED = "0.8"
_NOTHING = "knowing nothing"


@matplotlib.rc_context(figures.STYLE)
def pairs(of: Analysis) -> Figure | None:
  """|cos| of adjacent layers: projection against pair of layers, a map a side.

  A star is at projections that meet the residual stream on that side. None of
  one layer, which has no pair.
  """
  names = list(of.cosines)
  longest = max(len(data.adjacent(of, p, "input")) for p in names)
  if not longest:
    return None
  figure, axes = figures.panels(2, 1, figsize=(9, 5.2), sharex=True)
  for ax, side in zip(axes[:, 0], SIDES, strict=True):
    values = [data.adjacent(of, p, side) for p in names]
    padded = np.full((len(names), longest), np.nan)
    for line, row in zip(padded, values, strict=True):
      line[: len(row)] = row
    image = ax.imshow(padded, vmin=0, vmax=1, aspect="auto", cmap="viridis")
    ax.set_facecolor(_UNDEFINED)
    ax.grid(False)
    labels = [f"{p} *" if of.sides[p] == side else p for p in names]
    ax.set_yticks(range(len(names)), labels)
    ax.set_title(f"{VECTORS[side]}: |cos| of layers l and l + 1")
  axes[1, 0].set_xlabel("l    (* reads or writes the residual stream here)")
  figure.colorbar(image, ax=axes, label="|cos|")
  return figure


@matplotlib.rc_context(figures.STYLE)
def all_pairs(of: Analysis) -> Figure:
  """|cos| of the leading vectors of every two layers: how far they go on."""
  names = list(of.cosines)
  figure, axes = figures.panels(
    2, len(names), figsize=(2.1 * len(names) + 1, 5)
  )
  for line, side in zip(axes, SIDES, strict=True):
    for ax, p in zip(line, names, strict=True):
      values = data.matrix(of, p, side)
      image = ax.imshow(values, vmin=0, vmax=1, cmap="viridis")
      ax.set_facecolor(_UNDEFINED)
      ax.grid(False)
      ax.set_title(f"{p} *" if of.sides[p] == side else p)
    line[0].set_ylabel(f"{VECTORS[side]}\nlayer")
  figure.supxlabel("layer    (* reads or writes the residual stream here)")
  figure.colorbar(image, ax=axes, label="|cos|")
  return figure


@matplotlib.rc_context(figures.STYLE)
def depth(of: Analysis, chance: Callable[[int], float]) -> Figure:
  """Continuity on the stream's side, s1/s2 and effective rank, by layer."""
  figure, axes = figures.panels(1, 3, figsize=(13, 3.8))
  names = list(of.kernels)
  for i, p in enumerate(names):
    side = of.sides[p]
    cosines = data.adjacent(of, p, side)
    short = min(data.width(of, p, s) for s in SIDES) or 1
    _line(axes[0, 0], i, p, np.arange(len(cosines)) + 0.5, cosines)
    gaps = data.numbers(of, p, "gap")
    _line(axes[0, 1], i, p, np.arange(len(gaps)), gaps)
    ranks = data.numbers(of, p, "rank") / short
    _line(axes[0, 2], i, p, np.arange(len(ranks)), ranks)
  widths = {data.width(of, p, of.sides[p]) for p in names} - {0}
  for d in widths:
    figures.chance(axes[0, 0], chance(d))
  axes[0, 0].set_ylim(0, 1.02)
  axes[0, 0].set_title("|cos| of adjacent layers, the stream's side")
  axes[0, 1].set_title("s1/s2 of W")
  axes[0, 1].set_yscale("log")
  axes[0, 2].set_title("effective rank of W, share of the shorter side")
  axes[0, 2].set_ylim(0, 1.02)
  plain = FuncFormatter(lambda x, _: f"{x:g}")
  axes[0, 1].yaxis.set_major_formatter(plain)
  axes[0, 1].yaxis.set_minor_formatter(plain)
  for ax in axes[0]:
    ax.set_xlabel("layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
  figures.finish(figure, names)
  return figure


@matplotlib.rc_context(figures.STYLE)
def sharing(of: Analysis) -> Figure | None:
  """Share of energy kept against the size of the basis: a panel each."""
  ks, windows = data.sizes(of)
  names = [p for p in of.kernels if data.width(of, p, of.sides[p])]
  if not names or not ks:
    return None
  figure, axes = figures.panels(
    1, len(names), figsize=(2.1 * len(names) + 1, 3.4), sharey=True
  )
  labels = [WINDOWS.get(w, f"{w} layers") for w in windows]
  for ax, p in zip(axes[0], names, strict=True):
    d = data.width(of, p, of.sides[p])
    for i, (w, label) in enumerate(zip(windows, labels, strict=True)):
      kept = np.array([data.kept(of, p, w, k) for k in ks])
      _line(ax, i, label, np.array(ks), kept)
    ax.plot(
      ks, [min(1, k / d) for k in ks], ":", color="black", lw=1, label="chance"
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.set_ylim(0, 1.02)
    ax.set_title(f"{p}, {of.sides[p]} side")
    ax.set_xlabel("k")
  axes[0, 0].set_ylabel("share of energy kept")
  return figures.finish(figure, labels)


@matplotlib.rc_context(figures.STYLE)
def costs(of: Analysis) -> Figure | None:
  """Nats of a common basis against its size, both sides."""
  found = data.costs(of)
  names = [p for p in of.sides if any(key[0] == p for key in found)]
  if not names:
    return None
  figure, axes = figures.panels(
    1, len(names), figsize=(2.1 * len(names) + 1, 3.6), sharey=True
  )
  windows = sorted({w for _, _, w, _ in found}, key=lambda w: w or 1e9)
  labels = []
  for ax, p in zip(axes[0], names, strict=True):
    for j, w in enumerate(windows):
      for side in SIDES:
        if w == 1 and side != of.sides[p]:
          continue
        mine = side == of.sides[p]
        label = "own"
        if w != 1:
          where = "the stream's" if mine else "the other"
          label = f"{WINDOWS.get(w, f'{w} layers')}, {where} side"
        points = sorted(
          (k, v)
          for (q, s, x, k), v in found.items()
          if (q, s, x) == (p, side, w)
        )
        if not points:
          continue
        ks, values = zip(*points, strict=True)
        style = figures.look(j)
        style["linestyle"] = "-" if mine else "--"
        ax.plot(
          ks, np.maximum(values, 1e-3), label=label, ms=3, lw=1.2, **style
        )
        labels += [label] * (label not in labels)
    nothing = data.knowing_nothing(of)
    if np.isfinite(nothing):
      ax.axhline(nothing, color="black", ls=":", lw=1, label=_NOTHING)
      labels += [_NOTHING] * (_NOTHING not in labels)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_title(f"{p} (stream: {of.sides[p]})")
    ax.set_xlabel("k")
  axes[0, 0].set_ylabel("loss above the base, nats\n(.001 or less at the foot)")
  return figures.finish(figure, labels)


@matplotlib.rc_context(figures.STYLE)
def removal(of: Analysis, projections: Sequence[str]) -> Figure | None:
  """What leaving a layer out costs, against depth and its continuity."""
  cost = data.removals(of)
  continuity = data.continuity_of_layers(of, projections)
  if not cost.size or cost.size != continuity.size:
    return None
  figure, axes = figures.panels(1, 2, figsize=(9, 3.6), sharey=True)
  layers = np.arange(len(cost))
  axes[0, 0].plot(layers, cost, "o-", ms=3, lw=1)
  axes[0, 0].set_xlabel("layer left out")
  axes[0, 0].set_ylabel("loss above the base, nats")
  axes[0, 0].set_yscale("log")
  points = axes[0, 1].scatter(continuity, cost, c=layers, s=18, cmap="viridis")
  axes[0, 1].set_xlabel("continuity of the layer with its neighbours, |cos|")
  figure.colorbar(points, ax=axes[0, 1], label="layer")
  return figure


def _line(ax: Axes, i: int, label: str, x: np.ndarray, y: np.ndarray) -> None:
  if np.isfinite(y).any():
    ax.plot(x, y, label=label, ms=2.5, lw=1.1, **figures.look(i))

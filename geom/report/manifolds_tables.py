"""Tables of runs under several assignments of manifolds to modules."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from geom.record import Row
from geom.report import claims as claims_of
from geom.report import markdown as md
from geom.report import series
from geom.report.claims import over_layers
from geom.report.manifolds_figures import PROJECTIONS, SIDES

# By module `attention`, `mlp`, `rest`: manifold, decay, lr, as text.
Assignment = Mapping[str, Mapping[str, str]]
GROWTH = 5.0  # A sigma that grew less was not free.
KERNELS = {"attention": ("q", "k", "v", "o"), "mlp": ("up", "down")}
TOLERANCE = f"""\
DGram leaves singular values free. A module on DGram *tolerates* that if its
largest singular value grew at least {GROWTH:g} times in every seed and no seed
was noticed as unstable or was not finite; *does not* if every seed was; with
less growth it was *not tested*. Where both modules are on DGram, runs cannot
tell which of them it is."""


def assigned(
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
  summed_lr: Mapping[str, float],
) -> str:
  """The manifold and the decay of every module, rates."""
  head = ["condition"]
  for module in ("attention", "MLP", "embeddings"):
    head += [module, "its decay"]
  lines = []
  for name in names:
    of = assignments[name]
    line = [name]
    for module in ("attention", "mlp", "rest"):
      line += [of[module]["manifold"], of[module]["decay"]]
    rates = dict.fromkeys([of["attention"]["lr"], of["mlp"]["lr"]])
    lines.append([*line, ", ".join(rates), md.number(summed_lr[name], 1)])
  return md.table([*head, "peak rate of kernels", "rate summed"], lines)


def gets(module: Mapping[str, str]) -> str:
  """The manifold of a module and its decay."""
  return f"{module['manifold']}, decay {module['decay']}"


def both(of: Assignment) -> str:
  """What attention and the MLP get."""
  return f"{gets(of['attention'])}; {gets(of['mlp'])}"


def _last(
  rows: Sequence[Row], name: str, kind: str, key: str, how: str = "mean"
) -> Float[np.ndarray, " seed"]:
  """A number at the last step, over layers; NaN where a seed has none."""
  found = series.values_at(rows, name, kind, key, "last")
  if found is None:
    return np.full(len(series.seeds(rows, name)), np.nan)
  return over_layers(found[1], how, keep=1)


def results(
  rows: Sequence[Row],
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
  paper: Mapping[str, str],
) -> str:
  """Losses, attention, what was noticed, the paper."""
  head = [
    "condition", "attention; MLP", "validation loss", "seed by seed", "lowest",
    "largest logit", "highest ever", "entropy", "saturation",
    "noticed as unstable", "paper: loss, stability",
  ]  # fmt: skip
  lines = []
  for name in names:
    loss = _last(rows, name, "eval", "loss")
    curve = series.curve(rows, name, "eval", "loss")
    ever = claims_of.extreme("attention/logit_max", "max", ever=True)
    highest = ever(rows, name)
    lines.append(
      [
        name,
        both(assignments[name]),
        md.mean(loss),
        " ".join(md.number(x) for x in loss),
        "–" if curve is None else md.mean(np.fmin.reduce(curve.values, axis=1)),
        md.mean(_last(rows, name, "probe", "attention/logit_max", "max"), 1),
        "–" if highest is None else md.mean(highest[1], 1),
        md.mean(_last(rows, name, "probe", "attention/entropy_nats", "min")),
        md.mean(_last(rows, name, "probe", "attention/saturation")),
        _noticed(rows, name),
        paper.get(name, "–"),
      ]
    )
  return md.table(head, lines)


def _noticed(rows: Sequence[Row], name: str) -> str:
  """Which seeds the watch noticed, when and why."""
  found = series.events(rows, name, "unstable")
  seeds = series.seeds(rows, name)
  if not found:
    return f"none of {len(seeds)}"
  each = [f"{s}: step {r['step']}, {r['cause']}" for s, r in found.items()]
  return f"{len(found)} of {len(seeds)} ({'; '.join(each)})"


def _grown(
  rows: Sequence[Row], name: str, kernels: Sequence[str]
) -> Float[np.ndarray, " seed"]:
  keys = [f"{p}/weights/sigma_1" for p in kernels]
  found = claims_of.growth(*keys)(rows, name)
  if found is None:
    return np.full(len(series.seeds(rows, name)), np.nan)
  return found[1]


def tolerance(
  rows: Sequence[Row],
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
) -> str:
  """Whether modules tolerate DGram, and what of them saturates."""
  head = [
    "condition", "attention", "sigma of q, k, v, o grew", "saturation",
    "attention's verdict", "MLP", "sigma of up, down grew",
    "rms of pre-activations, start and end", "below -3", "above 3",
    "MLP's verdict",
  ]  # fmt: skip
  lines = []
  for name in names:
    of = assignments[name]
    on = [m for m in ("attention", "mlp") if "dgram" in of[m]["manifold"]]
    growth = {
      module: _grown(rows, name, kernels) for module, kernels in KERNELS.items()
    }
    key = "mlp/preactivation_rms"
    start = series.values_at(rows, name, "probe", key, "start")
    at_start = (
      "–" if start is None else md.mean(over_layers(start[1], "max", keep=1))
    )
    at_end = md.mean(_last(rows, name, "probe", key, "max"))
    verdict = {
      module: _verdict(rows, name, module, on, growth[module])
      for module in growth
    }
    lines.append(
      [
        name,
        gets(of["attention"]),
        f"{md.mean(growth['attention'], 1)} x",
        md.mean(_last(rows, name, "probe", "attention/saturation")),
        verdict["attention"],
        gets(of["mlp"]),
        f"{md.mean(growth['mlp'], 1)} x",
        f"{at_start}, {at_end}",
        md.mean(_last(rows, name, "probe", "mlp/dead")),
        md.mean(_last(rows, name, "probe", "mlp/linear")),
        verdict["mlp"],
      ]
    )
  return md.table(head, lines)


def _verdict(
  rows: Sequence[Row],
  name: str,
  module: str,
  on: Sequence[str],
  growth: Float[np.ndarray, " seed"],
) -> str:
  """Whether a module tolerates DGram, by the rule that is printed."""
  if module not in on:
    return "–"
  bad = {
    *series.events(rows, name, "unstable"),
    *series.failures(rows, name),
  }
  count = len(series.seeds(rows, name))
  if not bad:
    grew = bool(np.all(growth >= GROWTH))
    return "**tolerates**" if grew else "not tested"
  if len(on) > 1:
    return "cannot tell"
  return "**does not**" if len(bad) == count else "undecided"


def continuity(
  rows: Sequence[Row],
  names: Sequence[str],
  assignments: Mapping[str, Assignment],
  chances: Mapping[str, float],
) -> str:
  """|cos| of adjacent layers by projection, and of how many pairs."""
  head = ["condition", "attention; MLP"]
  for p in PROJECTIONS:
    level = md.number(chances[f"{p}/{SIDES[p]}"], 2)
    head.append(f"{p}, {SIDES[p]} ({level}): W - W(0); W")
  return md.table(
    head,
    [
      [
        name,
        both(assignments[name]),
        *[_two(rows, name, p) for p in PROJECTIONS],
      ]
      for name in names
    ],
  )


def _two(rows: Sequence[Row], name: str, projection: str) -> str:
  """The continuity of W - W(0) and of W, where defined."""
  cells = []
  for stack in ("updates", "weights"):
    key = f"{projection}/{stack}/cos_{SIDES[projection]}"
    found = series.values_at(rows, name, "probe", key, "last")
    if found is None:
      cells.append("–")
      continue
    defined = int(np.isfinite(found[1]).sum())
    some = "" if defined == found[1].size else f" ({defined}/{found[1].size})"
    cells.append(md.mean(over_layers(found[1], "mean", keep=1), 2) + some)
  return "; ".join(cells)

"""What arXiv 2605.04971 claims of a transformer, and when we agree.

The bounds are in the section `claims` of the config. A seed that did not learn
more than how often tokens come says nothing about trained weights and is left
out. For ablations the paper's mechanism says what to expect, not a number.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from geom.record import Row
from geom.report import series
from geom.report.claims import Claim, Found, Quantity

BASE = "silu"
# On which side a projection meets the residual stream.
SIDES = {
  "q": "input", "k": "input", "v": "input", "o": "output",
  "gate": "input", "up": "input", "down": "output",
}  # fmt: skip
STABLE = ("q", "k", "gate", "up", "o", "down")
SPREAD = slice(1, 5)  # Indices 2 to 5.


def all_of(
  rules: Mapping[str, Any], chances: Mapping[str, float]
) -> list[Claim]:
  """Every claim, of every condition.

  Args:
    rules: the section `claims` of the config.
    chances: chance level of |cos|, by `projection/side`.
  """
  return [
    *_of_base(rules, chances),
    *_of_mlp(rules, chances),
    *_of_attention(rules, chances),
    *_of_stream(rules, chances),
  ]


def _of_base(
  rules: Mapping[str, Any], chances: Mapping[str, float]
) -> list[Claim]:
  ended = partial(learnt, margin=rules["learnt"])
  found = []
  for p in STABLE:
    side = SIDES[p]
    level = chances[f"{p}/{side}"]
    found += [
      Claim(
        f"{p}: W continuous at the end, {side} side", "yes", "–", BASE,
        ended(cosine(p, side)), low=rules["above_chance"] * level,
        chance=level,
      ),
      Claim(
        f"{p}: and further above chance than V, {side} side", "yes", "–", BASE,
        ended(beyond(p, "v", side, chances)), low=rules["above_v"],
      ),
    ]  # fmt: skip
  for side in ("input", "output"):
    level = chances[f"v/{side}"]
    found.append(
      Claim(
        f"v: W low at the end, {side} side", "low", "–", BASE,
        ended(cosine("v", side)), high=rules["v_at_most"] * level,
        chance=level,
      )
    )  # fmt: skip
  found += [
    Claim(
      f"{p}: gradients coherent at step 0, {side} side", "coherent", "–", BASE,
      cosine(p, side, "gradients", "start"), low=rules["gradients_at_least"],
      chance=chances[f"{p}/{side}"],
    )
    for p, side in SIDES.items()
  ]  # fmt: skip
  return found


def _of_mlp(
  rules: Mapping[str, Any], chances: Mapping[str, float]
) -> list[Claim]:
  """Elementwise activations keep Gate and Up, others lose them."""
  kept = [
    _left(p, name, rules, chances, low=rules["kept_at_least"])
    for name in ("gelu", "relu")
    for p in ("gate", "up")
  ]
  lost = [
    _left(p, name, rules, chances, high=rules["lost_at_most"])
    for name in ("identity", "radial")
    for p in ("gate", "up")
  ]
  return kept + lost


def _of_attention(
  rules: Mapping[str, Any], chances: Mapping[str, float]
) -> list[Claim]:
  """Without softmax Q and K lose it; with an activation V gains it."""
  lost = [
    _left(p, name, rules, chances, high=rules["lost_at_most"])
    for name in ("sigmoid_attention", "linear_attention")
    for p in ("q", "k")
  ]
  ended = partial(learnt, margin=rules["learnt"])
  level = chances["v/input"]
  gains = [
    Claim(
      "v: W continuous with an activation after it, input side", "expected",
      "–", "value_silu", ended(cosine("v", "input")),
      low=rules["above_chance"] * level, chance=level,
    ),
    Claim(
      "v: more than without, input side", "expected", "–", "value_silu",
      ended(against(cosine("v", "input"))), low=rules["v_gains"],
    ),
  ]  # fmt: skip
  return lost + gains


def _of_stream(
  rules: Mapping[str, Any], chances: Mapping[str, float]
) -> list[Claim]:
  """LayerNorm spreads it over directions; without residuals there is none."""
  ended = partial(learnt, margin=rules["learnt"])
  spreads = [
    Claim(
      f"{p}: indices 2 to 5 above the base's, {SIDES[p]} side",
      "spreads", "–", "layernorm", ended(against(spread(p, SIDES[p]))),
      low=rules["spreads"],
    )
    for p in STABLE
  ]  # fmt: skip
  without = []
  for p, side in SIDES.items():
    level = chances[f"{p}/{side}"]
    bound = {"high": rules["nores_at_most"] * level, "chance": level}
    without += [
      Claim(
        f"{p}: gradients at chance at step 0, {side} side", "chance", "–",
        "nores", cosine(p, side, "gradients", "start"), **bound,
      ),
      Claim(
        f"{p}: W at chance at the end, {side} side", "chance", "–", "nores",
        ended(cosine(p, side)), **bound,
      ),
    ]  # fmt: skip
  return spreads + without


def _left(
  p: str,
  condition: str,
  rules: Mapping[str, Any],
  chances: Mapping[str, float],
  **bound: float,
) -> Claim:
  side = SIDES[p]
  what = "kept" if "low" in bound else "lost"
  return Claim(
    f"{p}: share of the base's continuity left, {side} side", f"{what}",
    "–", condition, learnt(share_left(p, side, chances), rules["learnt"]),
    **bound,
  )  # fmt: skip


def cosine(
  p: str, side: str, stack: str = "weights", at: str = "last"
) -> Quantity:
  """|cos| of leading vectors, mean over pairs of layers where defined."""
  key = f"{p}/{stack}/cos_{side}_mean"
  return lambda rows, name: series.values_at(rows, name, "probe", key, at)


def spread(p: str, side: str) -> Quantity:
  """|cos| of vectors of the same index, mean over indices 2 to 5."""

  def quantity(rows: Sequence[Row], name: str) -> Found:
    key = f"{p}/weights/same_index_{side}"
    found = series.values_at(rows, name, "probe", key, "last")
    if found is None:
      return None
    step, values = found
    mean, _, _ = series.mean_spread(np.moveaxis(values[:, SPREAD], -1, 0))
    return step, mean

  return quantity


def beyond(
  p: str, other: str, side: str, chances: Mapping[str, float]
) -> Quantity:
  """How much further above its chance level one projection is than another."""

  def quantity(rows: Sequence[Row], name: str) -> Found:
    mine, theirs = (cosine(x, side)(rows, name) for x in (p, other))
    if mine is None or theirs is None:
      return None
    levels = chances[f"{p}/{side}"] - chances[f"{other}/{side}"]
    return mine[0], mine[1] - theirs[1] - levels

  return quantity


def against(quantity: Quantity) -> Quantity:
  """A number minus that of the base, seed by seed."""

  def difference(rows: Sequence[Row], name: str) -> Found:
    mine, base = quantity(rows, name), of_base(quantity, rows, name)
    if mine is None or base is None:
      return None
    return mine[0], mine[1] - base

  return difference


def share_left(p: str, side: str, chances: Mapping[str, float]) -> Quantity:
  """|cos| above chance, as a share of what the base has, seed by seed.

  NaN where the base is not above twice its chance level: nothing to lose.
  """
  level = chances[f"{p}/{side}"]

  def quantity(rows: Sequence[Row], name: str) -> Found:
    mine = cosine(p, side)(rows, name)
    base = of_base(cosine(p, side), rows, name)
    if mine is None or base is None:
      return None
    base = np.where(base > 2 * level, base, np.nan)
    return mine[0], (mine[1] - level) / (base - level)

  return quantity


def of_base(
  quantity: Quantity, rows: Sequence[Row], name: str
) -> np.ndarray | None:
  """What the base has of it, of the seeds of a condition in their order."""
  found = quantity(rows, BASE)
  if found is None:
    return None
  of = dict(zip(series.seeds(rows, BASE), found[1], strict=True))
  return np.array([of.get(s, np.nan) for s in series.seeds(rows, name)])


def learnt(quantity: Quantity, margin: float) -> Quantity:
  """NaN for seeds that learned little more than how often tokens come.

  Args:
    quantity: of trained weights.
    margin: nats that the validation loss must end below the unigram level.
  """

  def quantity_of(rows: Sequence[Row], name: str) -> Found:
    found = quantity(rows, name)
    loss = series.values_at(rows, name, "eval", "loss", "last")
    levels = [
      r["unigram_loss"]
      for r in rows
      if r.get("condition") == name and r.get("event") == "data"
    ]
    if found is None or loss is None or not levels:
      return None
    return found[0], np.where(loss[1] <= levels[-1] - margin, found[1], np.nan)

  return quantity_of

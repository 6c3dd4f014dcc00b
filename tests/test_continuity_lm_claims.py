"""What is claimed of a transformer's continuity, on numbers made up."""

import numpy as np
import pytest

from configs import llama
from experiments import continuity_lm_claims as claims
from experiments.continuity_lm_config import check
from experiments.continuity_lm_report import chances
from geom.report import groups

CONFIG = check(llama.get_config("silu"))
LEVELS = chances(CONFIG)
RULES = CONFIG["claims"]
READ = {p: side for p, side in claims.SIDES.items() if side == "input"}


def rows_of(condition, *, high=(), level=0.8, loss=4.0, grads=0.8, seeds=3):
  """A run in which W of some projections is continuous, the rest at chance."""
  out = [
    {"step": 0, "kind": "event", "condition": condition, "event": "data",
     "unigram_loss": 6.0}
  ]  # fmt: skip
  for seed in range(seeds):
    where = {"condition": condition, "seed": seed}
    first, end = {}, {}
    for p in claims.SIDES:
      for side in ("input", "output"):
        chance = LEVELS[f"{p}/{side}"]
        on = p in high and side == claims.SIDES[p]
        end[f"{p}/weights/cos_{side}_mean"] = level if on else chance
        # The leading vectors, then those that LayerNorm should raise.
        end[f"{p}/weights/same_index_{side}"] = [level, *[chance] * 4, None]
        first[f"{p}/gradients/cos_{side}_mean"] = grads
    for step, of in ((0, first), (9, end)):
      out.append({"step": step, "kind": "probe", **where, **of})
    out.append({"step": 9, "kind": "eval", **where, "loss": loss})
  return out


def verdicts(rows, condition):
  found = {}
  for claim in claims.all_of(RULES, LEVELS):
    judged = groups.judge(claim, rows, RULES["group"])
    if claim.condition == condition and judged is not None:
      found[claim.text] = judged.verdict.removesuffix(" (one group)")
  return found


def test_a_run_as_the_paper_has_it():
  found = verdicts(rows_of("silu", high=claims.STABLE), "silu")
  assert len(found) == 2 * 6 + 2 + 7
  assert set(found.values()) == {"reproduces"}


def test_a_run_in_which_nothing_is_so():
  rows = rows_of("silu", high=["v"], grads=0.1)
  for row in rows:
    if "v/weights/cos_output_mean" in row:
      row["v/weights/cos_output_mean"] = 0.9
  assert set(verdicts(rows, "silu").values()) == {"does not reproduce"}


def test_margins_over_v_are_above_chance_of_each():
  """O's output is wider than V's: the chance of V is higher."""
  rows = rows_of("silu", high=["o"], level=0.5)
  quantity = claims.beyond("o", "v", "output", LEVELS)
  _, values = quantity(rows, "silu")
  np.testing.assert_allclose(values, 0.5 - LEVELS["o/output"])


def test_who_did_not_learn_is_not_judged_at_the_end():
  end = "q: W continuous at the end, input side"
  for loss, verdict in ((5.4, "reproduces"), (5.6, "undecided")):
    found = verdicts(rows_of("silu", high=claims.STABLE, loss=loss), "silu")
    assert found[end] == verdict
  text = "q: gradients coherent at step 0, input side"
  assert found[text] == "reproduces"


@pytest.mark.parametrize(
  ("condition", "lost", "kept"),
  [
    ("identity", ("gate", "up"), "does not reproduce"),
    ("radial", ("gate", "up"), "does not reproduce"),
    ("gelu", ("gate", "up"), "reproduces"),
    ("sigmoid_attention", ("q", "k"), "does not reproduce"),
    ("linear_attention", ("q", "k"), "does not reproduce"),
  ],
)
def test_what_an_ablation_takes_away(condition, lost, kept):
  base = rows_of("silu", high=claims.STABLE)
  same = rows_of(condition, high=claims.STABLE)
  other = {"reproduces": "does not reproduce"}.get(kept, "reproduces")
  rest = [p for p in claims.STABLE if p not in lost]
  for rows, verdict in (
    (base + same, kept),
    (base + rows_of(condition, high=rest), other),
  ):
    found = verdicts(rows, condition)
    assert len(found) == len(lost)
    assert set(found.values()) == {verdict}
  # Of a base that has none there is nothing to lose.
  found = verdicts(rows_of("silu") + same, condition)
  assert set(found.values()) == {"undecided"}


def test_value_activation_and_layer_norm_and_no_residual():
  base = rows_of("silu", high=claims.STABLE)
  gains = verdicts(base + rows_of("value_silu", high=["v"]), "value_silu")
  assert list(gains.values()) == ["reproduces"] * 2
  nothing = verdicts(base + rows_of("value_silu"), "value_silu")
  assert list(nothing.values()) == ["does not reproduce"] * 2
  spread = rows_of("layernorm", high=claims.STABLE)
  assert set(verdicts(base + spread, "layernorm").values()) == {
    "does not reproduce"
  }
  for row in spread:
    row |= {
      key: [0.8, 0.7, 0.6, 0.5, 0.4, None] for key in row if "same_index" in key
    }
  assert set(verdicts(base + spread, "layernorm").values()) == {"reproduces"}
  without = verdicts(rows_of("nores", grads=0.05), "nores")
  assert len(without) == 14 and set(without.values()) == {"reproduces"}
  found = verdicts(rows_of("nores", high=READ, grads=0.8), "nores")
  lost = [v for k, v in found.items() if k.split(":")[0] in READ]
  assert set(lost) == {"does not reproduce"}


def test_no_claim_breaks_a_table():
  assert not any("|" in c.text for c in claims.all_of(RULES, LEVELS))


def test_claims_are_of_conditions_that_exist():
  known = {claim.condition for claim in claims.all_of(RULES, LEVELS)}
  assert known == set(llama.CONDITIONS)

"""Verdicts on claims, from rows."""

import numpy as np
import pytest

from geom.report import series
from geom.report.claims import (
  Claim,
  bounds,
  crossing,
  highest,
  judge,
  last,
  number,
  start,
  table,
  turned,
)

NAN = None  # As metrics.jsonl has it.


def probe(condition, seed, step, value, **more):
  return {
    "step": step, "kind": "probe", "condition": condition, "seed": seed,
    "cos": value, **more,
  }  # fmt: skip


ROWS = [
  probe("relu", 0, 0, 0.1, dominance=0.0, part=[0.9, 0.5, 0.3]),
  probe("relu", 1, 0, 0.3, dominance=0.0, part=[0.9, 0.1, -0.7]),
  probe("relu", 0, 4, 0.9, dominance=1.0),
  probe("relu", 1, 4, 0.7, dominance=2.0),
  probe("relu", 0, 9, 0.8, dominance=3.0),
  probe("relu", 1, 9, NAN, dominance=3.0),
]
FAILURE = {
  "step": 5, "kind": "event", "condition": "relu", "event": "not finite",
}  # fmt: skip


def claim(low=None, high=None, condition="relu", of=start, **more):
  return Claim("text", "0.1", "-", condition, of("cos"), low, high, **more)


@pytest.mark.parametrize(
  "low, high, verdict",
  [
    (0.1, 0.3, "undecided"),  # Every seed, but not mean +- 2 sd.
    (-0.1, 0.5, "reproduces"),
    (None, 0.5, "reproduces"),
    (-0.1, None, "reproduces"),
    (-0.1, 0.2, "undecided"),
    (0.2, None, "undecided"),
    (0.35, 1.0, "undecided"),  # No seed, but mean +- 2 sd reach it.
    (0.5, 1.0, "does not reproduce"),
    (0.5, None, "does not reproduce"),
    (None, -0.1, "does not reproduce"),
    (0.19, 0.21, "undecided"),  # Seeds on both sides of it.
  ],
)
def test_a_verdict_asks_every_seed_and_two_deviations(low, high, verdict):
  assert judge(claim(low, high), ROWS).verdict == verdict


def test_one_seed_is_judged_by_its_value():
  rows = [row for row in ROWS if row["seed"] == 0]
  assert judge(claim(0.1, 0.1), rows).verdict == "reproduces"
  assert judge(claim(0.2), rows).verdict == "does not reproduce"


def test_a_claim_without_numbers_is_not_judged():
  assert judge(claim(condition="gelu"), ROWS) is None
  assert "text" not in table([claim(condition="gelu")], ROWS)
  rows = [probe("relu", 0, 0, NAN)]
  assert judge(claim(0.1), rows).verdict == "undecided"


def test_a_line_of_the_table():
  given = claim(0.2, 0.9, chance=0.05)
  (line,) = [x for x in table([given], ROWS).splitlines() if "text" in x]
  assert line == (
    "| text | 0.1 | - | 0.200 ± 0.141 | 0.050 | 2 | 0 | in [0.2, 0.9] "
    "| **undecided** |"
  )
  assert bounds(claim(low=0.5)) == "≥ 0.5" and bounds(claim(high=1)) == "≤ 1"


def test_seeds_that_failed_do_not_count_at_the_last_step():
  given = claim(0.5, of=last)
  assert judge(given, ROWS).seeds == 1  # Seed 1 has NaN there.
  rows = [*ROWS, {**FAILURE, "seed": 0}]
  assert judge(given, rows).verdict == "undecided"
  assert judge(claim(-0.1, 0.5), rows).seeds == 2  # What it had at first.
  rows.append({**FAILURE, "seed": 1})
  assert judge(given, rows).verdict == "undecided (diverged at step 5)"
  _, values = series.values_at(rows, "relu", "probe", "cos", "last")
  assert np.isnan(values).all()


def test_quantities():
  step, values = start("part", part=slice(1, 3))(ROWS, "relu")
  assert step == 0
  np.testing.assert_allclose(values, [0.4, -0.3])
  rows = [{**ROWS[0], "part": [0.9, 0.5, NAN]}]
  np.testing.assert_allclose(
    start("part", part=slice(1, 3))(rows, "relu")[1], 0.5
  )
  rows = [{**row, "kind": "orbit", "part": [0, -1e-2, 1e-3]} for row in ROWS]
  rows[1]["part"] = [0, 0, 0]
  step, values = turned("part")(rows[:2], "relu")
  np.testing.assert_allclose(values, [-2, -9])
  step, values = highest("cos")(ROWS, "relu")
  assert step is None
  np.testing.assert_allclose(values, [0.9, 0.7])
  step, values = crossing("dominance", "cos", 0.5)(ROWS, "relu")
  assert step is None
  np.testing.assert_allclose(values, [0.5, 1.0])
  later = [row for row in ROWS if row["step"]]
  assert start("cos")(later, "relu") is None
  for quantity in (
    start("x"), last("x"), turned("x"), highest("x"),
    crossing("x", "cos", 0.5), crossing("dominance", "x", 0.5),
  ):  # fmt: skip
    assert quantity(ROWS, "relu") is None


@pytest.mark.parametrize(
  "value, text",
  [(0.0, "0.000"), (1e-7, "1e-07"), (-2e-4, "-2e-04"), (12.3456, "12.346"),
   (None, "–"), (float("nan"), "–"), (float("inf"), "–")],
)  # fmt: skip
def test_a_number_for_a_table(value, text):
  assert number(value) == text


def test_seeds_that_did_not_learn_do_not_count_after_step_0():
  def evaluated(seed, accuracy):
    row = {"step": 9, "kind": "eval", "condition": "relu", "seed": seed}
    return {**row, "accuracy": accuracy}

  rows = [*ROWS, evaluated(0, 0.9), evaluated(1, 0.9)]
  assert judge(claim(0.5, of=last), rows).verdict == "reproduces"
  rows = [*ROWS, evaluated(0, 0.1), evaluated(1, 0.9)]
  assert judge(claim(-0.1, 0.5), rows).seeds == 2
  assert judge(Claim("t", "", "", "relu", highest("cos"), 0.5), rows).seeds == 1
  rows = [*ROWS, evaluated(0, 0.1), evaluated(1, 0.1)]
  found = judge(claim(0.5, of=last), rows)
  assert (found.seeds, found.verdict) == (0, "undecided (did not learn)")

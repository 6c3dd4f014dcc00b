"""Claims in groups of seeds."""

import pytest

from geom.report import groups
from geom.report.claims import Claim, last

CLAIM = Claim("high", "yes", "–", "a", last("x"), low=0.5)


def rows(*values):
  return [
    {"step": 9, "kind": "probe", "condition": "a", "seed": i, "x": x}
    for i, x in enumerate(values)
  ]


@pytest.mark.parametrize(
  ("values", "verdict"),
  [
    ((0.9, 0.91, 0.92), "reproduces (one group)"),
    ((0.1, 0.11, 0.12), "does not reproduce (one group)"),
    ((0.6, 0.9, 0.6), "undecided (one group)"),  # Mean - 2 sd is below.
    ((0.9, 0.91), "undecided (2 of the 3 seeds of a group)"),
    ((0.9, 0.91, 0.92) * 2, "reproduces (2 groups)"),
    # Two groups, each sure of itself.
    (
      (0.9, 0.91, 0.92, 0.1, 0.11, 0.12),
      "undecided (groups: reproduces; does not reproduce)",
    ),
    # The fourth seed makes no group, but counts in the mean.
    ((0.9, 0.91, 0.92, 0.1), "reproduces (one group)"),
  ],
)
def test_a_verdict_is_that_of_all_groups(values, verdict):
  judged = groups.judge(CLAIM, rows(*values), 3)
  assert judged.verdict == verdict
  assert judged.all.seeds == len(values)
  assert judged.all.mean == pytest.approx(sum(values) / len(values))


def test_nothing_to_say_of_what_was_not_run():
  assert groups.judge(CLAIM._replace(condition="b"), rows(0.9), 3) is None


def test_a_table_says_rule_and_verdict():
  text = groups.table([groups.judge(CLAIM, rows(0.1, 0.11, 0.12), 3)])
  line = text.splitlines()[-1]
  assert "≥ 0.5" in line and "**does not reproduce (one group)**" in line
  assert "0.110 ± 0.010" in line

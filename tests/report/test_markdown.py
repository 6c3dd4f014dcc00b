"""Tables and lines of Markdown."""

import numpy as np

from geom.report import markdown as md


def test_a_table_has_a_rule_of_its_width():
  assert md.table(["a", "b"], [["1", "2"]]).splitlines() == [
    "| a | b |", "| --- | --- |", "| 1 | 2 |",
  ]  # fmt: skip


def test_means_over_seeds():
  assert md.mean(np.array([1.0, 3.0]), 1) == "2.0 ± 1.4"
  assert md.mean(np.array([1.0, np.nan]), 1) == "1.0"
  assert md.mean(np.array([np.nan, np.nan])) == "–"


def test_the_setting_says_what_was_run_and_how_long():
  text = md.setting(
    {
      "model": {"width": 8, "logit_cap": None},
      "optim": {"betas": (0.9, 0.95), "rules": {"mlp": {"c": 2}}},
      "data": {}, "train": {"num_steps": 5}, "seeds": [0, 3],
      "conditions": {
        "base": {}, "other": {"optim": {"lr": 1}, "model": {"width": 9}},
      },
    },
    [
      {"kind": "event", "seconds": 12.4},
      {"kind": "event"},
      {"kind": "train", "seconds": 100},
    ],
  )  # fmt: skip
  assert text.splitlines() == [
    "* model: width 8; optim: betas 0.9/0.95, rules {mlp: {c: 2}}; "
    "train: num_steps 5.",
    "* Conditions change that: `base`: as above; `other`: lr 1, width 9.",
    "* Seeds 0, 3. 12 s of compiling, training and probing, killed parts not "
    "counted.",
  ]


def test_seeds_that_failed():
  assert md.failure("arm", {0: 7, 2: 9}) == (
    "**arm: loss or gradient not finite, seed 0 at step 7, seed 2 at step 9.**"
  )

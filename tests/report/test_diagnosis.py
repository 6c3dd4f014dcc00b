"""Why weights are continuous or not, in words."""

import pytest

from geom.report.diagnosis import diagnose

AT_FIRST = {"v1": 0.05, "gap": 1.02, "flat": 0.0, "dominance": 0.0}
END = {"v1": 0.9, "gap": 2.0, "flat": 0.2, "dominance": 9.0, "accuracy": 0.9}


def rows(*stages):
  out = []
  for step, stage in enumerate(stages):
    for seed in (0, 1):
      where = {"step": step, "condition": "c", "seed": seed}
      out.append(
        {
          **where, "kind": "probe",
          "weights/cos_input_mean": stage["v1"],
          "weights/gap": [stage["gap"], stage["gap"], None],
          "weights/flattened_cosine_mean": stage["flat"],
          "dominance/spectral_mean": stage["dominance"],
        }
      )  # fmt: skip
      if "accuracy" in stage:
        out.append({**where, "kind": "eval", "accuracy": stage["accuracy"]})
  return out


@pytest.mark.parametrize(
  "formed, end, verdict",
  [
    (False, {}, "continuous"),
    (True, {"v1": 0.2, "gap": 1.1, "flat": 0.8}, "lost: flat spectrum"),
    (False, {"v1": 0.2, "gap": 1.1, "flat": 0.8},
     "never formed: flat spectrum"),
    (True, {"v1": 0.2, "gap": 1.5, "flat": 0.8}, "lost: alignment lost"),
    (True, {"v1": 0.2, "gap": 1.1, "flat": 0.1}, "lost: alignment lost"),
    (False, {"v1": 0.2, "gap": 1.1, "flat": 0.1}, "never formed: none"),
    (False, {"v1": 0.2, "dominance": 0.8}, "never formed: W(0) dominates"),
    (True, {"accuracy": 0.2}, "did not learn"),
    (True, {"v1": None}, "v1 not defined"),
  ],
)  # fmt: skip
def test_the_cause(formed, end, verdict):
  middle = {**AT_FIRST, "v1": 0.95 if formed else 0.1}
  found = diagnose(rows(AT_FIRST, middle, {**END, **end}), "c")
  assert found.verdict == verdict
  if formed:
    assert found.highest == pytest.approx(0.95)


def test_divergence_is_no_collapse():
  stages = rows(AT_FIRST, {**END, "v1": 0.9})
  event = {"step": 1, "kind": "event", "condition": "c", "event": "not finite"}
  one = [*stages, {**event, "seed": 0}]
  assert diagnose(one, "c").verdict == "continuous"
  assert diagnose([*one, {**event, "seed": 1}], "c").verdict == "diverged"


def test_without_probes_nothing_is_said():
  only = [row for row in rows(AT_FIRST, END) if row["kind"] == "eval"]
  assert diagnose(only, "c").verdict == "not measured"

"""The report of assignments of manifolds, from rows made up."""

import numpy as np
import pytest

from geom import record
from geom.report import claims, markdown
from geom.report import manifolds_tables as tables
from geom.report.claims import (
  Claim,
  difference,
  extreme,
  fired,
  growth,
  judge,
)
from geom.report.manifolds import _present, write_report

PROJECTIONS = ("q", "k", "v", "o", "up", "down")
LAYERS, STEPS = 2, 100
SATURATION = "attention/saturation"


def rows_of(condition, seed, *, ends, grows, saturates, mlp=1.0):
  """A run of which attention's sigma grows, or not, and saturates, or not."""
  frame = {"condition": condition, "seed": seed}
  for step in range(0, STEPS + 1, 10):
    way = step / STEPS
    loss = 7 - (7 - ends) * way + 0.01 * seed
    yield {**frame, "step": step, "kind": "eval", "loss": loss}
    probe = {
      "attention/logit_max": [2.0, 2 * grows ** (2 * way)],
      "attention/entropy_nats": [3.0, 3.0 * 0.01 ** (way * saturates)],
      "attention/entropy": [0.9, 0.9],
      "attention/saturation": [saturates * way, saturates * way],
      "attention/jacobian": [0.3, 0.3],
      "mlp/preactivation_rms": [1.0, mlp**way],
      "mlp/dead": [0.1, 0.2],
      "mlp/linear": [0.1, 0.3],
      "stream/rms": [1.0, 2.0],
      "qkv/tangency": [0.01, 0.02],
      "qkv/alignment": [0.9, 0.8],
    }
    for p in PROJECTIONS:
      grown = (mlp if p in ("up", "down") else grows) ** way
      probe |= {
        f"{p}/weights/sigma_1": [1.0, grown],
        f"{p}/weights/cos_input": [None],
        f"{p}/weights/cos_output": [None],
        f"{p}/updates/cos_input": [0.5],
        f"{p}/updates/cos_output": [0.25],
      }
    yield {**frame, "step": step, "kind": "probe", **probe}
  for step in range(1, STEPS + 1):
    train = {"loss": 7 - (7 - ends) * step / STEPS, "grad_norm": 1.0}
    yield {**frame, "step": step, "kind": "train", **train}
  if saturates:
    yield {
      **frame, "step": 80, "kind": "event", "event": "unstable",
      "cause": "saturation", "lowest": 6.0, "lowest_step": 70,
      "smoothed": 6.0, "saturation": 0.8,
    }  # fmt: skip


ROWS = [
  row
  for seed in (0, 1)
  for row in (
    *rows_of("good", seed, ends=4.0, grows=1.0, saturates=0, mlp=20.0),
    *rows_of("bad", seed, ends=6.0, grows=20.0, saturates=1),
  )
]
GROUP = {"manifold": "dgram", "decay": "0", "lr": "0.2"}
HELD = {**GROUP, "manifold": "stiefel"}
REST = {"manifold": "adamw", "decay": "0.1", "lr": "0.003"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("report")
  write_report(
    workdir,
    ROWS,
    title="Made up",
    config={
      "model": {"width": 8}, "optim": {"lr": 0.2, "assignment": "x"},
      "data": {}, "train": {}, "watch": {"patience": 25}, "seeds": [0, 1],
      "conditions": {"good": {}, "bad": {"optim": {"assignment": {"a": "b"}}}},
    },
    assignments={
      "good": {"attention": HELD, "mlp": GROUP, "rest": REST},
      "bad": {"attention": GROUP, "mlp": HELD, "rest": REST},
    },
    summed_lr={"good": 10.0, "bad": 11.5},
    chances={
      f"{p}/{s}": 0.1 for p in PROJECTIONS for s in ("input", "output")
    },
    groups={"arms": ("good", "bad", "absent")},
    claims=[
      Claim("apart", "p", "t", "bad", difference("eval", "loss", "good"), low=1)
    ],
    notes="Notes.",
    paper={"good": "3.35, stable"},
  )  # fmt: skip
  return workdir


def lines_of(report, head, condition):
  """The cells of a condition in the table under a heading."""
  text = (report / "report.md").read_text()
  section = text.split(f"## {head}")[1].split("\n## ")[0]
  return [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in section.splitlines()
    if line.startswith(f"| {condition} ")
  ]


def test_decay_of_every_group_and_rates_are_told(report):
  (line,) = lines_of(report, "What each module gets", "bad")
  assert line == [
    "bad", "dgram", "0", "stiefel", "0", "adamw", "0.1", "0.2", "11.5",
  ]  # fmt: skip


def test_results_have_spread_seeds_and_the_paper(report):
  (good,) = lines_of(report, "What came of it", "good")
  assert good[1] == "stiefel, decay 0; dgram, decay 0"
  assert good[2] == "4.005 ± 0.007"
  assert good[3] == "4.000 4.010"
  assert good[9:] == ["none of 2", "3.35, stable"]
  (bad,) = lines_of(report, "What came of it", "bad")
  assert bad[5] == "800.0 ± 0.0"
  assert bad[9] == ("2 of 2 (0: step 80, saturation; 1: step 80, saturation)")


def test_each_module_has_its_verdict(report):
  (good,) = lines_of(report, "The MLP's tolerance", "good")
  assert (good[4], good[10]) == ("–", "**tolerates**")
  (bad,) = lines_of(report, "The MLP's tolerance", "bad")
  assert (bad[4], bad[10]) == ("**does not**", "–")
  assert bad[2].startswith("20.0 ± ")


@pytest.mark.parametrize(
  ("name", "attention", "mlp", "verdicts"),
  [("good", GROUP, GROUP, ["not tested", "**tolerates**"]),
   ("bad", GROUP, GROUP, ["cannot tell", "cannot tell"]),
   ("bad", HELD, GROUP, ["–", "**does not**"])],
)  # fmt: skip
def test_what_runs_can_tell_of_a_module(name, attention, mlp, verdicts):
  assignments = {name: {"attention": attention, "mlp": mlp, "rest": REST}}
  line = tables.tolerance(ROWS, [name], assignments).splitlines()[-1]
  cells = [cell.strip() for cell in line.strip("|").split("|")]
  assert [cells[4], cells[10]] == verdicts


def test_saturated_attention_went_wrong_though_nothing_noticed():
  rows = [r for r in ROWS if "event" not in r]
  assignments = {"bad": {"attention": GROUP, "mlp": HELD, "rest": REST}}
  assert "| **does not** |" in tables.tolerance(rows, ["bad"], assignments)
  few = [{**r, SATURATION: [0.2, 0.2]} if SATURATION in r else r for r in rows]
  assert "| **tolerates** |" in tables.tolerance(few, ["bad"], assignments)


def test_one_seed_of_two_leaves_a_module_undecided():
  rows = [
    {**r, SATURATION: [0.2, 0.2]} if SATURATION in r else r
    for r in ROWS
    if "event" not in r or r["seed"] == 0
  ]
  assignments = {"bad": {"attention": GROUP, "mlp": HELD, "rest": REST}}
  assert "| undecided |" in tables.tolerance(rows, ["bad"], assignments)


def test_what_moved_first_and_what_preceded_it(report):
  lines = lines_of(report, "What moves first", "bad")
  onsets, ahead, before = lines[:2], lines[2], lines[3:]
  # All but the norm of the gradient and the Jacobian move; up to step 80.
  assert onsets[0][2] == "8 ± 10"
  assert onsets[0][7] == "–" and onsets[0][8] == "–"
  assert onsets[0][10] == "80"
  assert ahead[1:4] == ["dgram, decay 0; stiefel, decay 0", "2 of 2", "72 ± 0"]
  assert ahead[8] == "–"
  assert [line[2] for line in before[:4]] == ["0", "60", "70", "80"]
  assert not lines_of(report, "What moves first", "good")


def test_continuity_says_how_much_is_defined(report):
  (line,) = lines_of(report, "Continuity", "good")
  assert line[2] == "0.50 ± 0.00; – (0/2)"
  assert line[5] == "0.25 ± 0.00; – (0/2)"  # o: on the output side.


def test_claims_figures_and_summary(report):
  text = (report / "report.md").read_text()
  assert "watch: patience 25" in text
  assert "| apart | p | t | 2.000 ± 0.000 |" in text
  for name in (
    "loss", "sigma", "attention", "mlp", "directions", "continuity",
  ):  # fmt: skip
    assert f"(figures/arms_{name}.png)" in text
    assert (report / "figures" / f"arms_{name}.png").stat().st_size > 5000
  summary = record.read_json(report / "summary.json")
  assert summary["claims"]["apart"]["verdict"] == "reproduces"
  assert summary["unstable"]["bad"]["1"] == {"step": 80, "cause": "saturation"}
  assert summary["unstable"]["good"] == {}


def test_a_report_of_little(tmp_path):
  """No probes, no claim that can be judged, a seed that failed."""
  frame = {"kind": "eval", "seed": 0, "loss": 3.0}
  rows = [
    {**frame, "condition": "lone", "step": 0},
    {**frame, "condition": "bad", "step": 0},
    {**frame, "condition": "bad", "kind": "event", "step": 7,
     "event": "not finite"},
  ]  # fmt: skip
  of = {"attention": GROUP, "mlp": HELD, "rest": REST}
  failed = write_report(
    tmp_path,
    rows,
    title="Little",
    config={"model": {}, "optim": {}, "data": {}, "train": {}, "seeds": [0],
            "conditions": {"lone": {}, "bad": {}}},
    assignments={"lone": of, "bad": of},
    summed_lr={"lone": 1.0, "bad": 2.0},
    chances={f"{p}/{s}": 0.1 for p in PROJECTIONS for s in ("input", "output")},
    groups={"arms": ("bad", "absent"), "empty": ("absent",)},
    claims=[Claim("apart", "", "", "lone", extreme("x", "max"), low=1)],
    notes="",
    paper={},
  )  # fmt: skip
  assert failed == {"bad": {0: 7}}
  text = (tmp_path / "report.md").read_text()
  assert "**bad: loss or gradient not finite, seed 0 at step 7.**" in text
  assert "**lone: " not in text and "## Claims" not in text
  drawn = sorted(path.name for path in (tmp_path / "figures").iterdir())
  assert drawn == ["arms_loss.png", "others_loss.png"]
  summary = record.read_json(tmp_path / "summary.json")
  assert summary["claims"] == {} and summary["summed_lr"]["bad"] == 2
  assert summary["assignments"]["lone"] == of
  assert list(summary["conditions"]) == ["lone", "bad"]


def test_extremes_over_layers_and_steps():
  key = "attention/logit_max"
  step, last = extreme(key, "max")(ROWS, "bad")
  assert step == STEPS
  np.testing.assert_allclose(last, 800)
  step, ever = extreme("attention/entropy_nats", "min", ever=True)(ROWS, "bad")
  assert step is None
  np.testing.assert_allclose(ever, 0.03)
  _, mean = extreme(key, "mean")(ROWS, "bad")
  np.testing.assert_allclose(mean, 401)


def test_a_difference_is_of_the_same_seed():
  rows = [r for r in ROWS if r["condition"] == "bad" or r.get("seed") == 1]
  step, values = difference("eval", "loss", "good")(rows, "bad")
  assert step == STEPS
  np.testing.assert_allclose(values, [np.nan, 2.0])
  assert difference("eval", "loss", "absent")(rows, "bad") is None
  assert difference("eval", "loss", "good")(rows, "absent") is None

  rows = [r for r in ROWS if r["condition"] == "bad" or r["step"] < STEPS]
  assert difference("eval", "loss", "good")(rows, "bad") is None  # Not done.


@pytest.mark.parametrize(("name", "says"), [("good", 0), ("bad", 1)])
def test_whether_a_run_was_noticed(name, says):
  np.testing.assert_array_equal(fired(ROWS, name)[1], [says, says])
  claim = Claim("noticed", "", "", name, fired, low=1)
  verdict = "reproduces" if says else "does not reproduce"
  assert judge(claim, ROWS).verdict == verdict
  assert fired(ROWS, "absent") is None


def test_a_run_that_is_not_finite_is_not_stable():
  failure = {
    "condition": "good", "seed": 1, "step": 50, "kind": "event",
    "event": "not finite",
  }  # fmt: skip
  np.testing.assert_array_equal(fired([*ROWS, failure], "good")[1], [0, 1])


def test_growth_is_of_the_largest_layer_and_of_what_grew_most():
  up, q = "up/weights/sigma_1", "q/weights/sigma_1"
  np.testing.assert_allclose(growth(up)(ROWS, "good")[1], 20)
  np.testing.assert_allclose(growth(q)(ROWS, "good")[1], 1)
  step, both = growth(q, up, "absent")(ROWS, "good")
  assert step == STEPS
  np.testing.assert_allclose(both, 20)
  rows = [{**r, q: [2.0, r[q][1]]} if q in r else r for r in ROWS]
  np.testing.assert_allclose(growth(q)(rows, "bad")[1], 10)  # 20 over 2.
  assert growth("absent")(ROWS, "good") is None


def test_a_mean_has_a_spread_only_of_several():
  assert markdown.mean(np.array([1.0, 3.0])) == "2.000 ± 1.414"
  assert markdown.mean(np.array([1.0, np.nan])) == "1.000"
  assert markdown.mean(np.array([np.nan])) == "–"


def test_over_layers_leaves_out_what_is_not_there():
  values = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]])
  for how, wanted in (("max", 3.0), ("min", 1.0), ("mean", 2.0)):
    found = claims.over_layers(values, how, keep=1)
    np.testing.assert_array_equal(found, [wanted, np.nan])


def test_the_same_conditions_are_not_drawn_twice():
  groups = {"a": ("x", "y"), "b": ("x", "absent"), "c": ("x", "z")}
  found = _present(groups, ["x", "y", "z", "other"])
  assert found == {"a": ["x", "y"], "c": ["x", "z"], "others": ["other"]}

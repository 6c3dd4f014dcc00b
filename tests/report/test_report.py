"""Tables, verdicts and figures from rows."""

import json

import matplotlib.image
import numpy as np

from geom.report import continuity, series
from geom.report.claims import Claim, last

NAN = None  # As metrics.jsonl has it.


def probe(condition, seed, step, value, **more):
  return {
    "step": step, "kind": "probe", "condition": condition, "seed": seed,
    "cos": value, **more,
  }  # fmt: skip


ROWS = [
  probe("relu", 0, 0, 0.1, pairs=[1.0, NAN]),
  probe("relu", 1, 0, 0.3, pairs=[3.0, 4.0]),
  probe("relu", 0, 9, 0.9),
  probe("relu", 1, 9, NAN),
  probe("none", 0, 9, 0.2),
  {"step": 9, "kind": "event", "condition": "none", "event": "end"},
]


def test_a_curve_has_a_row_a_seed_and_nan_where_missing():
  curve = series.curve(ROWS, "relu", "probe", "cos")
  np.testing.assert_array_equal(curve.steps, [0, 9])
  np.testing.assert_array_equal(curve.values, [[0.1, 0.9], [0.3, np.nan]])
  pairs = series.curve(ROWS, "relu", "probe", "pairs")
  np.testing.assert_array_equal(pairs.values[:, 0], [[1, np.nan], [3, 4]])
  assert series.curve(ROWS, "relu", "eval", "cos") is None
  assert series.curve(ROWS, "none", "probe", "pairs") is None


def test_mean_and_spread_leave_nan_out():
  values = np.array([[1.0, 5.0, np.nan], [4.0, np.nan, np.nan]])
  mean, spread, n = series.mean_spread(values)
  np.testing.assert_array_equal(mean, [2.5, 5, np.nan])
  np.testing.assert_allclose(spread, [np.std([1, 4], ddof=1), np.nan, np.nan])
  np.testing.assert_array_equal(n, [2, 1, 0])


def test_summary_has_the_last_scalars_of_each_seed():
  summary = series.summary(ROWS)
  assert list(summary) == ["relu", "none"]
  relu = summary["relu"]
  assert relu["per_seed"]["0"] == {"probe/cos": 0.9, "step": 9}
  assert relu["mean"]["probe/cos"] == 0.9  # Of seed 0 alone: 1 has NaN.
  assert np.isnan(relu["spread"]["probe/cos"])
  assert "probe/pairs" not in relu["per_seed"]["0"]


def test_a_failed_seed_has_no_last_values():
  failure = {
    "step": 5, "kind": "event", "condition": "relu", "seed": 1,
    "event": "not finite",
  }  # fmt: skip
  relu = series.summary([*ROWS, failure])["relu"]
  assert list(relu["per_seed"]) == ["0"]
  assert relu["failed"] == {"1": 5}


CLAIM = Claim(
  "a claim", "1", "–", "relu", last("weights/cos_input_mean"), low=0.5
)


def test_a_report_is_written_from_rows_alone(tmp_path):
  def row(seed, step, cos):
    values = {}
    for name in ("weights", "gradients", "updates"):
      values[f"{name}/cos_input_mean"] = cos
      values[f"{name}/cos_output_mean"] = cos
      values[f"{name}/flattened_cosine_mean"] = cos
      values[f"{name}/cos_input"] = [cos, NAN]
      values[f"{name}/cos_output"] = [cos, cos]
      values[f"{name}/gap"] = [1.5, 1.5, NAN]
    values["dominance/spectral"] = [1.0, 1.0, 1.0]
    values["dominance/frobenius"] = [1.0, 1.0, 1.0]
    values["dominance/spectral_mean"] = 1.0
    return {
      "step": step, "kind": "probe", "condition": "relu", "seed": seed,
      **values,
    }  # fmt: skip

  rows = [row(s, t, c) for s in (0, 1) for t, c in ((0, NAN), (9, 0.7))]
  config = {
    "train": {"num_steps": 9},
    "conditions": {"relu": {"model": {"act": "relu"}}, "none": {}},
    "data": {"batch_size": 4},
    "model": {"gain": 0.1, "width": 20},
    "orbit": {"angles": ()},
    "optim": {"name": "adam", "lr": 0.1, "momentum": None},
    "seeds": (0, 1),
  }
  failed = continuity.write_report(
    tmp_path,
    rows,
    title="A title",
    config=config,
    chances={"input": 0.05, "output": 0.06},
    chance_share=0.03,
    claims=[CLAIM, CLAIM._replace(text="other", condition="gelu")],
    groups={"First": ("gelu", "relu"), "Same": ("relu",)},
    notes="Some notes.",
  )
  assert failed == {}
  text = (tmp_path / "report.md").read_text()
  assert text.startswith("# A title\n")
  assert "0.700 ± 0.000" in text
  assert "| a claim | 1 | – | 0.700 ± 0.000 | – | 2 | 9 | ≥ 0.5 " in text
  assert "other" not in text
  assert "| relu | **continuous** | 0.700 | 0.700 | 1.500 |" in text
  assert "0.050 on the input side (v), 0.060 on the output" in text
  assert "of the top 10, 0.500" in text and "orbit, 0.030." in text
  # A group that shows nothing new is left out, and so are empty figures.
  assert "### First" in text and "### Same" not in text
  assert "same_index" not in text and "top 10, v" not in text
  assert "momentum" not in text
  assert "optim: name adam, lr 0.1; data: batch_size 4" in text
  assert "`relu`: act relu; `none`: as above." in text
  for name in ("continuity", "layer_pairs", "context", "ablation"):
    assert f"figures/{name}.png" in text
    image = matplotlib.image.imread(tmp_path / "figures" / f"{name}.png")
    assert image[..., :3].std() > 0.01  # Something is drawn.
  summary = json.loads((tmp_path / "summary.json").read_text())
  assert summary["claims"]["a claim"]["verdict"] == "reproduces"
  assert summary["chance_cosine"] == {"input": 0.05, "output": 0.06}
  mean = summary["conditions"]["relu"]["mean"]
  assert mean["probe/weights/cos_input_mean"] == 0.7

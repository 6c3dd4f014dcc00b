"""Continuity of a transformer too small to learn: the whole way."""

import json
import re
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from geom import record
from geom.report import (
  continuity_lm_figures,
  continuity_lm_tables,
  markdown,
)

STEPS = 6
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
SMALL = (
  "--config.model.vocabulary=16",
  "--config.model.context=8",
  "--config.model.width=8",
  "--config.model.depth=2",
  "--config.model.heads=2",
  "--config.model.kv_heads=1",
  "--config.model.hidden=8",  # Fewer shapes, fewer programs.
  "--config.data.batch_size=4",
  "--config.data.source=files",
  "--config.optim.warmup_steps=2",
  f"--config.train.num_steps={STEPS}",
  "--config.train.steps_per_dispatch=2",
  "--config.eval.every=3",
  "--config.eval.windows=5",
  "--config.eval.batch_size=2",
  "--config.probe.windows=2",
  "--config.probe.per_decade=0",
  "--config.probe.every=2",
  "--config.probe.method=gram",
  "--config.spread.k=4",
  "--config.checkpoint.every=2",
  "--config.checkpoint.keep=9",
)


@pytest.fixture(scope="module")
def launch(run_python, tmp_path_factory):
  """Runs `launch.py` on token files of a cyclic language, as a user would."""
  folder = tmp_path_factory.mktemp("tokens")
  rng = np.random.default_rng(0)
  for name, count in (("train", 3000), ("val", 400)):
    tokens = np.cumsum(rng.integers(1, 3, count)) % 16
    tokens.astype(np.uint16).tofile(folder / f"{name}.bin")

  def run(workdir, *more, variant="silu"):
    return run_python(
      "launch.py",
      f"--config=configs/llama.py:{variant}",
      f"--workdir={workdir}",
      f"--data_dir={folder}",
      "--config.seeds=3,5",
      f"--config.data.train_files={folder}/train.bin,",
      f"--config.data.validation_files={folder}/val.bin,",
      *SMALL,
      *more,
      timeout=300,
    )

  return run


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory):
  """A run that nothing broke off."""
  workdir = tmp_path_factory.mktemp("runs") / "whole"
  done = launch(workdir)
  assert done.returncode == 0, done.stderr
  return workdir


def probes_of(workdir):
  """The rows of both probes of a step and seed, joined."""
  found = {}
  for row in record.read(workdir / "metrics.jsonl"):
    if row["kind"] == "probe":
      found.setdefault((row["step"], row["seed"]), {}).update(row)
  return found


def test_every_projection_is_measured_on_both_sides(whole):
  probes = probes_of(whole)
  assert sorted(probes) == [(s, x) for s in (0, 2, 4, 6) for x in (3, 5)]
  last = probes[STEPS, 3]
  for p in PROJECTIONS:
    for side in ("input", "output"):
      for stack in ("weights", "folded", "gradients", "updates"):
        assert len(last[f"{p}/{stack}/cos_{side}"]) == 1
        assert 0 <= last[f"{p}/{stack}/cos_{side}_mean"] <= 1
      assert len(last[f"{p}/drift/{side}"]) == 2
      assert len(last[f"{p}/weights/same_index_{side}"]) == 4
    assert last[f"{p}/dominance/spectral_mean"] > 0
  for p in ("q", "k", "v", "o"):
    for way in ("pairs", "best", "same"):
      assert len(last[f"{p}/heads/updates/{way}_output"]) == 1
  # A single head of keys: the three are one.
  assert last["k/heads/weights/pairs_input"] == pytest.approx(
    last["k/weights/cos_input"], abs=1e-3
  )
  # Gains are 1 at step 0, and not after.
  assert probes[0, 3]["q/folded/sigma_1"] == pytest.approx(
    probes[0, 3]["q/weights/sigma_1"]
  )
  assert last["q/folded/sigma_1"] != last["q/weights/sigma_1"]
  assert probes[0, 3]["q/updates/cos_input_mean"] is None  # W = W(0).


def test_what_the_report_says(whole):
  text = (whole / "report.md").read_text()
  summary = json.loads((whole / "summary.json").read_text())
  assert len(summary["claims"]) == 21
  for of in summary["claims"]:
    assert of["verdict"] == "undecided (2 of the 3 seeds of a group)"
  line = next(x for x in text.splitlines() if x.startswith("| gate |"))
  cells = [cell.strip() for cell in line.strip("|").split("|")]
  values = [
    probes_of(whole)[STEPS, s]["gate/weights/cos_input_mean"] for s in (3, 5)
  ]
  assert cells[2] == markdown.mean(np.array(values), 2)
  assert cells[-1] == "0 of 2"
  assert cells[1] == "0.282"  # Chance of 8 dimensions.
  assert "1 x cpu" in text and "unigram" in text
  drawn = {p.stem for p in (whole / "figures").glob("*.png")}
  assert drawn == {
    "losses", "base", "activation_weights", "activation_gradients",
    "activation_updates", "activation_drift", "activation_pairs",
  }  # fmt: skip
  assert all(f"figures/{name}.png" in text for name in drawn)


def test_figures_show_the_numbers_of_the_rows(whole):
  rows = record.read(whole / "metrics.jsonl")
  figure = continuity_lm_figures.layer_pairs(rows, ["silu"])
  shown = figure.axes[1].images[0].get_array()
  assert shown.shape == (7, 1)
  values = [probes_of(whole)[STEPS, s]["o/weights/cos_output"] for s in (3, 5)]
  assert shown[3, 0] == pytest.approx(np.mean(values))
  figure = continuity_lm_figures.drift(rows, ["silu"])
  line = figure.axes[0].lines[0]
  angles = [np.mean(probes_of(whole)[4, s]["q/drift/input"]) for s in (3, 5)]
  np.testing.assert_array_equal(line.get_xdata(), [2, 4, 6])
  assert line.get_ydata()[1] == pytest.approx(np.mean(angles) / 2)
  assert continuity_lm_figures.layer_pairs(rows, ["other"]) is None
  assert continuity_lm_tables.heads([], [], {}, "weights") == "Not measured."


@pytest.mark.slow
def test_broken_off_and_resumed_it_is_bitwise_the_same(whole, launch, tmp_path):
  workdir = tmp_path / "resumed"
  shutil.copytree(whole, workdir)
  for step in (4, 6):  # As if it had been killed after step 2.
    shutil.rmtree(workdir / "checkpoints" / "silu" / str(step))
  done = launch(workdir)
  assert done.returncode == 0, done.stderr
  assert probes_of(workdir) == probes_of(whole)

  def state_of(folder):
    path = folder / "checkpoints" / "silu" / str(STEPS) / "state"
    return ocp.StandardCheckpointer().restore(path.absolute())

  jax.tree.map(
    np.testing.assert_array_equal, state_of(workdir), state_of(whole)
  )


@pytest.mark.slow
def test_every_ablation_runs(launch, tmp_path):
  done = launch(tmp_path / "all", "--config.probe.heads=False", variant="small")
  assert done.returncode == 0, done.stderr
  text = (tmp_path / "all" / "report.md").read_text()
  assert len(re.findall(r"^### ", text, re.MULTILINE)) == 10
  assert "Not measured." in text


def test_files_and_wikitext_do_not_go_together(launch, tmp_path):
  done = launch(
    tmp_path / "run",
    "--config.data.source=wikitext103",
    "--config.data.train_files=(),",
  )
  assert done.returncode == 2
  said = [x for x in done.stderr.splitlines() if x.startswith("launch.py:")]
  assert len(said) == 1 and "train_files" in said[0]

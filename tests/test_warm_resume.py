"""A run with warm probes goes on to the same bits after a checkpoint."""

import shutil

import pytest

from geom import record

WARM = (
  "launch.py",
  "--config=configs/resmlp.py:relu",
  "--config.model.width=16",
  "--config.model.depth=3",
  "--config.seeds=0,1",
  "--config.train.num_steps=40",
  "--config.probe.method=warm",
  "--config.probe.stacks=weights,updates",
  "--config.data.probe_examples=64",
  "--config.probe.every=5",
  "--config.eval.every=None",
  "--config.checkpoint.every=10",
  "--config.checkpoint.keep=4",
)


def probes(workdir):
  rows = record.read(workdir / "metrics.jsonl")
  return [row for row in rows if row["kind"] == "probe"]


@pytest.mark.slow
def test_to_the_same_bits(run_python, tmp_path):
  whole, part = tmp_path / "whole", tmp_path / "part"
  done = run_python(*WARM, f"--workdir={whole}")
  assert done.returncode == 0, done.stderr
  shutil.copytree(whole, part)
  for step in (30, 40):
    shutil.rmtree(part / "checkpoints" / "relu" / str(step))
  done = run_python(*WARM, f"--workdir={part}")
  assert done.returncode == 0, done.stderr
  events = [r.get("event") for r in record.read(part / "metrics.jsonl")]
  assert "resume" in events
  assert len(probes(whole)) > 16 and "warm/residual" in probes(whole)[0]
  assert probes(part) == probes(whole)


def test_what_warm_cannot_take_is_one_line(run_python, tmp_path):
  for k in ("None", 17):
    done = run_python(*WARM, f"--workdir={tmp_path}", f"--config.probe.k={k}")
    assert done.returncode == 2 and "warm takes k in 2..16" in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1

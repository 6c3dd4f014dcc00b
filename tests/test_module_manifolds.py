"""Module-wise manifolds on a GPT-2 too small to learn: the whole way."""

import re
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from geom import record

STEPS = 12
SMALL = (
  "--config.model.vocabulary=16",
  "--config.model.context=8",
  "--config.model.width=8",
  "--config.model.depth=2",
  "--config.model.heads=2",
  "--config.model.unroll=1",
  "--config.data.batch_size=4",
  "--config.optim.warmup_steps=2",
  "--config.optim.solver=projected",
  f"--config.train.num_steps={STEPS}",
  "--config.train.steps_per_dispatch=4",
  "--config.eval.every=6",
  "--config.eval.windows=5",
  "--config.eval.batch_size=2",
  "--config.probe.windows=2",
  "--config.probe.per_decade=0",
  "--config.probe.every=4",
  "--config.checkpoint.every=4",
  "--config.checkpoint.keep=9",
  "--config.watch.saturation=None",
)


@pytest.fixture(scope="module")
def launch(run_python, tmp_path_factory):
  """Runs `launch.py` on token files of a cyclic language, as a user would."""
  folder = tmp_path_factory.mktemp("tokens")
  rng = np.random.default_rng(0)
  for name, count in (("train", 3000), ("val", 400)):
    tokens = np.cumsum(rng.integers(1, 3, count)) % 16
    tokens.astype(np.uint16).tofile(folder / f"{name}.bin")
  (folder / "short.bin").write_bytes(b"\1\0" * 6)
  (folder / "odd.bin").write_bytes(b"\1\0\1")

  def run(workdir, *more, variant="hetero_inv", train="train"):
    files = ("train", train), ("validation", "val")
    return run_python(
      "launch.py",
      f"--config=configs/gpt2_tiny.py:{variant}",
      f"--workdir={workdir}",
      f"--data_dir={folder}",
      "--config.seeds=3,5",
      "--config.data.source=files",
      *(f"--config.data.{k}_files={folder / v}.bin," for k, v in files),
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


def rows_of(workdir, kind):
  rows = record.read(workdir / "metrics.jsonl")
  return sorted(
    (row for row in rows if row["kind"] == kind),
    key=lambda row: (row["step"], row["seed"]),
  )


def state_of(workdir):
  path = workdir / "checkpoints" / "hetero_inv" / str(STEPS) / "state"
  return ocp.StandardCheckpointer().restore(path.absolute())


def test_rows_of_every_projection_and_of_attention(whole):
  probes = rows_of(whole, "probe")
  assert [(r["step"], r["seed"]) for r in probes] == [
    (step, seed) for step in (0, 4, 8, 12) for seed in (3, 5)
  ]
  last = probes[-1]
  for p in ("q", "k", "v", "o", "up", "down"):
    assert len(last[f"{p}/weights/sigma_1"]) == 2
    assert len(last[f"{p}/updates/cos_input"]) == 1
    assert last[f"{p}/dominance/spectral_mean"] > 0
  for p in ("qkv", "o", "up", "down"):  # qkv is one matrix on the manifold.
    assert all(0 < x <= 1.01 for x in last[f"{p}/alignment"])
    assert all(x < 1e-4 for x in last[f"{p}/violation"])
  for name in ("logit_max", "entropy", "saturation", "jacobian"):
    assert len(last[f"attention/{name}"]) == 2
  assert np.shape(last["attention/qk_sigma"]) == (2, 2)
  evals = rows_of(whole, "eval")
  assert [r["step"] for r in evals[::2]] == [0, 6, 12]
  assert evals[0]["loss"] == pytest.approx(np.log(16), abs=0.1)


def test_what_it_says_and_leaves(whole):
  table = (whole / "assignments" / "hetero_inv.txt").read_text()
  assert "dgram" in table and "stiefel" in table
  assert (whole / "report.md").exists()
  assert (whole / "summary.json").exists()
  assert list((whole / "figures").glob("*.png"))


@pytest.mark.slow
def test_broken_off_and_resumed_it_is_bitwise_the_same(whole, launch, tmp_path):
  workdir = tmp_path / "resumed"
  shutil.copytree(whole, workdir)
  for step in (8, 12):  # As if it had been killed after step 4.
    shutil.rmtree(workdir / "checkpoints" / "hetero_inv" / str(step))
  done = launch(workdir)
  assert done.returncode == 0, done.stderr
  for kind in ("train", "eval", "probe"):
    assert rows_of(workdir, kind) == rows_of(whole, kind)
  jax.tree.map(
    np.testing.assert_array_equal, state_of(workdir), state_of(whole)
  )


@pytest.mark.parametrize(
  ("more", "code", "says"),
  [
    (("odd",), 1, "odd.bin"),
    (("short",), 1, "short.bin|fewer than a window of 9"),
    (("train", "--config.model.vocabulary=15"), 1, "15"),
    (("train", "--config.model.heads=3"), 2, "3 heads do not divide width 8"),
    (("train", "--config.optim.faithful=True"), 2, "faithful wants auto"),
    (("train", "--config.watch.pateince=3"), 2, "patience"),
  ],
)
def test_a_mistake_is_one_line(launch, tmp_path, more, code, says):
  done = launch(tmp_path / "run", *more[1:], train=more[0])
  assert done.returncode == code
  said = [x for x in done.stderr.splitlines() if x.startswith("launch.py:")]
  assert len(said) == 1 and "Traceback" not in done.stderr
  assert re.search(says, said[0])


@pytest.mark.slow
def test_another_assignment_does_not_continue_a_run(whole, launch, tmp_path):
  workdir = tmp_path / "other"
  shutil.copytree(whole / "checkpoints", workdir / "checkpoints")
  (workdir / "checkpoints" / "hetero_inv").rename(
    workdir / "checkpoints" / "hetero"
  )
  done = launch(workdir, variant="hetero")
  assert done.returncode == 2
  assert "is of another run; it differs in run.assignment" in done.stderr

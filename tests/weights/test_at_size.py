"""Checkpoints of large shapes: known singular vectors, bounded memory."""

import importlib.util
import json
import pathlib
import re
import sys

import numpy as np
import pytest

from geom import record
from geom.report import pretrained_rows as data

ROOT = pathlib.Path(__file__).parents[2]
MAKER = ROOT / "tests" / "make_big_checkpoint.py"
# Starts a command, and says the most memory that it held, in kB.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def assert_as_planted(workdir, folder, atol):
  expected = json.loads((folder / "expected.json").read_text())
  of = data.digest(record.read(workdir / "metrics.jsonl"))
  assert list(of.kernels) == expected["projections"]
  for p, rows in of.kernels.items():
    for side in ("input", "output"):
      got = data.adjacent(of, p, side)
      np.testing.assert_allclose(got, expected["cosine"], atol=atol)
    for row in rows:
      assert row["gap"] == pytest.approx(expected["gap"], rel=5e-3)


def test_planted_kernels_have_the_singular_values_that_they_say():
  spec = importlib.util.spec_from_file_location("maker", MAKER)
  maker = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(maker)
  rng = np.random.default_rng(0)
  for m, n in ((30, 50), (50, 30)):
    random = rng.standard_normal(m), rng.standard_normal(n)
    left, right = (x / np.linalg.norm(x) for x in random)
    kernel = maker.planted(rng, left, right, 0.5)
    u, s, vt = np.linalg.svd(kernel)
    np.testing.assert_allclose(s, np.arange(1, 31) ** -0.5, rtol=1e-4)
    assert abs(u[:, 0] @ left) == pytest.approx(1, abs=1e-4)
    assert abs(vt[0] @ right) == pytest.approx(1, abs=1e-4)


def test_a_checkpoint_of_several_files_above_what_is_decomposed_as_a_whole(
  tmp_path, run_python, analyse
):
  folder = tmp_path / "big"
  made = run_python(
    MAKER, folder, "--hidden=128", "--feed-forward=320", "--heads=8",
    "--kv-heads=2", "--layers=4",
  )  # fmt: skip
  assert made.returncode == 0, made.stderr
  workdir = analyse(folder, full_below=0)
  assert_as_planted(workdir, folder, 0.01)


@pytest.mark.slow
def test_70b_shapes_stream_in_three_of_the_largest_matrix(tmp_path, run_python):
  folder, workdir = tmp_path / "big", tmp_path / "run"
  try:
    made = run_python(MAKER, folder, timeout=1800)
    assert made.returncode == 0, made.stderr
    ran = run_python(
      "-c", MEASURED, sys.executable, "launch.py",
      "--config=configs/pretrained.py:any", f"--config.source={folder}",
      f"--workdir={workdir}", timeout=7200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"21 kernels .* about .* memory about", ran.stderr)
    peak = int(ran.stdout.split()[-1]) * 1024
    assert peak <= 3 * 4 * 8192 * 28672 + 500e6
    assert_as_planted(workdir, folder, 0.01)
  finally:
    for file in folder.glob("*.safetensors"):
      file.unlink()

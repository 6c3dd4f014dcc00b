"""Whole updates are measured in turns, and judged."""

import pathlib

import pytest

from experiments import bench
from geom import config as cfg
from geom import record

ROOT = pathlib.Path(__file__).parents[1]

TINY = (
  "--config.layouts=fused,",
  "--config.width=12",
  "--config.repeats=2",
  "--config.peak_size=32",
  "--config.dual_ascent.iterations=3",
  "--config.wanted.euclidean=1e9",
  "--config.wanted.dual_ascent=1e9",
)
BENCH = ("launch.py", "--config=configs/bench.py:optimizer", *TINY)


@pytest.fixture(scope="module")
def workdir(run_python, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("bench")
  done = run_python(*BENCH, f"--workdir={workdir}")
  assert done.returncode == 0, done.stderr
  return workdir


@pytest.mark.slow
def test_every_measurement_is_there_and_judged(workdir):
  found = record.read_json(workdir / "summary.json")["measured"]
  rows = record.read(workdir / "metrics.jsonl")
  assert set(found) == {"euclidean/fused", "hetero/fused", "dual_ascent/fused"}
  for name, x in found.items():
    mine = [row for row in rows if row["condition"] == name]
    assert len(mine) == (1 if "dual" in name else 2)
    ratios = [row["ours_ms"] / row["theirs_ms"] for row in mine]
    if "dual" in name:
      ratios = [1 / ratio for ratio in ratios]
    assert x["median"] == pytest.approx(sum(ratios) / len(ratios))
  assert found["euclidean/fused"]["met"]
  assert not found["dual_ascent/fused"]["met"]
  table = (workdir / "report.md").read_text()
  assert "**not met**" in table and "of the peak" in table.lower()
  assert "load average after" in table


@pytest.mark.slow
def test_what_is_counted(workdir):
  """msign: a Gram matrix first; a step has two products and the next one."""
  found = record.read_json(workdir / "summary.json")["measured"]
  n, layers, steps = 12, 2, 8
  x = found["euclidean/fused"]
  # Gram and X times the polynomial of it: m n^2; its square: n^3.
  sides = (3 * n, n, 4 * n, 4 * n)
  one = sum(2 * steps * 2 * m * n**2 + steps * 2 * n**3 for m in sides)
  assert x["flops"] == layers * one == x["their_flops"]
  assert found["hetero/fused"]["flops"] > 2 * x["flops"]


@pytest.mark.parametrize(
  "override, said",
  [
    ("dual_ascent.layers=3", "dual_ascent.layers: should be at most 2"),
    ("steps=0", "config.steps"),
    ("layouts=joined,", "config.layouts"),
    ("wanted.heter=2", "wanted.hetero"),
  ],
)
def test_a_mistake_is_one_line(override, said):
  config = cfg.load("configs/bench.py:optimizer", also=ROOT)
  with pytest.raises(cfg.ConfigError, match=said) as error:
    cfg.override(config, *override.split("="))
    bench.check(config)
  assert "\n" not in str(error.value)

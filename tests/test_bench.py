"""The bench runs, at one thread, and says what it saw."""

import pytest

from geom import record

TINY = (
  "--config.repeats=2",
  "--config.stack.layers=2",
  "--config.stack.m=24",
  "--config.stack.n=32",
  "--config.warm.k=2",
  "--config.warm.block=8",
  "--config.warm.calls=2",
  "--config.training.width=16",
  "--config.training.depth=3",
  "--config.training.num_steps=20",
  "--config.training.every=10",
  "--config.training.full_measured_every=10",
  "--config.training.num_examples=32",
  "--config.wanted.spectrum=1e9",
  "--config.wanted.full_share=1e9",
)
BENCH = ("launch.py", "--config=configs/bench.py:probes", *TINY)


@pytest.fixture(scope="module")
def workdir(run_python, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("bench")
  done = run_python(*BENCH, f"--workdir={workdir}")
  assert done.returncode == 0, done.stderr
  return workdir


@pytest.mark.slow
def test_every_measurement_is_there_and_judged(workdir):
  summary = record.read_json(workdir / "summary.json")
  found = summary["measured"]
  assert set(found) == {"spectrum", "warm", "default_share", "full_share"}
  for name, x in found.items():
    assert x["least"] <= x["median"] <= x["largest"], name
    assert x["ours_ms"] > 0 and x["theirs_ms"] > 0
  # Slow is not failing.
  assert not found["spectrum"]["met"] and found["full_share"]["met"]
  table = (workdir / "report.md").read_text()
  assert "**not met**" in table and "**met**" in table


@pytest.mark.slow
def test_what_a_ratio_is(workdir):
  rows = record.read(workdir / "metrics.jsonl")
  found = record.read_json(workdir / "summary.json")["measured"]
  for name, x in found.items():
    mine = [row for row in rows if row["condition"] == name]
    assert len(mine) == 2
    ratios = [row["theirs_ms"] / row["ours_ms"] for row in mine]
    if name.endswith("share"):
      ratios = [1 / ratio for ratio in ratios]
      ours = sum(row["ours_ms"] for row in mine)
      theirs = sum(row["theirs_ms"] for row in mine)
      assert x["total"] == pytest.approx(ours / theirs)
    assert x["least"] == pytest.approx(min(ratios))
    assert x["median"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.slow
def test_it_says_on_what(workdir):
  machine = record.read_json(workdir / "summary.json")["machine"]
  begin, end = machine["start"], machine["end"]
  assert begin["threads"]["OPENBLAS_NUM_THREADS"] == "1"
  assert begin["pinned to"] == "nothing" or len(begin["pinned to"]) == 1
  assert len(begin["load average before"]) == 3
  assert len(end["load average after"]) == 3
  assert begin["cpu"] and begin["jax"] and begin["numpy"]


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(run_python, workdir):
  before = (workdir / "metrics.jsonl").read_bytes()
  done = run_python(*BENCH, f"--workdir={workdir}")
  assert done.returncode == 0 and "measured before" in done.stderr
  assert (workdir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
  "override, said",
  [
    ("warm.block=1", "config.warm.block: should be in 2..24"),
    ("training.num_steps=15", "num_steps: should be a multiple of 10"),
    ("wanted.warm=0", "config.wanted.warm"),
  ],
)
def test_a_mistake_is_one_line(run_python, tmp_path, override, said):
  done = run_python(*BENCH, f"--workdir={tmp_path}", f"--config.{override}")
  assert done.returncode == 2 and said in done.stderr
  assert len(done.stderr.strip().split("\n")) == 1

"""Training steps are measured in turns, and judged; PyTorch is played."""

import pathlib
import sys

import pytest

from experiments import bench
from geom import config as cfg
from geom import record

ROOT = pathlib.Path(__file__).parents[1]
# A Python that answers as one with torch would.
PLAYED = """\
#!{python}
import json, sys
size = json.loads(sys.argv[3])
assert size["model"]["width"] == 8 and size["threads"] == 1
for _ in sys.stdin:
  print(json.dumps({{"ms": 1e6, "wall_ms": 1e6, "loss": 2.0, "mb": 9.0,
                    "torch": "played"}}), flush=True)
"""


@pytest.mark.slow
def test_sizes_are_measured_and_judged(run_python, tmp_path):
  python = tmp_path / "python"
  python.write_text(PLAYED.format(python=sys.executable))
  python.chmod(0o755)
  of = "--config.sizes.tiny"
  done = run_python(
    "launch.py",
    "--config=configs/bench.py:language",
    f"--workdir={tmp_path / 'run'}",
    f"--config.torch_python={python}",
    *(
      f"--config.sizes.{name}.model.{key}={value}"
      for name in ("tiny", "middle", "middle_50304")
      for key, value in (
        ("vocabulary", 11), ("context", 6), ("width", 8), ("depth", 2),
        ("heads", 2),
      )
    ),
    *(
      f"--config.sizes.{name}.batch_size=2"
      for name in ("tiny", "middle", "middle_50304")
    ),
    f"{of}.steps=3",
    "--config.repeats=2",
    timeout=500,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  found = record.read_json(tmp_path / "run" / "summary.json")["measured"]
  assert list(found) == ["tiny", "middle", "middle_50304"]
  for x in found.values():
    assert x["torch"]["ratio"]["median"] > 100
    assert x["torch"]["mb"] == 9
    assert 0 < x["bound"] < 1
    assert x["tokens_per_s"]["adamw"] > 0
  text = (tmp_path / "run" / "report.md").read_text()
  assert "**met**" in text and "load average after" in text


@pytest.mark.parametrize(
  ("override", "said"),
  [
    ("torch_python=/no/such/python", "no program '/no/such/python'"),
    ("sizes.tiny.model.heads=5", "sizes.tiny.model: 5 heads do not divide"),
    ("sizes.tiny.step=2", "config.sizes.tiny.steps"),
  ],
)
def test_a_mistake_is_one_line(override, said):
  config = cfg.load("configs/bench.py:language", also=ROOT)
  with pytest.raises(cfg.ConfigError, match=said) as error:
    cfg.override(config, *override.split("="))
    bench.check(config)
  assert "\n" not in str(error.value)

"""To whom a workdir belongs."""

import pytest

from geom import record
from geom.launch.workdir import WorkdirError, claimed


def config_of(workdir):
  return record.read_json(workdir / "config.json")["config"]


def test_a_run_that_wrote_nothing_leaves_its_workdir(tmp_path):
  with claimed(tmp_path, {"file": "misspelt"}, []):
    pass
  with claimed(tmp_path, {"file": "right"}, []):
    assert config_of(tmp_path) == {"file": "right"}


def test_a_run_that_wrote_something_keeps_it(tmp_path):
  with claimed(tmp_path, {"file": "a"}, []):
    (tmp_path / "metrics.jsonl").touch()
  with (
    pytest.raises(WorkdirError, match="another config; it differs in"),
    claimed(tmp_path, {"file": "b"}, []),
  ):
    pass
  assert config_of(tmp_path) == {"file": "a"}


def test_what_is_no_config_of_a_run_is_left_alone(tmp_path):
  (tmp_path / "config.json").write_text("[]")
  with (
    pytest.raises(WorkdirError, match="is not a config"),
    claimed(tmp_path, {}, []),
  ):
    pass

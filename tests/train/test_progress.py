"""What the user sees of a run."""

import pytest

from geom.train import progress


@pytest.fixture
def clock(monkeypatch):
  class Clock:
    now = 100.0

    def monotonic(self):
      return self.now

  clock = Clock()
  monkeypatch.setattr(progress, "time", clock)
  return clock


def test_plain_lines_where_there_is_no_terminal(clock, capsys):
  shown = progress.Progress("relu", 1000, initial=100, interval=10.0)
  for step, seconds in ((110, 5), (200, 15), (210, 4), (400, 6)):
    clock.now += seconds
    shown.update(step, 0.5)
  lines = capsys.readouterr().err.splitlines()
  assert lines == [
    "relu: step 200/1000  loss 0.5000  5.0 steps/s  160 s left",
    "relu: step 400/1000  loss 0.5000  20.0 steps/s  30 s left",
  ]


def test_the_last_step_is_always_shown(clock, capsys):
  shown = progress.Progress("relu", 10)
  clock.now += 1
  shown.update(10, 0.25)
  assert "step 10/10  loss 0.2500" in capsys.readouterr().err


def test_a_bar_on_a_terminal(monkeypatch, capsys):
  monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
  shown = progress.Progress("relu", 10, initial=2)
  shown.update(6, 0.125)
  shown.bar.refresh()
  shown.close()
  err = capsys.readouterr().err
  assert "relu" in err and "6/10" in err and "loss 0.1250" in err

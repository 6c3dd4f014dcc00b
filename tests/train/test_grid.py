"""The grid of steps at which a run measures."""

from geom.train.grid import log_and_every


def steps(num_steps, **options):
  due = log_and_every(num_steps=num_steps, **options)
  return [step for step in range(num_steps + 1) if due(step)]


def test_log_spaced_early_and_the_end():
  assert steps(464, per_decade=3, every=None) == [
    0, 1, 2, 5, 10, 22, 46, 100, 215, 464,
  ]  # fmt: skip


def test_every_n_later():
  assert steps(50, per_decade=1, every=20) == [0, 1, 10, 20, 40, 50]


def test_none_but_both_ends():
  assert steps(9, per_decade=0, every=None) == [0, 9]


def test_many_points_a_decade_are_every_step():
  assert steps(5, per_decade=1000, every=None) == [0, 1, 2, 3, 4, 5]


def test_every_step_at_first():
  assert steps(9, per_decade=0, every=None, first=3) == [0, 1, 2, 3, 9]
  assert steps(2, per_decade=0, every=None, first=30) == [0, 1, 2]

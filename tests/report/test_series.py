"""Where a number of a run reaches a level."""

import numpy as np
import pytest

from geom.report import series

X, Y = "dominance/spectral_mean", "weights/cos_input_mean"


@pytest.mark.parametrize(
  "x, y, expected",
  [
    ([0, 1, 2], [0.1, 0.4, 0.8], 1.25),
    ([0, 1, 2], [0.0, 1.0, 0.0], 0.5),
    ([0, 1, 2], [0.1, 0.5, 0.8], 1),  # Exactly there.
    ([0, 1, 2, 3, 4], [0, 1, 0, 0.25, 0.75], 0.5),  # The first one.
    ([0, 1, 2], [0.1, 0.2, 0.4], np.nan),  # Never.
    ([0, 1, 2], [0.9, 0.7, 0.6], np.nan),  # Above all the time.
    ([0, 1, 2], [0.9, 0.1, 0.9], 1.5),  # Below only later.
    ([0, 1, 2], [0.5, 0.6, 0.7], np.nan),  # There from the start.
    ([0, 1, 2], [0.0, np.nan, 1.0], 1),  # Between what is defined.
    ([0, np.nan, 2], [0.0, 0.6, 1.0], 1),
    ([np.nan, 1, 2], [0.0, 0.6, 0.7], np.nan),
    ([0, np.inf], [0.0, 1.0], np.nan),
    ([2, 1], [0.0, 1.0], 1.5),  # In the order of steps, not of x.
    ([0], [0.1], np.nan),
    ([], [], np.nan),
  ],
)
def test_where_a_level_is_first_reached_from_below(x, y, expected):
  found = series.crossing(np.array(x, float), np.array(y, float), 0.5)
  np.testing.assert_allclose(found, expected)


def test_crossings_are_by_seed_at_steps_that_have_both():
  rows = [
    {"step": t, "kind": "probe", "condition": "a", "seed": s, X: x, Y: y}
    for s, t, x, y in [
      (1, 0, 0.0, 0.0), (1, 4, 2.0, 1.0), (0, 0, 0.0, 0.0), (0, 4, 2.0, 0.4),
    ]
  ]  # fmt: skip
  rows.append({"step": 2, "kind": "probe", "condition": "a", "seed": 1, Y: 0.9})
  found = series.crossings(rows, "a", X, Y, 0.5)
  np.testing.assert_allclose(found, [np.nan, 1.0])
  assert series.crossings(rows, "a", X, "nowhere", 0.5) is None
  assert series.crossings(rows, "b", X, Y, 0.5) is None
  # What was before the first probe is not known.
  later = [row for row in rows if row["step"]]
  assert series.crossings(later, "a", X, Y, 0.5) is None

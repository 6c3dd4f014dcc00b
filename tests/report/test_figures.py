"""Figures from rows: what is drawn, what is left out."""

import matplotlib.image
import numpy as np
import pytest

from geom.report import (
  ablation_figure,
  continuity_figures,
  crossing_figure,
  figures,
)

CHANCES = {"input": 0.05, "output": 0.06}
ANGLES = (0.1, 1.0)
NAN = None  # As metrics.jsonl has it.
V1 = "weights/cos_input_mean"


def rows_of(condition, seed, up=0.0):
  """Three probes, orbits, evaluations and batches of one seed."""

  def row(step, kind, **numbers):
    return {
      "step": step, "kind": kind, "condition": condition, "seed": seed,
      **numbers,
    }  # fmt: skip

  rows = []
  for i, step in enumerate((0, 1, 10)):
    numbers = {}
    for side in ("input", "output"):
      for stack in ("weights", "gradients", "updates"):
        numbers[f"{stack}/cos_{side}_mean"] = 0.1 + 0.3 * i + up
        numbers[f"{stack}/cos_{side}"] = [0.2 + up, 0.3 * i + up]
      numbers[f"weights/same_index_{side}"] = [0.3 * i + up, NAN, 0.1]
      for stack in ("updates", "gradient_sum"):
        numbers[f"transfer/{stack}_{side}_mean"] = (
          (0.2 if side == "input" else 0.1) * i + up if i else NAN
        )
    numbers["weights/gap"] = [1.5, 2.5]
    numbers["weights/flattened_cosine_mean"] = 0.2
    for norm in ("spectral", "frobenius"):
      numbers[f"dominance/{norm}"] = [2.0 * i, 2.0 * i]
      numbers[f"dominance/{norm}_mean"] = 2.0 * i
    rows.append(row(step, "probe", **numbers))
    rows.append(row(step, "eval", accuracy=0.3 * i + up))
    rows.append(
      row(
        step,
        "orbit",
        **{
          "orbit/stream": [1e-7 * i, -1e-7],
          "orbit/between": [0.1 * i, 1.0 * i + up],
          "orbit/drift_share": 0.02 * i,
        },
      )
    )
  return rows + [row(8 * i, "train", loss=1 / (i + 1)) for i in range(150)]


ROWS = rows_of("relu", 0) + rows_of("relu", 1, 0.2) + rows_of("none", 0)
NAMES = ("none", "relu", "absent")
COLUMNS = {
  "weights v1": ("probe", V1, "last"),
  "gap": ("probe", "weights/gap", "last"),
  "nowhere": ("probe", "nowhere", "last"),
}
DRAW = {
  "continuity": lambda rows, names: continuity_figures.continuity(
    rows, CHANCES, "Title", names
  ),
  "layer_pairs": lambda rows, names: continuity_figures.layer_pairs(
    rows, CHANCES, names
  ),
  "context": lambda rows, names: continuity_figures.context(rows, names),
  "same_index": lambda rows, names: continuity_figures.same_index(
    rows, CHANCES, names
  ),
  "transfer": lambda rows, names: continuity_figures.transfer(
    rows, CHANCES, names
  ),
  "orbits": lambda rows, names: continuity_figures.orbits(
    rows, ANGLES, names, 0.01
  ),
  "crossing": lambda rows, names: crossing_figure.crossing(
    rows, CHANCES, names
  ),
  "ablation": lambda rows, names: ablation_figure.ablation(
    rows, CHANCES, names, COLUMNS
  ),
}


def line(ax, label):
  """Points of a curve or of error bars, and its colour."""
  handles, labels = ax.get_legend_handles_labels()
  handle = handles[labels.index(label)]
  drawn = handle[0] if isinstance(handle, tuple) else handle
  return *drawn.get_data(), drawn.get_color()


def levels(ax):
  """Heights of the chance lines."""
  return [x.get_ydata()[0] for x in ax.get_lines() if x.get_label() == "chance"]


def texts(ax):
  return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("name", DRAW)
def test_nothing_to_draw_is_none(name):
  assert DRAW[name](ROWS, ("absent",)) is None
  assert DRAW[name](ROWS, ()) is None
  assert DRAW[name]([], NAMES) is None
  undefined = {
    "step": 1, "kind": "probe", "condition": "relu", "seed": 0, V1: NAN,
    "weights/same_index_input": [NAN, NAN], "weights/cos_input": [NAN],
    "dominance/spectral_mean": 1.0,
  }  # fmt: skip
  assert name == "ablation" or DRAW[name]([undefined], NAMES) is None


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_has_the_same_bytes_again_and_only_what_was_asked(
  name, tmp_path
):
  for path in ("a.png", "b.png"):
    figures.save(DRAW[name](ROWS, NAMES), tmp_path / path)
  assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
  image = matplotlib.image.imread(tmp_path / "a.png")
  assert image[..., :3].std() > 0.01
  edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
  assert (edge[:, :3] == 1).all()  # Nothing is cut off.


def test_continuity_draws_means_in_the_colours_of_the_order():
  figure = DRAW["continuity"](ROWS, NAMES)
  top, bottom = figure.axes[0], figure.axes[3]
  steps, mean, colour = line(top, "relu")
  np.testing.assert_array_equal(steps, [0, 1, 10])
  np.testing.assert_allclose(mean, [0.2, 0.5, 0.8])
  assert colour == figures.COLOURS[1]
  assert line(bottom, "none")[2] == figures.COLOURS[0]
  assert (levels(top), levels(bottom)) == ([0.05], [0.06])
  shown = [text.get_text() for text in figure.legends[0].get_texts()]
  assert shown == ["none", "relu", "chance"]
  paths = top.collections[1].get_paths()[0].vertices
  assert np.isclose(paths[:, 1].max(), 0.8 + np.std([0.7, 0.9], ddof=1))


def test_a_condition_left_out_does_not_change_a_colour():
  names = ("absent", "relu")
  ax = DRAW["continuity"](ROWS, names).axes[0]
  assert line(ax, "relu")[2] == figures.COLOURS[1]


def test_after_all_colours_lines_are_dashed_and_markers_hollow():
  looks = [figures.look(i) for i in range(12)]
  assert len({(x["color"], str(x["linestyle"])) for x in looks}) == 12
  assert looks[8]["mfc"] == "white" != looks[0]["mfc"]


def test_a_panel_without_numbers_says_so():
  rows = [
    {k: v for k, v in row.items() if "gradient_sum" not in k} for row in ROWS
  ]
  figure = DRAW["transfer"](rows, NAMES)
  assert [texts(ax) for ax in figure.axes] == [[], ["not measured"]] * 2


def test_transfer_draws_each_stack_and_side():
  figure = DRAW["transfer"](ROWS, NAMES)
  _, mean, _ = line(figure.axes[0], "none")
  np.testing.assert_allclose(mean, [np.nan, 0.2, 0.4])
  _, mean, _ = line(figure.axes[2], "none")
  np.testing.assert_allclose(mean, [np.nan, 0.1, 0.2])
  assert "the same layer" in figure.axes[0].get_ylabel()
  assert [levels(ax) for ax in figure.axes] == [[0.05]] * 2 + [[0.06]] * 2


def test_lists_at_the_last_probe_are_drawn_with_their_gaps():
  left, right = DRAW["same_index"](ROWS, NAMES).axes
  index, mean, _ = line(left, "relu")
  np.testing.assert_allclose(mean, [0.7, np.nan, 0.1])
  np.testing.assert_allclose(np.round(index), [1, 2, 3])
  assert (levels(left), levels(right)) == ([0.05], [0.06])
  pairs, mean, _ = line(DRAW["layer_pairs"](ROWS, NAMES).axes[0], "relu")
  np.testing.assert_allclose(mean, [0.3, 0.7])
  np.testing.assert_allclose(np.round(pairs), [0, 1])


def test_a_failed_seed_is_not_at_the_last_probe():
  failure = {
    "step": 5, "kind": "event", "condition": "relu", "seed": 1,
    "event": "not finite",
  }  # fmt: skip
  ax = DRAW["layer_pairs"]([*ROWS, failure], NAMES).axes[0]
  np.testing.assert_allclose(line(ax, "relu")[1], [0.2, 0.6])


def test_context_averages_layers_and_batches():
  loss, accuracy, gap, flat, *_ = DRAW["context"](ROWS, NAMES).axes
  np.testing.assert_allclose(line(gap, "none")[1], [2, 2, 2])
  steps, mean, _ = line(loss, "none")
  assert len(steps) == 50
  assert steps[0] == 8
  np.testing.assert_allclose(mean[0], (1 + 1 / 2 + 1 / 3) / 3)
  assert levels(accuracy) == [0.1]
  assert levels(flat) == [0]
  assert loss.get_yscale() == "log"


def test_orbits_show_the_last_probe_and_flat_as_flat():
  stream, between, share = DRAW["orbits"](ROWS, NAMES).axes
  angles, mean, _ = line(stream, "none")
  np.testing.assert_array_equal(angles, ANGLES)
  np.testing.assert_allclose(mean, [2e-7, -1e-7])
  np.testing.assert_allclose(line(between, "relu")[1], [0.2, 2.1])
  assert stream.get_ylim() == between.get_ylim()
  heights = stream.transAxes.inverted().transform(
    stream.transData.transform([(0.1, y) for y in (-1e-7, 2e-7, 2.1)])
  )[:, 1]
  assert heights[1] - heights[0] < 0.01
  assert heights[2] - heights[0] > 0.5
  np.testing.assert_allclose(line(share, "none")[1], [0, 0.02, 0.04])
  assert levels(share) == [0.01]


def test_crossing_marks_where_each_seed_crosses():
  left, right = DRAW["crossing"](ROWS, NAMES).axes
  shown = [text.get_text() for text in left.get_legend().get_texts()]
  # none: from (2, .4) to (4, .7); the other seed of relu from (0, .3).
  values = [2 + 2 / 3, 4 / 3]
  mean, spread = np.mean(values), np.std(values, ddof=1)
  assert shown == [
    "none: 2.67",
    f"relu: {mean:.2f} ± {spread:.2f}",
    "chance",
  ]
  marks = [x for x in left.get_lines() if set(x.get_ydata()) == {0.5}]
  assert [list(x.get_xdata()) for x in marks if len(x.get_xdata()) == 1] == [
    pytest.approx([2 + 2 / 3])
  ]
  assert levels(left) == [0.05]
  assert right.get_xscale() == "log"
  never = [dict(row) for row in ROWS if row["condition"] == "none"]
  for row in never:
    row |= {V1: 0.1} if V1 in row else {}
  relu = [row for row in ROWS if row["condition"] == "relu"]
  for row in relu[len(relu) // 2 :]:
    never.append(row | ({V1: 0.1} if V1 in row else {}))
  never += relu[: len(relu) // 2]
  left, _ = DRAW["crossing"](never, NAMES).axes
  shown = [text.get_text() for text in left.get_legend().get_texts()]
  assert shown == ["none: never", "relu: 2.67 (1 of 2)", "chance"]


def test_where_nothing_moves_there_is_no_logarithm(tmp_path):
  still = [
    {**row, **{k: 0.0 for k in row if k.startswith("dominance/")}}
    for row in ROWS
  ]
  figure = DRAW["crossing"](still, NAMES)
  assert [ax.get_xscale() for ax in figure.axes] == ["linear", "linear"]
  figures.save(figure, tmp_path / "still.png")


def test_a_trajectory_goes_through_its_probes_and_its_crossing():
  figure = DRAW["crossing"](ROWS, ("none",))
  ax = figure.axes[0]
  drawn, probes, *_ = ax.get_lines()
  np.testing.assert_allclose(probes.get_data(), [[2, 4], [0.4, 0.7]])
  x, y = drawn.get_data()
  np.testing.assert_allclose(
    np.interp([1, 2, 2 + 2 / 3, 4], x, y), [0.25, 0.4, 0.5, 0.7]
  )
  figure.draw_without_rendering()
  label = ax.xaxis.label.get_window_extent()
  assert not label.overlaps(ax.get_legend().get_window_extent())


def test_ablation_colours_cosines_and_leaves_out_what_is_nowhere():
  ax, bar = DRAW["ablation"](ROWS, NAMES).axes
  assert [t.get_text() for t in ax.get_xticklabels()] == ["weights v1", "gap"]
  assert [t.get_text() for t in ax.get_yticklabels()] == ["none", "relu"]
  assert ax.yaxis_inverted()  # The first condition is the upper one.
  assert texts(ax) == ["0.700", "0.800", "± 0.141", "2.00", "2.00", "± 0.00"]
  colours = [patch.get_facecolor() for patch in ax.patches]
  assert colours[0] == ablation_figure.COLOURS(0.7)
  assert colours[1] == ablation_figure.COLOURS(0.8)
  assert colours[2:] == [(1, 1, 1, 1)] * 2
  assert sorted(x.get_xdata()[0] for x in bar.get_lines()) == [0.05, 0.06]


def test_ablation_has_dashes_for_what_is_not_defined():
  rows = [
    {"step": 0, "kind": "probe", "condition": "a", "seed": 0, V1: NAN},
    {"step": 0, "kind": "probe", "condition": "a", "seed": 0, "n": 1234.5},
    {"step": 0, "kind": "probe", "condition": "b", "seed": 0, V1: -0.2},
  ]
  columns = {"v1": ("probe", V1, "start"), "n": ("probe", "n", "start")}
  figure = ablation_figure.ablation(rows, CHANCES, ["b", "a"], columns)
  ax = figure.axes[0]
  assert texts(ax) == ["-0.200", "–", "–", "1234"]
  assert ax.patches[0].get_facecolor() == ablation_figure.COLOURS(0.0)

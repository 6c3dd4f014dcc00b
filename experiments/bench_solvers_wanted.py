"""What is wanted of the solver `auto`, and whether it is met."""

from typing import Any

from geom import record

# Differences below this are rounding, where there is no gap to speak of.
FLOOR = 1e-3


def judged(
  wanted: dict[str, float],
  found: dict[str, dict[str, dict[str, float]]],
  pairs: list[record.Row],
) -> list[dict[str, Any]]:
  """One entry a line of the report.

  Args:
    wanted: the section of the config.
    found: by shape and solver, medians and largest values.
    pairs: the rows.
  """
  lines = []

  def line(what: str, value: float, most: float) -> None:
    lines.append(
      {"what": what, "found": value, "wanted": most, "met": value <= most}
    )

  for shape, x in found.items():
    auto, other = x["auto"], x["dual_ascent"]
    line(f"{shape}: largest tangency", auto["tangency"], wanted["tangency"])
    line(
      f"{shape}: largest spectral norm",
      auto["spectral_norm"],
      wanted["spectral_norm"],
    )
    line(
      f"{shape}: median gap, ill-conditioned G, as a share of dual_ascent's",
      auto["gap_median_ill"] / other["gap_median_ill"],
      wanted["gap_share"],
    )
    line(
      f"{shape}: flops, as a share of dual_ascent's",
      auto["flops"] / other["flops"],
      wanted["flops_share"],
    )
  for label, value in _changes(pairs).items():
    line(
      f"{label}: largest relative change of gap or tangency (of those above "
      f"{FLOOR:g})",
      value,
      wanted["invariance"],
    )
  return lines


def _changes(pairs: list[record.Row]) -> dict[str, float]:
  """By change of scale, the largest over the pairs."""
  found: dict[str, float] = {}
  for row in pairs:
    for key in row:
      label, _, what = key.partition("/")
      if " times " in label:
        before, after = (row[f"{x}/{what}"] for x in ("as it is", label))
        change = float("inf")
        if None not in (before, after):
          change = abs(after - before) / max(abs(before), FLOOR)
        found[label] = max(found.get(label, 0.0), change)
  return found

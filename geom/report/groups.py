"""Claims judged by groups of seeds, so that luck of one group shows."""

from collections.abc import Sequence
from typing import NamedTuple

from geom.record import Row
from geom.report import claims as claims_of
from geom.report import markdown as md
from geom.report import series
from geom.report.claims import Claim, Judged

RULE = """\
Claims are judged in groups of {size} seeds. In a group a claim *reproduces* if
every seed and mean ± 2 sd are within its rule, and *does not reproduce* if all
of these are outside of it, on one side; else, the bound lying within the spread
over seeds, it is *undecided*. Verdicts that differ between groups make it
*undecided* too. Numbers are of all seeds; seeds short of a group are not
judged. The rules are the section `claims` of the config."""


class Grouped(NamedTuple):
  """A claim with what all seeds say, and what each group of them does.

  Attributes:
    all: of all seeds.
    verdicts: of every group.
    verdict: what they come to.
  """

  all: Judged
  verdicts: tuple[str, ...]
  verdict: str


def judge(claim: Claim, rows: Sequence[Row], size: int) -> Grouped | None:
  """The verdict on a claim, or None where the run has nothing to say of it.

  Args:
    claim: to be judged.
    rows: of `metrics.jsonl`.
    size: seeds in a group: the first so many, the next so many.
  """
  together = claims_of.judge(claim, rows)
  if together is None:
    return None
  seeds = series.seeds(rows, claim.condition)
  groups = [seeds[i : i + size] for i in range(0, len(seeds) - size + 1, size)]
  verdicts = []
  for group in groups:
    mine = [r for r in rows if r.get("seed") is None or r["seed"] in group]
    of = claims_of.judge(claim, mine)
    verdicts.append("undecided" if of is None else of.verdict)
  return Grouped(together, tuple(verdicts), _joined(verdicts, len(seeds), size))


def _joined(verdicts: Sequence[str], seeds: int, size: int) -> str:
  if not verdicts:
    return f"undecided ({seeds} of the {size} seeds of a group)"
  if len(verdicts) == 1:
    return f"{verdicts[0]} (one group)"
  if len(set(verdicts)) > 1:
    return f"undecided (groups: {'; '.join(verdicts)})"
  return f"{verdicts[0]} ({len(verdicts)} groups)"


def table(judged: Sequence[Grouped]) -> str:
  """Claims with rules, numbers and verdicts, as a Markdown table."""
  head = ["claim", "condition", "paper", "ours (mean ± sd)", "chance", "seeds",
          "step", "rule", "verdict"]  # fmt: skip
  lines = []
  for of in judged:
    claim, seen = of.all.claim, of.all
    lines.append(
      [
        claim.text,
        f"`{claim.condition}`",
        claim.paper,
        f"{md.number(seen.mean)} ± {md.number(seen.spread)}",
        md.number(claim.chance),
        str(seen.seeds),
        "–" if seen.step is None else str(seen.step),
        claims_of.bounds(claim),
        f"**{of.verdict}**",
      ]
    )
  return md.table(head, lines)

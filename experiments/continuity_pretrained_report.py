"""The report of `experiments.continuity_pretrained`."""

import pathlib

from experiments import continuity_pretrained_claims as claims
from geom import record
from geom.probes.continuity import chance_cosine
from geom.report import pretrained, pretrained_rows


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes figures, `report.md` and `summary.json` from what was measured.

  Returns:
    Nothing that failed.
  """
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  of = pretrained_rows.digest(rows)
  pretrained.write_report(
    workdir,
    rows,
    config=config,
    chance=chance_cosine,
    stable=claims.STABLE,
    verdicts=claims.verdicts(of, config["claims"]),
    correlations=claims.correlations(of),
  )
  return {}

"""The geometry of weights that others trained (arXiv 2605.04971, section LLMs).

Reads a checkpoint kernel by kernel and says of every projection whether the
leading singular vectors of its layers agree, on which side, and how much of its
energy a basis common to several layers keeps.
"""

import pathlib
import sys
import time
from typing import Any

import tqdm

from experiments import continuity_pretrained_loss as losses
from experiments.continuity_pretrained_config import check, is_packaged
from experiments.continuity_pretrained_report import report
from geom import config as cfg
from geom import record
from geom.data import fetch, smollm2
from geom.train.checkpoint import ResumeError
from geom.train.stop import StopSignal
from geom.weights import families, opening, plan, resuming, source, streaming
from geom.weights.families import Found
from geom.weights.kernels import Matrix

__all__ = ["check", "report", "run"]  # What `launch.py` asks of it.


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Analyses what is not analysed yet, and reports.

  Returns:
    Nothing that failed; problems of single tensors are in the report.

  Raises:
    DataError, ResumeError, Stopped: see where they are defined. SourceError,
      a DataError: nothing of the source can be used.
  """
  del profile  # Nothing here is compiled.
  weights = _open(config, data_dir)
  whole = families.recognise(weights, config["family"])
  found = _wanted(whole, config)
  if config["loss"]["enabled"]:
    losses.require(weights, whole)
  for problem in dict.fromkeys([*weights.problems, *found.problems]):
    fetch.say(problem)
  writer = record.Writer(workdir / "metrics.jsonl")
  before = [r for r in record.read(writer.path) if r["kind"] != "event"]
  folded = config["analysis"]["folded"]
  current, changed = resuming.compare(found, before, folded)
  if changed:
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    raise ResumeError(
      f"{workdir} holds the analysis of other weights; changed or gone: "
      f"{', '.join(changed[:3])}{more}"
    )
  with StopSignal() as stop:
    _analyse(config, weights, found, workdir, writer, before, current, stop)
    rows = record.read(writer.path)
    if not any(r["kind"] == "matrix" and "s" in r for r in rows):
      first = next((r["problem"] for r in rows if "problem" in r), "none there")
      raise source.SourceError(
        f"{weights.path}: no kernel could be read; {first}"
      )
    if config["loss"]["enabled"]:
      edited = whole._replace(sides=found.sides)
      losses.run(config["loss"], weights, edited, writer, data_dir, stop)
  return report(workdir)


def _open(config: dict[str, Any], data_dir: pathlib.Path) -> source.Source:
  if is_packaged(config):
    return opening.open_source(smollm2.prepare(data_dir))
  text = config["source"].replace("DATA_DIR", str(data_dir))
  path = pathlib.Path(text).expanduser()
  if not path.exists() and config["what"]:
    raise source.SourceError(
      f"{path} is not there; put there {config['what']}, or say "
      "--config.source=PATH"
    )
  return opening.open_source(path, seed_index=config["seed_index"])


def _name(weights: source.Source) -> str:
  """Of the file; of a checkpoint of ours its run, condition and step too."""
  parts = weights.path.absolute().parts
  if weights.format == "checkpoint":
    return "/".join(parts[-4:])
  return "/".join(parts[-2:] if parts[-1].startswith("model.") else parts[-1:])


def _wanted(found: Found, config: dict[str, Any]) -> Found:
  """The projections that the config asks for."""
  wanted = config["analysis"]["projections"] or tuple(found.matrices)
  for name in wanted:
    if name not in found.matrices:
      raise cfg.ConfigError(
        f"config.analysis.projections: no {name!r}; there are "
        f"{', '.join(found.matrices)}"
      )
  matrices = {p: found.matrices[p] for p in found.matrices if p in wanted}
  mine, others = (
    {
      m.problem
      for p, of in found.matrices.items()
      for m in of
      if (p in matrices) == wanted
    }
    for wanted in (True, False)
  )
  return found._replace(
    matrices=matrices,
    sides={p: found.sides[p] for p in matrices},
    problems=tuple(p for p in found.problems if p in mine or p not in others),
  )


def _analyse(
  config: dict[str, Any],
  weights: source.Source,
  found: Found,
  workdir: pathlib.Path,
  writer: record.Writer,
  before: list[record.Row],
  current: set[tuple[str, int]],
  stop: StopSignal,
) -> None:
  section = {k: v for k, v in config["analysis"].items() if k != "projections"}
  section["workers"] = section["workers"] or streaming.cores()
  settings = streaming.Settings(**section)
  speed = plan.rates(found)
  stacks = found.matrices.values()
  planned = plan.plan(found, settings, speed, current)
  if planned.seconds:
    fetch.say(plan.line(found, planned, speed))
  event = {"step": 0, "kind": "event", "condition": "weights"}
  writer.write(
    [
      {
        **event,
        "event": "start",
        "source": _name(weights),
        "format": weights.format,
        "family": found.family,
        "layers": found.layers,
        "sides": found.sides,
        "gigabytes": sum(m.nbytes for of in stacks for m in of) / 1e9,
        "planned_seconds": sum(planned.seconds.values()),
        "gflops": speed.flops / 1e9,
        "problems": list(dict.fromkeys([*weights.problems, *found.problems])),
      }
    ]
  )
  start = time.perf_counter()
  fresh = 0.0
  said = set(found.problems)
  with tqdm.tqdm(
    total=sum(planned.seconds.values()),
    unit="s",
    disable=not planned.seconds,
    bar_format="{desc}{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left",
  ) as bar:

    def advance(matrix: Matrix) -> None:
      bar.set_description_str(f"{matrix.projection} {matrix.layer} ", False)
      bar.update(planned.seconds.get((matrix.projection, matrix.layer), 0))

    def stopping() -> None:
      stop.raise_if_received("between kernels, what is done is kept")

    try:
      for projection in found.matrices:
        for row in streaming.analyse(
          found,
          projection,
          settings,
          vectors=workdir / "vectors" / projection,
          before=before,
          current=current,
          advance=advance,
          stop=stopping,
        ):
          writer.write([row])
          if row["kind"] == "matrix":
            fresh += found.matrices[projection][row["layer"]].nbytes / 1e9
          for key in ("problem", "gain_problem"):
            if row.get(key) and row[key] not in said:
              said.add(row[key])
              bar.write(f"geom: {row[key]}", file=sys.stderr)
    finally:
      bar.close()
      _analysed(writer, event, fresh, time.perf_counter() - start)


def _analysed(
  writer: record.Writer, event: record.Row, gigabytes: float, seconds: float
) -> None:
  """Keeps and says how long that took, also of a part."""
  if gigabytes:
    row = {"event": "analysed", "seconds": seconds, "gigabytes": gigabytes}
    writer.write([{**event, **row}])
    fetch.say(f"analysed {gigabytes:.2f} GB in {plan.span(seconds)}")

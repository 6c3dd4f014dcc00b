"""Geometric continuity of a Llama-style transformer (arXiv 2605.04971).

Trains a small language model a condition and seed and measures of every
projection, Q, K, V, O, Gate, Up and Down, whether the leading singular vectors
of adjacent layers agree: in weights, gradients and what training has added.
"""

import pathlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.continuity_lm_config import (
  check,
  heads_of,
  how_taken,
  optimizer,
)
from experiments.continuity_lm_report import report
from geom import record
from geom.conditions import changed
from geom.data import tokens
from geom.models.base import Params
from geom.models.llama import llama
from geom.optim.assignment import Assignment
from geom.train import language, projections
from geom.train.grid import log_and_every
from geom.train.objectives import next_token_loss
from geom.train.run import Measure, Setup
from geom.train.stop import StopSignal
from geom.train.watch import Watch

__all__ = ["check", "report", "run"]  # What `launch.py` asks of it.


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Trains every condition, or what is left of them, and reports.

  Returns:
    The failures: condition -> seed -> the step whose loss or gradient was
    not finite.

  Raises:
    DataError, ResumeError, Stopped: see where they are defined.
  """
  writer = record.Writer(workdir / "metrics.jsonl")
  with StopSignal() as stop:
    for name, change in config["conditions"].items():
      settings = changed(config, change)
      data = language.load(settings, data_dir)
      assignment = optimizer(settings)
      language.train_condition(
        name,
        settings,
        _setup(settings, data, assignment),
        data=data,
        assignment=assignment,
        workdir=workdir,
        writer=writer,
        stop=stop,
        profile=profile,
      )
      stop.raise_if_received(f"after {name}, saved")
  return report(workdir)


def _setup(
  settings: dict[str, Any], data: tokens.Tokens, assignment: Assignment
) -> Setup:
  """The pure functions of one condition."""
  model = llama(**settings["model"])
  loss = partial(next_token_loss, model, chunk=settings["train"]["loss_chunk"])
  length = settings["model"]["context"] + 1
  section, evaluation = settings["probe"], settings["eval"]
  held_out = tokens.validation_windows(data, evaluation["windows"], length)
  # Fixed, the same for every seed and step.
  examples = tokens.spaced_windows(data.train, section["windows"], length)
  batch = {"tokens": jnp.asarray(examples)}

  def gradients(params: Params) -> tuple[Params, dict[str, Any]]:
    return jax.grad(loss, has_aux=True)(params, batch)[0], {}

  due = partial(log_and_every, num_steps=settings["train"]["num_steps"])
  measures = [
    Measure(
      "probe",
      due(**{k: section[k] for k in ("per_decade", "every", "first")}),
      projections.make_probe(
        gradients,
        heads=heads_of(settings) if section["heads"] else None,
        **how_taken(settings),
      ),
    ),
    Measure(
      "eval",
      due(per_decade=0, every=evaluation["every"]),
      partial(language.evaluate, loss, held_out, evaluation["batch_size"]),
    ),
  ]
  how = {"probe": how_taken(settings)}
  if settings["spread"]["names"]:
    how["spread"] = how_taken(settings, "spread")
    measures.append(
      Measure(
        "probe",
        due(per_decade=0, every=settings["spread"]["every"]),
        projections.make_probe(gradients, name="spread", **how["spread"]),
      )
    )
  return Setup(
    init=model.init,
    loss=loss,
    tx=assignment.tx,
    reference=partial(projections.reference_of, sections=how),
    measures=measures,
    project=assignment.project,
    watch=Watch(**settings["watch"], saturation=None, saturation_of=None),
  )

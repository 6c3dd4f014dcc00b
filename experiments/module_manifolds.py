"""Different layers, different manifolds (arXiv 2606.13276), on GPT-2.

Trains a GPT-2 a condition and seed, its kernels free or on manifolds module by
module, and measures by which signs attention blows up where it does: singular
values, logits, entropy, saturation, in which order; and continuity beside.
"""

import pathlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from experiments.module_config import check, how_taken, optimizer
from experiments.module_report import report
from geom import record, roles
from geom.conditions import changed
from geom.data import tokens
from geom.models.base import LanguageModel, Params, Seen, Taps
from geom.models.gpt2 import gpt2
from geom.optim.assignment import Assignment
from geom.optim.directions import directions, momentum
from geom.probes.attention import (
  attention_numbers,
  mlp_numbers,
  query_key_norms,
)
from geom.train import language, projections
from geom.train.grid import log_and_every
from geom.train.objectives import next_token_loss
from geom.train.run import Measure, Setup
from geom.train.state import State
from geom.train.step import Loss
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
  model = gpt2(**settings["model"])
  length = settings["model"]["context"] + 1
  chunk = settings["train"]["loss_chunk"]
  loss = partial(next_token_loss, model, chunk=chunk)
  num_steps = settings["train"]["num_steps"]
  section, evaluation = settings["probe"], settings["eval"]
  held_out = tokens.validation_windows(data, evaluation["windows"], length)
  # Fixed, the same for every seed and step.
  examples = tokens.spaced_windows(data.train, section["windows"], length)
  take = make_probe(
    model, loss, examples, assignment, settings["model"]["heads"],
    how_taken(settings),
  )  # fmt: skip
  watch = settings["watch"]
  return Setup(
    init=model.init,
    loss=loss,
    tx=assignment.tx,
    reference=lambda params: {
      "projections": projections.reference_of(
        params, {"probe": how_taken(settings)}
      ),
      "saturation": jnp.zeros(()),
    },
    measures=[
      Measure(
        "probe",
        log_and_every(
          per_decade=section["per_decade"],
          every=section["every"],
          first=section["first"],
          num_steps=num_steps,
        ),
        take,
      ),
      Measure(
        "eval",
        log_and_every(
          per_decade=0, every=evaluation["every"], num_steps=num_steps
        ),
        partial(language.evaluate, loss, held_out, evaluation["batch_size"]),
      ),
    ],
    project=assignment.project,
    watch=Watch(
      **watch, saturation_of=lambda reference: reference["saturation"]
    ),
  )


def make_probe(
  model: LanguageModel,
  loss: Loss,
  examples: Int[np.ndarray, "b t"],
  assignment: Assignment,
  heads: int,
  how: dict[str, Any],
) -> Any:
  """All that is measured of a state on fixed examples, for `Measure`.

  Args:
    model: whose attention and MLPs are looked at.
    loss: whose gradients are.
    examples: windows of training tokens.
    assignment: whose directions are.
    heads: of the model.
    how: names, stacks, method and k of the probes of all projections.
  """
  batch = {"tokens": jnp.asarray(examples)}

  def gradients(params: Params) -> tuple[Params, dict[str, Any]]:
    return jax.grad(loss, has_aux=True)(params, batch)[0], {}

  continuity = projections.make_probe(gradients, **how)

  def probe(state: State) -> tuple[dict[str, Any], Any]:
    _, taps = model.features(state.params, batch["tokens"][:, :-1], tap=tapped)
    kernels = roles.projections(state.params)
    norms = query_key_norms(kernels["q"], kernels["k"], heads)
    moved = directions(
      assignment.table, state.params, momentum(state.opt_state)
    )
    numbers, reference = continuity(
      state._replace(reference=state.reference["projections"])
    )
    numbers = {
      **numbers,
      **taps,
      "attention/qk_sigma": norms,
      **{f"{p}/{k}": x for p, of in moved.items() for k, x in of.items()},
    }
    saturation = jnp.mean(taps["attention/saturation"])
    return numbers, {"projections": reference, "saturation": saturation}

  return probe


def tapped(seen: Seen) -> Taps:
  """What is measured of one layer while the model runs."""
  named = {
    "attention": attention_numbers(seen["logits"]),
    "mlp": mlp_numbers(seen["preactivation"]),
  }
  stream = seen["stream"].astype(jnp.float32)
  return {
    **{f"{part}/{k}": x for part, of in named.items() for k, x in of.items()},
    "stream/rms": jnp.sqrt(jnp.mean(stream**2)),
  }

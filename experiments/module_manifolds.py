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
from jaxtyping import Array, Int

from experiments.module_config import check, how_taken, optimizer
from experiments.module_report import report
from geom import record, roles
from geom.conditions import changed
from geom.data import tokens, windows
from geom.models.base import LanguageModel, Params, Seen, Taps
from geom.models.gpt2 import gpt2
from geom.optim.assignment import Assignment
from geom.optim.directions import directions, momentum
from geom.probes.attention import (
  attention_numbers,
  mlp_numbers,
  query_key_norms,
)
from geom.train import projections
from geom.train.assignments import say_table
from geom.train.checkpoint import Checkpoints
from geom.train.grid import log_and_every
from geom.train.objectives import next_token_loss
from geom.train.run import Measure, Setup, run_condition
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
      data = load(settings, data_dir)
      assignment = optimizer(settings)
      source = _windows(settings, data)
      setup = _setup(settings, data, assignment)
      say_table(assignment.table, name, workdir)
      _say_data(name, data, writer)
      run_condition(
        setup,
        condition=name,
        seeds=settings["seeds"],
        data=windows.iterator(source),
        num_steps=settings["train"]["num_steps"],
        steps_per_dispatch=settings["train"]["steps_per_dispatch"],
        log_every=settings["train"]["log_every"],
        checkpoints=Checkpoints(
          workdir / "checkpoints" / name, **settings["checkpoint"]
        ),
        meta=_meta(settings, data, source, assignment),
        writer=writer,
        stop=stop,
        profile=workdir / "profile" / name if profile else None,
      )
      stop.raise_if_received(f"after {name}, saved")
  return report(workdir)


def load(settings: dict[str, Any], data_dir: pathlib.Path) -> tokens.Tokens:
  """The tokens of a condition, prepared if need be.

  Raises:
    DataError: they cannot be had, or are too few for a window.
  """
  data = settings["data"]
  found = tokens.load(
    data_dir,
    source=data["source"],
    tokenizer=data["tokenizer"],
    vocabulary=settings["model"]["vocabulary"],
    train_files=data["train_files"],
    validation_files=data["validation_files"],
    end_of_text=data["end_of_text"],
  )
  tokens.require(found, settings["model"]["context"] + 1)
  return found


def _say_data(name: str, data: tokens.Tokens, writer: record.Writer) -> None:
  """Writes an event with what the data is, once a condition."""
  rows = record.read(writer.path)
  if any(r.get("event") == "data" and r["condition"] == name for r in rows):
    return
  event = {"step": 0, "kind": "event", "condition": name, "event": "data"}
  sizes = {
    "train_tokens": len(data.train),
    "validation_tokens": len(data.validation),
    "unigram_loss": tokens.unigram_loss(data),
  }
  writer.write([{**event, **sizes}])


def _windows(settings: dict[str, Any], data: tokens.Tokens) -> windows.Windows:
  return windows.Windows(
    data.train,
    batch_size=settings["data"]["batch_size"],
    length=settings["model"]["context"] + 1,
    seeds=settings["seeds"],
    num_steps=settings["train"]["num_steps"],
    order=settings["data"]["order"],
  )


def _meta(
  settings: dict[str, Any],
  data: tokens.Tokens,
  source: windows.Windows,
  assignment: Assignment,
) -> dict[str, Any]:
  """What a checkpoint is of, besides what its arrays say."""
  named = {k: v for k, v in settings["optim"].items() if k != "assignment"}
  return record.plain(
    {
      "data": data.fingerprint,
      "order": source.fingerprint(),
      "model": settings["model"],
      "optim": named,
      "num_steps": settings["train"]["num_steps"],
      "watch": settings["watch"],
      "assignment": assignment.fingerprint,
    }
  )


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
        partial(evaluate, loss, held_out, evaluation["batch_size"]),
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


def evaluate(
  loss: Loss,
  held_out: Int[np.ndarray, "n t"],
  batch_size: int,
  state: State,
) -> tuple[dict[str, Array], Any]:
  """Loss on fixed windows, in nats a token, some windows at a time."""
  size = min(batch_size, len(held_out))
  whole = len(held_out) // size * size
  parts = jnp.asarray(held_out[:whole]).reshape(-1, size, held_out.shape[1])
  each = jax.lax.map(
    lambda part: loss(state.params, {"tokens": part})[0], parts
  )
  total = jnp.sum(each) * size
  if whole < len(held_out):
    rest = jnp.asarray(held_out[whole:])
    total += loss(state.params, {"tokens": rest})[0] * len(rest)
  return {"loss": total / len(held_out)}, state.reference

"""What every run of a language model does with its data and its loss."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from geom import record
from geom.data import tokens, windows
from geom.optim.assignment import Assignment
from geom.train.assignments import say_table
from geom.train.checkpoint import Checkpoints
from geom.train.run import Setup, run_condition
from geom.train.state import State
from geom.train.step import Loss
from geom.train.stop import StopSignal


def load(settings: dict[str, Any], data_dir: pathlib.Path) -> tokens.Tokens:
  """The tokens that a condition asks for, prepared if need be.

  Args:
    settings: of which `data` is read, and of `model` vocabulary and context.
    data_dir: the data folder.

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


def say_data(name: str, data: tokens.Tokens, writer: record.Writer) -> None:
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


def make_windows(
  settings: dict[str, Any], data: tokens.Tokens
) -> windows.Windows:
  """Which windows of the training tokens each seed sees, in which order."""
  return windows.Windows(
    data.train,
    batch_size=settings["data"]["batch_size"],
    length=settings["model"]["context"] + 1,
    seeds=settings["seeds"],
    num_steps=settings["train"]["num_steps"],
    order=settings["data"]["order"],
  )


def train_condition(
  name: str,
  settings: dict[str, Any],
  setup: Setup,
  *,
  data: tokens.Tokens,
  assignment: Assignment,
  workdir: pathlib.Path,
  writer: record.Writer,
  stop: StopSignal,
  profile: bool,
) -> None:
  """Trains all seeds of a condition, or what is left of that, and says so.

  Args:
    name: of the condition.
    settings: its sections.
    setup: its pure functions.
    data, assignment: what it is trained on, and how.
    workdir, writer, stop: of the run.
    profile: whether to write a trace.

  Raises:
    ResumeError, Stopped: see `geom.train.run.run_condition`.
  """
  source = make_windows(settings, data)
  say_table(assignment.table, name, workdir)
  say_data(name, data, writer)
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
    meta=meta_of(settings, data, source, assignment),
    writer=writer,
    stop=stop,
    profile=workdir / "profile" / name if profile else None,
  )


def meta_of(
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

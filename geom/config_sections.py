"""Sections of the config of a language model that several experiments share.

Their schemas, what a schema cannot say, and the optimizer that they ask for.
"""

from typing import Annotated, Any, Literal

import optax
from pydantic import AfterValidator, Field

from geom import config as cfg
from geom.data import fetch, tokenizing, tokens, windows
from geom.optim.assignment import Assignment, assign, warmup_cosine
from geom.optim.solvers import SOLVERS

Share = Annotated[float, Field(gt=0, le=1)]


def _named_or_rules(value: Any) -> Any:
  if not isinstance(value, (str, dict)):
    raise ValueError("should be the name of an assignment, or rules")
  return value


class OptimSection(cfg.Section):
  assignment: Annotated[Any, AfterValidator(_named_or_rules)]
  lr: cfg.NonNegative
  momentum: cfg.Fraction
  adamw_lr: cfg.NonNegative
  adamw_betas: tuple[cfg.Fraction, cfg.Fraction]
  adamw_weight_decay: cfg.NonNegative
  clip: cfg.Positive | None
  warmup_steps: cfg.Natural
  solver: Literal[tuple(SOLVERS)]
  fused: Literal["split", "whole"]
  faithful: bool


class DataSection(cfg.Section):
  source: Literal[tokens.SOURCES]
  tokenizer: Literal[tokenizing.TOKENIZERS]
  train_files: tuple[str, ...]
  validation_files: tuple[str, ...]
  end_of_text: cfg.Natural | None
  order: Literal[windows.ORDERS]
  batch_size: cfg.Count


class TrainSection(cfg.Section):
  num_steps: Annotated[int, Field(ge=1, lt=2**31)]
  steps_per_dispatch: cfg.Count
  log_every: cfg.Count
  loss_chunk: cfg.Count | None


class EvalSection(cfg.Section):
  every: cfg.Count | None
  windows: cfg.Count
  batch_size: cfg.Count


class WatchSection(cfg.Section):
  margin: cfg.Positive
  smoothing: cfg.Count
  patience: cfg.Count
  saturation: Share | None
  stop: bool


class CheckpointSection(cfg.Section):
  every: cfg.Count | None
  keep: cfg.Count
  keep_every: cfg.Count | None


def require_data(data: dict[str, Any], vocabulary: int) -> None:
  """Raises ValueError for data that no file can make right."""
  files = {k: data[k] for k in ("train_files", "validation_files")}
  if data["source"] == "files":
    for name, paths in files.items():
      if not paths:
        raise ValueError(f"config.data.{name}: source=files needs some")
    if data["order"] == "packed" and data["end_of_text"] is None:
      raise ValueError(
        "config.data.end_of_text: order=packed needs it, the id between "
        "documents"
      )
    return
  for name, value in {**files, "end_of_text": data["end_of_text"]}.items():
    if value not in ((), None):
      raise ValueError(f"config.data.{name}: source=files alone takes it")
  try:
    tokenizing.check(data["tokenizer"], vocabulary)
  except fetch.DataError as error:
    raise ValueError(f"config.model.vocabulary: {error}") from None


def optimizer(settings: dict[str, Any], shapes: Any) -> Assignment:
  """The optimizer that the section `optim` asks for. Uses no device.

  Both learning rates go up in a line for `warmup_steps`, then down to a tenth
  by half a cosine.

  Args:
    settings: of which `optim` and `train` are read.
    shapes: of the model's parameters, like them.

  Raises:
    ValueError: `assign` says why.
  """
  optim, train = dict(settings["optim"]), settings["train"]
  warmup_steps = optim.pop("warmup_steps")
  if warmup_steps >= train["num_steps"]:
    raise ValueError(
      f"config.optim.warmup_steps: {warmup_steps} leave nothing of "
      f"{train['num_steps']} steps"
    )
  for rate in ("lr", "adamw_lr"):
    optim[rate] = schedule(settings, rate)
  if optim["faithful"]:
    # It chooses these.
    for name, usual in (("solver", "auto"), ("fused", "whole")):
      if optim.pop(name) != usual:
        raise ValueError(f"config.optim.{name}: faithful wants {usual}")
  return assign(shapes, optim.pop("assignment"), **optim)


def schedule(settings: dict[str, Any], rate: str) -> optax.Schedule:
  """The rate `lr` or `adamw_lr` of every step."""
  return warmup_cosine(
    settings["optim"][rate],
    num_steps=settings["train"]["num_steps"],
    warmup_steps=settings["optim"]["warmup_steps"],
  )

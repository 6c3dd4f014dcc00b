"""What a config of `module_manifolds` may say, and what it means."""

import functools
from typing import Annotated, Any, Literal

import jax
import optax
from ml_collections import ConfigDict
from pydantic import AfterValidator, Field

from geom import conditions
from geom import config as cfg
from geom.data import fetch, tokenizing, tokens, windows
from geom.models import attention
from geom.models.base import DTYPES
from geom.models.gpt2 import QKV, gpt2
from geom.optim.assignment import Assignment, assign, warmup_cosine
from geom.optim.solvers import SOLVERS
from geom.probes import suite
from geom.train import probing

Share = Annotated[float, Field(gt=0, le=1)]


class ModelSection(cfg.Section):
  vocabulary: Annotated[int, Field(ge=2, le=2**16)]
  context: Annotated[int, Field(ge=2, le=2**20)]
  width: Annotated[int, Field(ge=2)]
  depth: Annotated[int, Field(ge=2)]
  heads: cfg.Count
  qkv: Literal[QKV]
  init_std: cfg.Positive
  embed_std: cfg.Positive
  qk_norm: bool
  logit_cap: cfg.Positive | None
  attention: Literal[attention.METHODS]
  dtype: Literal[tuple(DTYPES)]
  remat: bool
  unroll: cfg.Count


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


class ProbeSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Literal["weights", "gradients", "updates"], ...]
  method: Literal[probing.METHODS]
  k: Annotated[int, Field(ge=2)] | None
  windows: cfg.Count
  first: Annotated[int, Field(ge=0, le=100_000)]
  per_decade: Annotated[int, Field(ge=0, le=1000)]
  every: cfg.Count | None


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


class Schema(cfg.Section):
  """A config of this experiment, and, without `conditions`, one condition."""

  experiment: Literal["module_manifolds"]
  seeds: cfg.Seeds
  model: ModelSection
  optim: OptimSection
  data: DataSection
  train: TrainSection
  eval: EvalSection
  probe: ProbeSection
  watch: WatchSection
  checkpoint: CheckpointSection


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: see `geom.conditions.check`.
  """
  return conditions.check(config, Schema, _require)


def _require(settings: dict[str, Any]) -> None:
  """Raises ValueError for what the schema cannot say."""
  optimizer(settings)
  probing.require(**how_taken(settings))
  k, width = settings["probe"]["k"], settings["model"]["width"]
  if k is not None and k > width:
    raise cfg.ConfigError(f"config.probe.k: {k} is above the width")
  _require_data(settings["data"], settings["model"]["vocabulary"])
  watch, every = settings["watch"], settings["probe"]["every"]
  patience = watch["patience"]
  if watch["saturation"] is not None and (every is None or every > patience):
    raise ValueError(
      "config.watch.saturation: is measured by probes, so it wants "
      f"config.probe.every at most {patience}, the patience; it is {every}"
    )


def _require_data(data: dict[str, Any], vocabulary: int) -> None:
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


def optimizer(settings: dict[str, Any]) -> Assignment:
  """The optimizer of a condition, for its model. Uses no device.

  Both learning rates go up in a line for `warmup_steps`, then down to a tenth
  by half a cosine.

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
  shapes = _shapes(**settings["model"])
  for rate in ("lr", "adamw_lr"):
    optim[rate] = schedule(settings, rate)
  if optim["faithful"]:
    # It chooses these.
    for name, usual in (("solver", "auto"), ("fused", "whole")):
      if optim.pop(name) != usual:
        raise ValueError(f"config.optim.{name}: faithful wants {usual}")
  return assign(shapes, optim.pop("assignment"), **optim)


@functools.cache
def _shapes(**model: Any) -> Any:
  """The shapes of a model's parameters; many conditions share a model."""
  init = gpt2(**model).init
  return jax.eval_shape(lambda: init(jax.random.key(0)))


def schedule(settings: dict[str, Any], rate: str) -> optax.Schedule:
  """The rate `lr` or `adamw_lr` of every step."""
  return warmup_cosine(
    settings["optim"][rate],
    num_steps=settings["train"]["num_steps"],
    warmup_steps=settings["optim"]["warmup_steps"],
  )


def how_taken(settings: dict[str, Any]) -> dict[str, Any]:
  """What of the probe's section says what is taken, not when."""
  section = settings["probe"]
  return {key: section[key] for key in ("names", "stacks", "method", "k")}

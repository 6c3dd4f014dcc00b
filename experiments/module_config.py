"""What a config of `module_manifolds` may say, and what it means."""

import functools
from typing import Annotated, Any, Literal

import jax
from ml_collections import ConfigDict
from pydantic import Field

from geom import conditions
from geom import config as cfg
from geom import config_sections as sections
from geom.models import attention
from geom.models.base import DTYPES
from geom.models.gpt2 import QKV, gpt2
from geom.optim.assignment import Assignment
from geom.probes import suite
from geom.train import probing


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


class ProbeSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Literal["weights", "gradients", "updates"], ...]
  method: Literal[probing.METHODS]
  k: Annotated[int, Field(ge=2)] | None
  windows: cfg.Count
  first: Annotated[int, Field(ge=0, le=100_000)]
  per_decade: Annotated[int, Field(ge=0, le=1000)]
  every: cfg.Count | None


class Schema(cfg.Section):
  """A config of this experiment, and, without `conditions`, one condition."""

  experiment: Literal["module_manifolds"]
  seeds: cfg.Seeds
  model: ModelSection
  optim: sections.OptimSection
  data: sections.DataSection
  train: sections.TrainSection
  eval: sections.EvalSection
  probe: ProbeSection
  watch: sections.WatchSection
  checkpoint: sections.CheckpointSection


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
  sections.require_data(settings["data"], settings["model"]["vocabulary"])
  watch, every = settings["watch"], settings["probe"]["every"]
  patience = watch["patience"]
  if watch["saturation"] is not None and (every is None or every > patience):
    raise ValueError(
      "config.watch.saturation: is measured by probes, so it wants "
      f"config.probe.every at most {patience}, the patience; it is {every}"
    )


def optimizer(settings: dict[str, Any]) -> Assignment:
  """The optimizer of a condition, for its model. Uses no device.

  Raises:
    ValueError: see `geom.config_sections.optimizer`.
  """
  return sections.optimizer(settings, _shapes(**settings["model"]))


@functools.cache
def _shapes(**model: Any) -> Any:
  """The shapes of a model's parameters; many conditions share a model."""
  init = gpt2(**model).init
  return jax.eval_shape(lambda: init(jax.random.key(0)))


def how_taken(settings: dict[str, Any]) -> dict[str, Any]:
  """What of the probe's section says what is taken, not when."""
  section = settings["probe"]
  return {key: section[key] for key in ("names", "stacks", "method", "k")}

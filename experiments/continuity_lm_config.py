"""What a config of `experiments.continuity_lm` may say, and what it means."""

import functools
from typing import Annotated, Any, Literal

import jax
from ml_collections import ConfigDict
from pydantic import Field

from geom import conditions
from geom import config as cfg
from geom import config_sections as sections
from geom.models import activations, attention
from geom.models.base import DTYPES
from geom.models.llama import NORMS, llama
from geom.optim.assignment import Assignment
from geom.probes import suite
from geom.train import probing

Pairs = Literal["weights", "folded", "gradients", "updates"]


class ModelSection(cfg.Section):
  vocabulary: Annotated[int, Field(ge=2, le=2**16)]
  context: Annotated[int, Field(ge=2, le=2**20)]
  width: Annotated[int, Field(ge=2)]
  depth: Annotated[int, Field(ge=2)]
  heads: cfg.Count
  kv_heads: cfg.Count
  head_width: Annotated[int, Field(ge=2)] | None
  hidden: Annotated[int, Field(ge=2)]
  activation: Literal[activations.NAMES]
  radius: cfg.Positive
  norm: Literal[NORMS]
  eps: cfg.Positive
  residual: bool
  mixing: Literal[attention.MIXINGS]
  value_activation: Literal[activations.NAMES]
  rope_base: cfg.Positive
  tied: bool
  init_std: cfg.Positive
  embed_std: cfg.Positive
  attention: Literal[attention.METHODS]
  dtype: Literal[tuple(DTYPES)]
  remat: bool
  unroll: cfg.Count


class ProbeSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Pairs, ...]
  method: Literal[probing.METHODS]
  k: Annotated[int, Field(ge=2)] | None
  heads: bool
  windows: cfg.Count
  first: Annotated[int, Field(ge=0, le=100_000)]
  per_decade: Annotated[int, Field(ge=0, le=1000)]
  every: cfg.Count | None


class SpreadSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Pairs, ...]
  method: Literal[tuple(suite.METHODS)]
  k: Annotated[int, Field(ge=2)] | None
  every: cfg.Count | None


class WatchSection(cfg.Section):
  margin: cfg.Positive
  smoothing: cfg.Count
  patience: cfg.Count
  stop: bool


class ClaimsSection(cfg.Section):
  learnt: cfg.NonNegative
  group: Annotated[int, Field(ge=2)]
  above_chance: cfg.Positive
  above_v: cfg.Positive
  v_at_most: cfg.Positive
  gradients_at_least: cfg.Positive
  nores_at_most: cfg.Positive
  lost_at_most: cfg.Positive
  kept_at_least: cfg.Positive
  v_gains: cfg.Positive
  spreads: cfg.Positive


class Schema(cfg.Section):
  """A config of this experiment, and, without `conditions`, one condition."""

  experiment: Literal["continuity_lm"]
  seeds: cfg.Seeds
  model: ModelSection
  optim: sections.OptimSection
  data: sections.DataSection
  train: sections.TrainSection
  eval: sections.EvalSection
  probe: ProbeSection
  spread: SpreadSection
  watch: WatchSection
  claims: ClaimsSection
  checkpoint: sections.CheckpointSection


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: see `geom.conditions.check`, or a condition changes sizes
      that the report has of all conditions at once.
  """

  def require(settings: dict[str, Any]) -> None:
    for key in SHARED:
      if settings["model"][key] != config["model"][key]:
        raise ValueError(f"config.model.{key}: is one for all conditions")
    if settings["claims"] != config["claims"].to_dict():
      raise ValueError("config.claims: are one for all conditions")
    _require(settings)

  return conditions.check(config, Schema, require)


# What chance levels and tables depend on.
SHARED = ("width", "depth", "heads", "kv_heads", "head_width", "hidden")


def _require(settings: dict[str, Any]) -> None:
  """Raises ValueError for what the schema cannot say."""
  optimizer(settings)
  for section in ("probe", "spread"):
    if section == "probe" or settings[section]["names"]:
      probing.require(**how_taken(settings, section))
    k = settings[section]["k"]
    least = min(x for shape in shapes_of(settings).values() for x in shape[1:])
    if k is not None and k > least:
      raise ValueError(f"config.{section}.k: {k} is above the least width")
  sections.require_data(settings["data"], settings["model"]["vocabulary"])


def optimizer(settings: dict[str, Any]) -> Assignment:
  """The optimizer of a condition, for its model. Uses no device.

  Raises:
    ValueError: see `geom.config_sections.optimizer`.
  """
  return sections.optimizer(settings, shapes(**settings["model"]))


@functools.cache
def shapes(**model: Any) -> Any:
  """The shapes of a model's parameters; many conditions share a model."""
  init = llama(**model).init
  return jax.eval_shape(lambda: init(jax.random.key(0)))


def shapes_of(settings: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
  """`(layer, in, out)` of every projection, by name."""
  blocks = shapes(**settings["model"])["blocks"]
  return {
    name: of["kernel"].shape
    for module in ("attention", "mlp")
    for name, of in blocks[module].items()
  }


def how_taken(settings: dict[str, Any], name: str = "probe") -> dict[str, Any]:
  """What of a probe's section says what is taken, not when."""
  section = settings[name]
  return {key: section[key] for key in ("names", "stacks", "method", "k")}


def heads_of(settings: dict[str, Any]) -> dict[str, int]:
  """How many heads each projection of attention has."""
  model = settings["model"]
  heads, kv_heads = model["heads"], model["kv_heads"]
  return {"q": heads, "k": kv_heads, "v": kv_heads, "o": heads}

"""What a config of `experiments.continuity_mlp` may say, and what it means."""

import pathlib
import re
from types import NoneType
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict
from pydantic import AfterValidator, Field

from experiments import continuity_optim
from geom import conditions, record
from geom import config as cfg
from geom.conditions import changed
from geom.models import activations
from geom.models.resmlp import FORMS, INITS, NORMS, resmlp
from geom.probes import suite
from geom.train import probing

Examples = Annotated[int, Field(ge=1, le=60_000)]


class ModelSection(cfg.Section):
  width: Annotated[int, Field(ge=2)]
  depth: Annotated[int, Field(ge=2)]
  activation: Literal[activations.NAMES]
  radius: cfg.Positive
  residual: bool
  form: Literal[FORMS]
  norm: Literal[NORMS]
  bias: bool
  init: Literal[INITS]
  gain: cfg.NonNegative


def _named_or_rules(value: Any) -> Any:
  if not isinstance(value, (str, dict, NoneType)):
    raise ValueError("should be the name of an assignment, rules, or None")
  return value


class OptimSection(cfg.Section):
  name: Literal[continuity_optim.NAMES]
  lr: cfg.NonNegative
  betas: tuple[cfg.Fraction, cfg.Fraction] | None
  eps: cfg.Positive | None
  momentum: cfg.Fraction | None
  adam_lr: cfg.NonNegative | None
  assignment: Annotated[Any, AfterValidator(_named_or_rules)]


class DataSection(cfg.Section):
  batch_size: Examples
  probe_examples: Examples


class TrainSection(cfg.Section):
  num_steps: Annotated[int, Field(ge=1, lt=2**31)]
  steps_per_dispatch: cfg.Count
  log_every: cfg.Count


class EvalSection(cfg.Section):
  every: cfg.Count | None


class ProbeSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Literal[probing.STACKS], ...]
  method: Literal[probing.METHODS]
  k: Annotated[int, Field(ge=2)] | None
  first: Annotated[int, Field(ge=0, le=100_000)]
  per_decade: Annotated[int, Field(ge=0, le=1000)]
  every: cfg.Count | None


class OrbitSection(cfg.Section):
  # Of float32, which larger ones would leave little of.
  angles: tuple[Annotated[cfg.Positive, Field(le=100)], ...]
  generators: cfg.Count
  examples: Examples
  every: cfg.Count | None


class CheckpointSection(cfg.Section):
  every: cfg.Count | None
  keep: cfg.Count
  keep_every: cfg.Count | None


class Schema(cfg.Section):
  """A config of this experiment, and, without `conditions`, one condition."""

  experiment: Literal["continuity_mlp"]
  checkpoints_of: Annotated[str, Field(min_length=1)] | None
  seeds: cfg.Seeds
  model: ModelSection
  optim: OptimSection
  data: DataSection
  train: TrainSection
  eval: EvalSection
  probe: ProbeSection
  full_probe: ProbeSection
  orbit: OrbitSection
  checkpoint: CheckpointSection


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says, in the base or
      with the changes of a condition, or there is no condition.
  """

  def require(settings: dict[str, Any]) -> None:
    for key in ("width", "depth"):
      if settings["model"][key] != config["model"][key]:
        raise cfg.ConfigError(f"config.model.{key}: is one for all conditions")
    resmlp(**settings["model"])
    continuity_optim.optimizer(settings)
    for section in ("probe", "full_probe"):
      probing.require(**how_taken(settings[section]))
      k, width = settings[section]["k"], settings["model"]["width"]
      if k is not None and k > width:
        raise cfg.ConfigError(f"config.{section}.k: {k} is above the width")

  checked = conditions.check(config, Schema, require)
  if checked["checkpoints_of"] is not None:
    _check_again(checked, trained_config(checked))
  return checked


# What may differ from the config of the run whose checkpoints are measured.
MEASURING = ("checkpoints_of", "eval", "probe", "full_probe", "orbit")


def trained_config(config: dict[str, Any]) -> dict[str, Any]:
  """The config of the run whose checkpoints are to be measured."""
  path = pathlib.Path(config["checkpoints_of"]).expanduser() / "config.json"
  try:
    return check(cfg.load(str(path)))
  except cfg.ConfigError as error:
    raise cfg.ConfigError(
      f"config.checkpoints_of: no config.json of a run in {path.parent} that "
      f"can be used ({error})"
    ) from None


def _check_again(config: dict[str, Any], trained: dict[str, Any]) -> None:
  """Raises ConfigError unless that run's checkpoints can be measured so."""
  differing = record.differing(
    record.plain(trained), record.plain(config), "config"
  )
  unlike = [
    entry for entry in differing if re.split(r"[. ]", entry)[1] not in MEASURING
  ]
  if unlike:
    raise cfg.ConfigError(
      f"config.checkpoints_of: that run has another {', '.join(unlike)}; "
      f"start from its config.json"
    )
  for name, change in config["conditions"].items():
    then = stacks_of(changed(trained, trained["conditions"][name]))
    lacks = sorted((stacks_of(changed(config, change)) - then) & REMEMBERED)
    if lacks:
      raise cfg.ConfigError(
        f"condition {name}: that run did not remember {', '.join(lacks)}"
      )
    folder = pathlib.Path(config["checkpoints_of"]).expanduser()
    folder = folder / "checkpoints" / name
    if not any(path.name.isdigit() for path in folder.glob("*")):
      raise cfg.ConfigError(f"condition {name}: no checkpoints in {folder}")


# Stacks that links of the optimizer remember while it trains.
REMEMBERED = {"gradient_sum", "optimizer_updates"}


def stacks_of(settings: dict[str, Any]) -> set[str]:
  """All stacks that a condition's probes read."""
  sections = (settings["probe"], settings["full_probe"])
  return {stack for s in sections if s["names"] for stack in s["stacks"]}


def how_taken(section: dict[str, Any]) -> dict[str, Any]:
  """What of a probe's section says what is taken, not when."""
  return {key: section[key] for key in ("names", "stacks", "method", "k")}

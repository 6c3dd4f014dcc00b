"""What may be in a config of `experiments.bench`, by variant."""

import shutil
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict
from pydantic import Field

from geom import config as cfg
from geom.models.gpt2 import gpt2
from geom.optim.solvers import SOLVERS


class StackSection(cfg.Section):
  layers: cfg.Count
  m: cfg.Count
  n: cfg.Count


class WarmSection(cfg.Section):
  k: cfg.Count
  block: cfg.Count
  iterations: cfg.Count
  residual: cfg.Positive
  change: cfg.NonNegative
  calls: cfg.Count


class TrainingSection(cfg.Section):
  width: Annotated[int, Field(ge=2)]
  depth: Annotated[int, Field(ge=2)]
  batch_size: Annotated[int, Field(ge=1, le=60_000)]
  lr: cfg.NonNegative
  num_steps: cfg.Count
  steps_per_dispatch: cfg.Count
  every: cfg.Count
  full_every: cfg.Count
  full_measured_every: cfg.Count
  num_examples: Annotated[int, Field(ge=1, le=60_000)]


class WantedSection(cfg.Section):
  spectrum: cfg.Positive
  warm: cfg.Positive
  default_share: cfg.Positive
  full_share: cfg.Positive


class Probes(cfg.Section):
  """A config of the variant `probes`."""

  experiment: Literal["bench"]
  variant: Literal["probes"]
  repeats: cfg.Count
  stack: StackSection
  warm: WarmSection
  training: TrainingSection
  wanted: WantedSection


Side = Annotated[int, Field(ge=2)]
Shapes = Annotated[tuple[tuple[Side, Side], ...], Field(min_length=1)]
Manifolds = Annotated[
  tuple[Literal["stiefel", "dgram"], ...], Field(min_length=1)
]
Spectra = Annotated[
  tuple[Literal["gaussian", "power", "exponential", "rank"], ...],
  Field(min_length=1),
]
Spreads = Annotated[
  tuple[Annotated[cfg.Number, Field(ge=1)], ...], Field(min_length=1)
]
Factors = tuple[cfg.Positive, ...]


class OptimumSection(cfg.Section):
  tolerance: cfg.Positive
  irls_rounds: cfg.Count
  admm_rounds: cfg.Natural


class WantedOfSolversSection(cfg.Section):
  tangency: cfg.Positive
  spectral_norm: cfg.Positive
  gap_share: cfg.Positive
  flops_share: cfg.Positive
  invariance: cfg.Positive


class Solvers(cfg.Section):
  """A config of the variants `solvers` and `solvers_near_square`."""

  experiment: Literal["bench"]
  variant: Literal["solvers", "solvers_near_square"]
  shapes: Shapes
  manifolds: Manifolds
  spreads: Spreads
  spectra: Spectra
  rank: cfg.Count
  solvers: tuple[str, ...]
  seeds: cfg.Seeds
  norm: cfg.Positive
  easy_norm: cfg.Positive
  repeats: cfg.Count
  scale_gradients: Factors
  scale_weights: Factors
  optimum: OptimumSection
  wanted: WantedOfSolversSection | None


class DualAscentSection(cfg.Section):
  iterations: cfg.Count
  layers: cfg.Count
  repeats: cfg.Count


class WantedOfOptimizerSection(cfg.Section):
  euclidean: cfg.Positive
  hetero: cfg.Positive
  dual_ascent: cfg.Positive
  of_peak: cfg.Positive


class Optimizer(cfg.Section):
  """A config of the variant `optimizer`."""

  experiment: Literal["bench"]
  variant: Literal["optimizer"]
  layouts: Annotated[tuple[Literal["split", "fused"], ...], Field(min_length=1)]
  layers: cfg.Count
  width: Side
  steps: cfg.Count
  momentum: cfg.Fraction
  lr: cfg.NonNegative
  repeats: cfg.Count
  peak_size: cfg.Count
  dual_ascent: DualAscentSection
  wanted: WantedOfOptimizerSection


class SpeedModelSection(cfg.Section):
  vocabulary: Side
  context: cfg.Count
  width: Side
  depth: cfg.Count
  heads: cfg.Count
  unroll: cfg.Count


class SizeSection(cfg.Section):
  model: SpeedModelSection
  batch_size: cfg.Count
  steps: cfg.Count
  loss_chunk: cfg.Count | None
  wanted: cfg.Positive


class Language(cfg.Section):
  """A config of the variant `language`."""

  experiment: Literal["bench"]
  variant: Literal["language"]
  sizes: Annotated[dict[str, SizeSection], Field(min_length=1)]
  lr: cfg.NonNegative
  repeats: cfg.Count
  torch_python: str | None
  run_over_bare: cfg.Positive


SCHEMAS = {
  "probes": Probes,
  "solvers": Solvers,
  "solvers_near_square": Solvers,
  "optimizer": Optimizer,
  "language": Language,
}


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says.
  """
  variant = cfg.choice(config, "variant", SCHEMAS)
  checked = cfg.check(config, SCHEMAS[variant])
  if variant == "probes":
    _check_probes(checked)
  elif variant.startswith("solvers"):
    _check_solvers(checked)
  elif variant == "language":
    _check_language(checked)
  elif checked["dual_ascent"]["layers"] > checked["layers"]:
    raise cfg.ConfigError(
      f"config.dual_ascent.layers: should be at most {checked['layers']}, "
      f"config.layers, got {checked['dual_ascent']['layers']}"
    )
  return checked


def _check_language(checked: dict[str, Any]) -> None:
  for name, size in checked["sizes"].items():
    try:
      gpt2(**size["model"])
    except ValueError as error:
      raise cfg.ConfigError(f"config.sizes.{name}.model: {error}") from None
  python = checked["torch_python"]
  if python is not None and shutil.which(python) is None:
    raise cfg.ConfigError(f"config.torch_python: no program {python!r}")


def _check_probes(checked: dict[str, Any]) -> None:
  warm, training = checked["warm"], checked["training"]
  most = min(checked["stack"]["m"], checked["stack"]["n"])
  if not warm["k"] <= warm["block"] <= most:
    raise cfg.ConfigError(
      f"config.warm.block: should be in {warm['k']}..{most}, "
      f"got {warm['block']}"
    )
  for key in ("full_measured_every", "num_steps"):
    if training[key] % training["every"]:
      raise cfg.ConfigError(
        f"config.training.{key}: should be a multiple of "
        f"{training['every']}, every, got {training[key]}"
      )


def _check_solvers(checked: dict[str, Any]) -> None:
  names = checked["solvers"]
  for name in names:
    if name not in SOLVERS:
      raise cfg.ConfigError(
        f"config.solvers: {name!r} is none of {', '.join(SOLVERS)}"
      )
  if lacks := {"auto", "dual_ascent"} - set(names):
    raise cfg.ConfigError(
      f"config.solvers: needs {' and '.join(sorted(lacks))}, got {names}"
    )
  for key in ("shapes", "manifolds", "spreads", "spectra", "solvers"):
    if len(set(checked[key])) < len(checked[key]):
      raise cfg.ConfigError(f"config.{key}: the same twice, {checked[key]}")
  least = min(min(shape) for shape in checked["shapes"])
  if "rank" in checked["spectra"] and checked["rank"] > least:
    raise cfg.ConfigError(
      f"config.rank: should be at most {least}, got {checked['rank']}"
    )

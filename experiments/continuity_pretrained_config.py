"""What a config of `experiments.continuity_pretrained` may say."""

import re
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict
from pydantic import Field

from geom import config as cfg
from geom.data import corpora

_SMOLLM2 = "smollm2"
# A config sorts its keys; tables go through a layer as a token does.
_ORDER = ("q", "k", "v", "o", "gate", "up", "down")
Share = Annotated[float, Field(ge=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]


class AnalysisSection(cfg.Section):
  projections: tuple[str, ...]
  k: Annotated[int, Field(ge=1, le=64)]
  ks: tuple[Annotated[int, Field(ge=1, le=64)], ...]
  windows: tuple[Annotated[int, Field(ge=2, le=1000)], ...]
  folded: bool
  full_below: Annotated[int, Field(ge=0, le=2**14)]
  workers: cfg.Count | None


class LossSection(cfg.Section):
  enabled: bool
  text: Literal[tuple(corpora.CORPORA)]
  windows: cfg.Count
  length: Annotated[int, Field(ge=2, le=2**15)]
  ks: tuple[cfg.Count, ...]
  shared: tuple[Annotated[int, Field(ge=0, le=1000)], ...]


class ClaimsSection(cfg.Section):
  above_chance: cfg.Positive
  above_v: cfg.Positive
  v_at_most: cfg.Positive
  matched_at_least: Share
  removal_at_most: Correlation


class Schema(cfg.Section):
  experiment: Literal["continuity_pretrained"]
  source: str
  what: str
  seed_index: cfg.Natural
  family: dict[str, Any]
  analysis: AnalysisSection
  loss: LossSection
  claims: ClaimsSection


class FamilySection(cfg.Section):
  layers: dict[str, str]
  stored: Literal["out_in", "in_out"]
  sides: dict[str, Literal["input", "output"]]
  gains: dict[str, str] = Field(default_factory=dict)
  rest: str = "(?!)"
  needs: tuple[str, ...] = ()


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says.
  """
  checked = cfg.check(config, Schema)
  if not checked["source"]:
    raise cfg.ConfigError(
      "config.source: say --config.source=PATH, of a folder or file of weights"
    )
  analysis = checked["analysis"]
  for name in ("ks", "windows"):
    if len(set(analysis[name])) < len(analysis[name]):
      raise cfg.ConfigError(f"config.analysis.{name}: one of them twice")
  if not analysis["ks"]:
    raise cfg.ConfigError("config.analysis.ks: should have at least one size")
  if max(analysis["ks"]) > analysis["k"]:
    raise cfg.ConfigError(
      f"config.analysis.ks: {max(analysis['ks'])} is above k, {analysis['k']}"
    )
  loss = checked["loss"]
  if loss["enabled"] and not (loss["ks"] and loss["shared"]):
    raise cfg.ConfigError("config.loss: ks and shared should not be empty")
  if checked["family"]:
    checked["family"] = _family(checked["family"])
  return checked


def _family(described: dict[str, Any]) -> dict[str, Any]:
  try:
    family = cfg.check(described, FamilySection)
  except cfg.ConfigError as error:
    message = str(error).replace("config.", "config.family.", 1)
    raise cfg.ConfigError(message) from None
  for section in ("layers", "gains"):
    for key, pattern in family[section].items():
      if pattern.count("{l}") != 1:
        raise cfg.ConfigError(
          f"config.family.{section}.{key}: {pattern!r} should have {{l}} once, "
          "where the number of the layer is"
        )
  if not family["layers"]:
    raise cfg.ConfigError("config.family.layers: names no projection")
  parts = {p for key in family["layers"] for p in key.split("+")}
  for part in sorted(parts):
    if not re.fullmatch(r"\w+", part):
      raise cfg.ConfigError(f"config.family.layers: {part!r} is no name")
    if part not in family["sides"]:
      raise cfg.ConfigError(
        f"config.family.sides: should say input or output for {part}"
      )
  try:
    re.compile(family["rest"])
  except re.error as error:
    raise cfg.ConfigError(f"config.family.rest: {error}") from None
  order = {p: i for i, p in enumerate(_ORDER)}
  sides = family["sides"].items()
  family["sides"] = dict(sorted(sides, key=lambda s: order.get(s[0], 99)))
  return family


def is_packaged(config: dict[str, Any]) -> bool:
  """Whether the weights come with a package."""
  return config["source"] == _SMOLLM2

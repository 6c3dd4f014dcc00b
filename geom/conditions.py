"""Configs of several conditions: a base, and what each changes in it."""

import re
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from geom import config as cfg


def check(
  config: ConfigDict,
  schema: type[cfg.Section],
  require: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
  """The config as a plain dict, once every condition of it is right.

  Args:
    config: a section `conditions`, changes by name; all else is the base.
    schema: of the base, and of the base with the changes of a condition.
    require: raises ValueError for the settings of a condition that cannot be
      run.

  Raises:
    ConfigError: a key or value is not what the schema says, in the base or
      with the changes of a condition, or there is no condition.
  """
  base = config.to_dict()
  changes = base.pop("conditions", None)
  base = cfg.check(base, schema)
  if not isinstance(changes, dict) or not changes:
    raise cfg.ConfigError("config.conditions: names no condition")
  for name, change in changes.items():
    if not re.fullmatch(r"\w[\w.+-]*", name):
      raise cfg.ConfigError(f"condition {name!r}: not a name for a folder")
    try:
      require(cfg.check(changed(base, change), schema))
    except ValueError as error:
      raise cfg.ConfigError(f"condition {name}: {error}") from None
  return {**base, "conditions": changes}


def changed(base: dict[str, Any], change: Any) -> dict[str, Any]:
  """The settings of a condition: a config with its changes put in."""
  settings = {k: v for k, v in base.items() if k != "conditions"}
  if not isinstance(change, dict):
    raise cfg.ConfigError(f"should be a section, got {change!r}")
  for section, values in change.items():
    if not isinstance(values, dict):
      raise cfg.ConfigError(
        f"config.{section}: a condition changes entries of sections, "
        f"got {values!r}"
      )
    if not isinstance(settings.get(section, {}), dict):
      raise cfg.ConfigError(f"config.{section}: all conditions share it")
    settings[section] = {**settings.get(section, {}), **values}
  return settings

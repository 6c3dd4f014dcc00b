"""Reading, overriding and checking configs, before a device is asked for.

A config is an `ml_collections.ConfigDict`, made by `get_config(variant)` of a
file; `--config.a.b=value` overrides an entry. What may be in it is said once,
by a schema: pydantic models made of the types below. Every mistake becomes a
`ConfigError` of one line.
"""

import ast
import difflib
import json
import pathlib
import re
import runpy
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import ml_collections
import pydantic
from pydantic import Field

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


def _unique(seeds: tuple[int, ...]) -> tuple[int, ...]:
  if not seeds:
    raise ValueError("should have at least one seed")
  if len(set(seeds)) < len(seeds):
    raise ValueError("the same seed twice")
  return seeds


Seeds = Annotated[
  tuple[Annotated[int, Field(ge=0, lt=2**32)], ...],
  pydantic.BeforeValidator(lambda s: (s,) if isinstance(s, int) else s),
  pydantic.AfterValidator(_unique),
]


class ConfigError(ValueError):
  """One line: which entry is wrong, and what it should be."""

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


class Section(pydantic.BaseModel):
  """A part of a schema: no key more, none less, no silent conversion."""

  model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)


def split_reference(reference: str) -> tuple[pathlib.Path, str]:
  """`FILE.py:VARIANT` -> the file and the variant, "" if there is none."""
  match = re.fullmatch(r"(.*\.py):(.*)", reference, re.DOTALL)
  name, variant = match.groups() if match else (reference, "")
  return pathlib.Path(name).expanduser(), variant


def load(
  reference: str, also: pathlib.Path | None = None
) -> ml_collections.ConfigDict:
  """The config of `FILE.py`, `FILE.py:VARIANT`, or a run's `config.json`.

  Args:
    reference: the file, from the current folder.
    also: a folder to look in when it is not there.

  Raises:
    ConfigError: no such file or variant, or the file fails.
  """
  path, variant = split_reference(reference)
  if also is not None and not path.exists():
    path = path if not (also / path).is_file() else also / path
  if not path.is_file():
    raise ConfigError(
      f"--config: no file {path}{_close(str(path), _configs(path))}"
    )
  if path.suffix == ".json":
    return _from_json(path)
  try:
    get_config = runpy.run_path(str(path))["get_config"]
    config = get_config(variant) if variant else get_config()
  except KeyError as error:
    raise ConfigError(f"--config={reference}: no {error}") from None
  except (Exception, SystemExit) as error:
    raise ConfigError(
      f"--config={reference}: {type(error).__name__}: {error}"
    ) from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ConfigError(f"--config={reference}: get_config gave no ConfigDict")
  return config


def _from_json(path: pathlib.Path) -> ml_collections.ConfigDict:
  """The config that a run wrote; JSON has lists where configs have tuples."""

  def tuples(value: Any) -> Any:
    if isinstance(value, dict):
      values = {k: tuples(v) for k, v in value.items()}
      return ml_collections.ConfigDict(values, sort_keys=False)
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  try:
    config = tuples(json.loads(path.read_text())["config"])
    if isinstance(config, ml_collections.ConfigDict):
      return config
  except (ValueError, KeyError, TypeError):
    pass
  raise ConfigError(f"--config={path}: not a config.json of a run")


def split_overrides(
  arguments: Sequence[str],
) -> tuple[list[str], list[tuple[str, str]]]:
  """Parts `--config.a.b=value` (or `--config.a.b value`) from the rest.

  Raises:
    ConfigError: the last override has no value.
  """
  rest, overrides = [], []
  arguments = list(arguments)
  while arguments:
    argument = arguments.pop(0)
    match = re.fullmatch(r"--?config\.([^=]+)(=.*)?", argument, re.DOTALL)
    if not match:
      rest.append(argument)
    elif match[2]:
      overrides.append((match[1], match[2][1:]))
    elif arguments and not arguments[0].startswith("--"):
      overrides.append((match[1], arguments.pop(0)))
    else:
      raise ConfigError(f"{argument}: needs a value, {argument}=VALUE")
  return rest, overrides


def parse(text: str) -> Any:
  """A value as Python writes it; true, false, none in any case; else text."""
  words = {"true": True, "false": False, "none": None, "null": None}
  floats = {"nan", "inf", "-inf", "+inf"}
  if text.lower() in words:
    return words[text.lower()]
  if text.lower() in floats:
    return float(text)
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    inner = text.strip("()[]")
    if "," not in inner:
      return text
    return tuple(map(parse, inner.removesuffix(",").split(",")))


def override(config: ml_collections.ConfigDict, path: str, text: str) -> None:
  """Sets the entry at `a.b.c` from the text of a command line.

  Raises:
    ConfigError: no such entry; the nearest one is named. The value itself is
      checked later, by `check`.
  """
  *sections, key = path.split(".")
  at = config
  done = "config"
  for name in sections:
    _require(at, name, done, config)
    at, done = at[name], f"{done}.{name}"
  _require(at, key, done, config)
  # An entry that is text stays text: `none` names a norm, not None.
  value = parse(text)
  if isinstance(at[key], str) and not isinstance(value, str):
    value = text
  if isinstance(at[key], ml_collections.ConfigDict):
    raise ConfigError(
      f"{done}.{key} is a section: set one of its entries, "
      f"{', '.join(at[key]) or 'of which there are none'}"
    )
  with at.unlocked():
    after = list(at)[list(at).index(key) + 1 :]
    del at[key]  # Else ConfigDict turns a value into the type of the old one.
    at[key] = _in_order(tuple(value) if isinstance(value, list) else value)
    for name in after:  # The order of rules is a part of what they say.
      moved = at[name]
      del at[name]
      at[name] = moved


def check(
  config: ml_collections.ConfigDict | dict[str, Any], schema: type[Section]
) -> dict[str, Any]:
  """The config as plain nested dicts, once it is what the schema says.

  Raises:
    ConfigError: it is not.
  """
  if isinstance(config, ml_collections.ConfigDict):
    config = config.to_dict()
  try:
    return schema.model_validate(config).model_dump()
  except pydantic.ValidationError as error:
    problems = [_problem(e, config) for e in error.errors()]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise ConfigError(problems[0] + more) from None


def choice(
  config: ml_collections.ConfigDict, key: str, names: Collection[str]
) -> str:
  """The top-level entry, which must be one of some names.

  Raises:
    ConfigError: it is missing, or another.
  """
  value = config.to_dict().get(key)
  if not isinstance(value, str) or value not in names:
    raise ConfigError(
      f"config.{key}: should be {' or '.join(names)}, got {value!r}"
      f"{_close(str(value), list(names))}"
    )
  return value


def _in_order(value: Any) -> Any:
  """Nested dicts as ConfigDicts that keep the order of their keys."""
  if not isinstance(value, dict):
    return value
  values = {k: _in_order(v) for k, v in value.items()}
  return ml_collections.ConfigDict(values, sort_keys=False)


def _require(
  section: Any, key: str, done: str, config: ml_collections.ConfigDict
) -> None:
  if not isinstance(section, ml_collections.ConfigDict):
    raise ConfigError(f"{done} is a single value, it has no entry {key!r}")
  if key not in section:
    # The key itself may be right and the section wrong: look everywhere.
    full = f"{done}.{key}"
    elsewhere = [p for p in _paths(config) if p.split(".")[-1] == key]
    near = [f"{done}.{k}" for k in difflib.get_close_matches(key, section, 1)]
    hint = near or elsewhere[:1]
    has = ", ".join(section) or "nothing"
    meant = f"; did you mean {hint[0]}?" if hint else f"; {done} has {has}"
    raise ConfigError(f"unknown config key {full}{meant}")


def _paths(config: Any, path: str = "config") -> list[str]:
  if not isinstance(config, ml_collections.ConfigDict):
    return [path]
  return [p for k in config for p in _paths(config[k], f"{path}.{k}")]


def _problem(error: Any, config: dict[str, Any]) -> str:
  """One pydantic error in the words of a config."""
  keys = [str(k) for k in error["loc"]]
  where = ".".join(["config", *keys])
  kind = error["type"]
  if kind == "extra_forbidden":
    near = difflib.get_close_matches(keys[-1], _siblings(config, keys), 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"unknown config key {where}{meant}"
  if kind == "missing" and keys[-1].isdigit():
    return (
      f"{'.'.join(['config', *keys[:-1]])}: needs a pair of numbers, "
      f"got {error['input']!r}"
    )
  if kind == "missing":
    return f"config key {where} is missing"
  if kind == "tuple_type":
    got = repr(error["input"])
    how = "write them as 0,1,2, or 0, for one"
    return f"{where}: needs several values, got {got} ({how})"
  message = error["msg"].removeprefix("Value error, ")
  message = message.replace("Input should", "should")
  return f"{where}: {message}, got {error['input']!r}"


def _siblings(config: dict[str, Any], keys: list[str]) -> list[str]:
  at: Any = config
  for key in keys[:-1]:
    at = at[key]
  return [k for k in at if k != keys[-1]]


def _configs(path: pathlib.Path) -> list[str]:
  here = sorted({*path.parent.glob("*.py"), *pathlib.Path().glob("*/*.py")})
  return [str(p) for p in here]


def _close(name: str, names: Sequence[str]) -> str:
  near = difflib.get_close_matches(name, names, 1)
  return f"; did you mean {near[0]}?" if near else ""

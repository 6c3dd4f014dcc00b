"""Why geometric continuity emerges (arXiv 2605.04971), on a residual MLP.

Trains one small network a condition and seed on MNIST and measures, while it
trains, whether the leading singular vectors of neighbouring layers agree: in
the weights, in the gradients, and in what training has added, W - W(0).
"""

import pathlib
import re
from functools import partial
from typing import Annotated, Any, Literal

import jax
import numpy as np
import optax
from jaxtyping import Array
from ml_collections import ConfigDict
from pydantic import Field

from experiments import continuity_claims as claims
from geom import config as cfg
from geom import record, roles
from geom.data import mnist, order
from geom.models import activations
from geom.models.base import Model, Params
from geom.models.resmlp import FORMS, INITS, NORMS, resmlp
from geom.optim import baselines, observe
from geom.probes import suite
from geom.probes.continuity import chance_cosine
from geom.probes.orbit import chance_share
from geom.report.continuity import write_report
from geom.train import probing, turning
from geom.train.checkpoint import Checkpoints
from geom.train.grid import log_and_every
from geom.train.objectives import classification_loss
from geom.train.run import (
  Measure,
  Setup,
  measure_checkpoints,
  run_condition,
)
from geom.train.state import State
from geom.train.step import Loss
from geom.train.stop import StopSignal

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


class OptimSection(cfg.Section):
  name: Literal[baselines.NAMES]
  lr: cfg.NonNegative
  betas: tuple[cfg.Fraction, cfg.Fraction] | None
  eps: cfg.Positive | None
  momentum: cfg.Fraction | None
  adam_lr: cfg.NonNegative | None


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
  first: cfg.Natural
  per_decade: cfg.Natural
  every: cfg.Count | None


class OrbitSection(cfg.Section):
  angles: tuple[cfg.Positive, ...]
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
  checkpoints_of: str | None
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
  base = config.to_dict()
  changes = base.pop("conditions", None)
  base = cfg.check(base, Schema)
  if not isinstance(changes, dict) or not changes:
    raise cfg.ConfigError("config.conditions: names no condition")
  for name, change in changes.items():
    if not re.fullmatch(r"\w[\w.+-]*", name):
      raise cfg.ConfigError(f"condition {name!r}: not a name for a folder")
    try:
      settings = cfg.check(_changed(base, change), Schema)
      for key in ("width", "depth"):
        if settings["model"][key] != base["model"][key]:
          raise cfg.ConfigError(
            f"config.model.{key}: is one for all conditions"
          )
      resmlp(**settings["model"])
      baselines.baseline(**settings["optim"])
      for section in ("probe", "full_probe"):
        probing.require(**_how(settings[section]))
        k, width = settings[section]["k"], settings["model"]["width"]
        if k is not None and k > width:
          raise cfg.ConfigError(f"config.{section}.k: {k} is above the width")
    except ValueError as error:
      raise cfg.ConfigError(f"condition {name}: {error}") from None
  checked = {**base, "conditions": changes}
  if checked["checkpoints_of"] is not None:
    _check_again(checked, _trained(checked))
  return checked


# What may differ from the config of the run whose checkpoints are measured.
MEASURING = ("checkpoints_of", "eval", "probe", "full_probe", "orbit")


def _trained(config: dict[str, Any]) -> dict[str, Any]:
  """The config of the run whose checkpoints are to be measured."""
  path = pathlib.Path(config["checkpoints_of"]).expanduser() / "config.json"
  try:
    return record.read_json(path)["config"]
  except (OSError, ValueError, KeyError, TypeError):
    raise cfg.ConfigError(
      f"config.checkpoints_of: no config.json of a run in {path.parent}"
    ) from None


def _check_again(config: dict[str, Any], trained: dict[str, Any]) -> None:
  """Raises ConfigError unless that run's checkpoints can be measured so."""
  unlike = [
    entry
    for entry in record.differing(trained, record.plain(config), "config")
    if re.split(r"[. ]", entry)[1] not in MEASURING
  ]
  if unlike:
    raise cfg.ConfigError(
      f"config.checkpoints_of: that run has another {', '.join(unlike)}; "
      f"start from its config.json"
    )
  for name, change in config["conditions"].items():
    then = _stacks(_changed(trained, trained["conditions"][name]))
    lacks = sorted((_stacks(_changed(config, change)) - then) & REMEMBERED)
    if lacks:
      raise cfg.ConfigError(
        f"condition {name}: that run did not remember {', '.join(lacks)}"
      )


# Stacks that links of the optimizer remember while it trains.
REMEMBERED = {"gradient_sum", "optimizer_updates"}


def _stacks(settings: dict[str, Any]) -> set[str]:
  """All stacks that a condition's probes read."""
  sections = (settings["probe"], settings["full_probe"])
  return {stack for s in sections if s["names"] for stack in s["stacks"]}


def _changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
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


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Trains every condition, or what is left of them, and reports.

  With `checkpoints_of` it trains nothing and measures the checkpoints of that
  run instead.

  Returns:
    The failures: condition -> seed -> the step whose loss or gradient was
    not finite.

  Raises:
    DataError, ResumeError, Stopped: see where they are defined.
  """
  data = mnist.load(data_dir)
  writer = record.Writer(workdir / "metrics.jsonl")
  trained = _trained(config) if config["checkpoints_of"] else None
  with StopSignal() as stop:
    for name, change in config["conditions"].items():
      settings = _changed(config, change)
      if trained is not None:
        then = _changed(trained, trained["conditions"][name])
        _measure_again(name, settings, then, data, writer)
      else:
        _run_condition(
          name, settings, data, workdir, writer, stop, profile=profile
        )
      stop.raise_if_received(f"after {name}, saved")
  return report(workdir)


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes figures, `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  model = config["model"]
  level = chance_cosine(model["width"])
  size = f"{model['depth']} layers of width {model['width']}"
  others = {
    name: unlike
    for name, change in config["conditions"].items()
    if (unlike := claims.unlike(name, _changed(config, change)))
  }
  shapes = jax.eval_shape(resmlp(**model).init, jax.random.key(0))
  numbers = sum(x.size for x in jax.tree.leaves(shapes))
  notes = [NOTES] + [
    f"`{name}` is not judged: its {', '.join(unlike)} is not the claims'."
    for name, unlike in others.items()
  ]
  return write_report(
    workdir,
    rows,
    title=f"Geometric continuity, residual MLP, {size}",
    config=config,
    chances={"input": level, "output": level},
    chance_share=chance_share(model["width"], numbers),
    claims=[c for c in claims.CLAIMS if c.condition not in others],
    groups=claims.GROUPS,
    notes="\n\n".join(notes),
  )


NOTES = """\
Reading the numbers. The cosine is |cos| between the leading singular vectors
of adjacent layers, averaged over the pairs where both are defined (a matrix
with s1 = s2 has none); v1 is the input side, u1 the output side. Chance is
the mean |cos| of two random directions. `flat` is the cosine of the two whole
matrices as long vectors, `s1/s2` the gap: a low v1 in a flat spectrum is not
lost alignment. dW is W - W(0), `updates` in the files. Gradients are of fixed
training examples. Spread is the sample standard deviation over seeds. The
paper's initialisation, learning rate, batch and number of steps were not at
hand, so agreement of numbers is not agreement of protocol."""


def _how(section: dict[str, Any]) -> dict[str, Any]:
  """What of a probe's section says what is taken, not when."""
  return {key: section[key] for key in ("names", "stacks", "method", "k")}


def _run_condition(
  name: str,
  settings: dict[str, Any],
  data: mnist.Mnist,
  workdir: pathlib.Path,
  writer: record.Writer,
  stop: StopSignal,
  *,
  profile: bool,
) -> None:
  source = _order(settings, data)
  run_condition(
    _setup(settings, data),
    condition=name,
    seeds=settings["seeds"],
    source=source,
    arrays=data.train._asdict(),
    steps_per_dispatch=settings["train"]["steps_per_dispatch"],
    log_every=settings["train"]["log_every"],
    checkpoints=Checkpoints(
      workdir / "checkpoints" / name, **settings["checkpoint"]
    ),
    meta=_meta(settings, data),
    writer=writer,
    stop=stop,
    profile=workdir / "profile" / name if profile else None,
  )


def _measure_again(
  name: str,
  settings: dict[str, Any],
  trained: dict[str, Any],
  data: mnist.Mnist,
  writer: record.Writer,
) -> None:
  directory = pathlib.Path(settings["checkpoints_of"]).expanduser()
  measure_checkpoints(
    _setup(settings, data),
    _setup(trained, data),
    condition=name,
    seeds=settings["seeds"],
    directory=directory / "checkpoints" / name,
    meta=_meta(settings, data),
    start=probing.with_start,
    writer=writer,
  )


def _order(settings: dict[str, Any], data: mnist.Mnist) -> order.Order:
  return order.Order(
    num_examples=len(data.train.labels),
    batch_size=settings["data"]["batch_size"],
    seeds=settings["seeds"],
    num_steps=settings["train"]["num_steps"],
  )


def _meta(settings: dict[str, Any], data: mnist.Mnist) -> dict[str, Any]:
  """What a checkpoint is of, besides what its arrays say."""
  return record.plain(
    {
      "data": data.fingerprint,
      "order": _order(settings, data).fingerprint(),
      "model": settings["model"],
      "optim": settings["optim"],
    }
  )


def _setup(settings: dict[str, Any], data: mnist.Mnist) -> Setup:
  """The pure functions of one condition."""
  model = resmlp(**settings["model"])
  loss = partial(classification_loss, model)
  num_steps = settings["train"]["num_steps"]
  # Fixed, the same for every seed; the data's own order is no sample.
  chosen = np.random.default_rng(0).permutation(len(data.train.labels))

  def fixed(count: int) -> dict[str, np.ndarray]:
    return _batch(data.train, chosen[:count])

  examples = fixed(settings["data"]["probe_examples"])
  gradients = partial(probe_gradients, loss, examples)
  sections = {
    name: settings[name]
    for name in ("probe", "full_probe")
    if settings[name]["names"]
  }
  measures = [
    Measure(
      "probe",
      log_and_every(
        per_decade=section["per_decade"],
        every=section["every"],
        first=section["first"],
        num_steps=num_steps,
      ),
      probing.make_probe(gradients, "hidden", name=name, **_how(section)),
    )
    for name, section in sections.items()
  ]
  every = partial(log_and_every, per_decade=0, num_steps=num_steps)
  evaluation = partial(evaluate, model, _batch(data.test))
  measures.append(
    Measure("eval", every(every=settings["eval"]["every"]), evaluation)
  )
  around = settings["orbit"]
  if around["angles"]:
    batch = fixed(around["examples"])
    turns = turning.rotations(
      settings["model"]["width"], around["angles"], around["generators"]
    )
    of = turning.make_orbit(lambda p: loss(p, batch)[0], "hidden", turns)
    measures.append(Measure("orbit", every(every=around["every"]), of))
  baseline = baselines.baseline(**settings["optim"])
  tx = _observed(baseline, _stacks(settings), bool(around["angles"]))
  return Setup(
    init=model.init,
    loss=loss,
    tx=tx,
    reference=partial(
      probing.reference_of,
      projection="hidden",
      sections={name: _how(section) for name, section in sections.items()},
    ),
    measures=measures,
  )


def _observed(
  tx: optax.GradientTransformation, stacks: set[str], orbits: bool
) -> optax.GradientTransformation:
  """The optimizer, with links that remember what measurements ask for."""

  def hidden(params: Params) -> Array:
    return roles.stacks(params)["hidden"]

  links = [tx]
  if "gradient_sum" in stacks:
    links.insert(0, observe.sum_of("gradient_sum", hidden))
  if "optimizer_updates" in stacks:
    links.append(observe.last("optimizer_updates", hidden))
  if orbits:
    links.append(observe.last(turning.LAST_STEP))
  return optax.chain(*links)


def _batch(
  split: mnist.Split, rows: Any = slice(None)
) -> dict[str, np.ndarray]:
  return {"images": split.images[rows], "labels": split.labels[rows]}


def probe_gradients(
  loss: Loss, batch: dict[str, Array], params: Params
) -> tuple[Params, dict[str, Array]]:
  """The gradient on a fixed batch, and the taps there."""
  grads, aux = jax.grad(loss, has_aux=True)(params, batch)
  return grads, {
    "taps/stream_rms": aux["stream_rms"],
    "taps/preact_norm": aux["preact_norm"],
  }


def evaluate(
  model: Model, batch: dict[str, Array], state: State
) -> tuple[dict[str, Array], Any]:
  """Loss in nats and accuracy on the test set."""
  loss, aux = classification_loss(model, state.params, batch)
  return {"loss": loss, "accuracy": aux["accuracy"]}, state.reference

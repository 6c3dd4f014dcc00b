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
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict
from pydantic import Field

from geom import config as cfg
from geom import record, roles
from geom.data import mnist, order
from geom.models import activations
from geom.models.base import Model, Params
from geom.models.resmlp import FORMS, INITS, NORMS, resmlp
from geom.optim import baselines, observe
from geom.probes import suite
from geom.probes.continuity import chance_cosine
from geom.report.claims import Claim
from geom.report.continuity import write_report
from geom.train import probing
from geom.train.checkpoint import Checkpoints
from geom.train.grid import log_and_every
from geom.train.run import Measure, Setup, run_condition
from geom.train.state import State
from geom.train.step import Loss
from geom.train.stop import StopSignal


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
  batch_size: Annotated[int, Field(ge=1, le=60_000)]


class TrainSection(cfg.Section):
  num_steps: Annotated[int, Field(ge=1, lt=2**31)]
  steps_per_dispatch: cfg.Count
  log_every: cfg.Count


class EvalSection(cfg.Section):
  every: cfg.Count | None


class FullProbeSection(cfg.Section):
  names: tuple[Literal[tuple(suite.PROBES)], ...]
  stacks: tuple[Literal[probing.STACKS], ...]
  method: Literal[probing.METHODS]
  k: Annotated[int, Field(ge=2)] | None
  per_decade: cfg.Natural
  every: cfg.Count | None


class ProbeSection(FullProbeSection):
  num_examples: Annotated[int, Field(ge=1, le=60_000)]


class CheckpointSection(cfg.Section):
  every: cfg.Count | None
  keep: cfg.Count
  keep_every: cfg.Count | None


class Schema(cfg.Section):
  """A config of this experiment, and, without `conditions`, one condition."""

  experiment: Literal["continuity_mlp"]
  seeds: cfg.Seeds
  model: ModelSection
  optim: OptimSection
  data: DataSection
  train: TrainSection
  eval: EvalSection
  probe: ProbeSection
  full_probe: FullProbeSection
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
  return {**base, "conditions": changes}


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


CLAIMS = (
  Claim(
    "Res+None: gradients coherent from the start (v1)",
    "0.93", "none", "probe", "gradients/cos_input_mean", "first", 0.88, 1.0,
  ),
  Claim(
    "NoRes+ReLU: gradients at chance (v1)",
    "about 0.05", "nores_relu", "probe", "gradients/cos_input_mean", "first",
    0.0, 0.1,
  ),
  Claim(
    "NoRes+ReLU: gradients at chance (u1)",
    "about 0.05", "nores_relu", "probe", "gradients/cos_output_mean", "first",
    0.0, 0.1,
  ),
  Claim(
    "NoRes+None: gradients at chance (v1)",
    "about 0.05", "nores_none", "probe", "gradients/cos_input_mean", "first",
    0.0, 0.1,
  ),
  Claim(
    "NoRes+None: gradients at chance (u1)",
    "about 0.05", "nores_none", "probe", "gradients/cos_output_mean", "first",
    0.0, 0.1,
  ),
  Claim(
    "Res+ReLU: weights continuous (v1)",
    "high", "relu", "probe", "weights/cos_input_mean", "last", 0.8, 1.0,
  ),
  Claim(
    "Res+ReLU: weights continuous (u1)",
    "high", "relu", "probe", "weights/cos_output_mean", "last", 0.8, 1.0,
  ),
  Claim(
    "NoRes+ReLU: weights do not become continuous (v1)",
    "about chance", "nores_relu", "probe", "weights/cos_input_mean", "last",
    0.0, 0.15,
  ),
  Claim(
    "NoRes+None: weights do not become continuous (v1)",
    "about chance", "nores_none", "probe", "weights/cos_input_mean", "last",
    0.0, 0.15,
  ),
  Claim(
    "Res+None: weights form, then lose continuity (v1)",
    "0.22", "none", "probe", "weights/cos_input_mean", "last", 0.12, 0.32,
  ),
  Claim(
    "Res+Radial: likewise (v1)",
    "about 0.22", "radial", "probe", "weights/cos_input_mean", "last",
    0.12, 0.32,
  ),
)  # fmt: skip

# The setting that the rules of the claims are for; others are not judged.
SETTING = {
  "model": {
    "width": 256, "depth": 16, "form": "post", "norm": "none", "bias": False,
    "radius": 1.0,
  },
  "optim": {"name": "adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8},
  "data": {"batch_size": 64},
}  # fmt: skip
LEAST_STEPS = 464
RES = {"residual": True, "init": "scaled", "gain": 0.1}
SETTING_OF = {
  "relu": {**RES, "activation": "relu"},
  "none": {**RES, "activation": "identity"},
  "radial": {**RES, "activation": "radial"},
  "nores_relu": {"residual": False, "activation": "relu", "init": "he"},
  "nores_none": {
    "residual": False, "activation": "identity", "init": "scaled", "gain": 1.0,
  },
}  # fmt: skip

NOTES = """\
Reading the numbers. The cosine is |cos| between the leading singular vectors
of adjacent layers, averaged over the pairs where both are defined (a matrix
with s1 = s2 has none); v1 is the input side, u1 the output side. Chance is
the mean |cos| of two random directions. `flat` is the cosine of the two whole
matrices as long vectors, `s1/s2` the gap: a low v1 in a flat spectrum is not
lost alignment. dW is W - W(0), `updates` in the files. Gradients are of 1024
fixed training examples. Spread is the sample standard deviation over seeds.
The paper's initialisation, learning rate, batch and number of steps were not
at hand, so agreement of numbers is not agreement of protocol."""


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Trains every condition, or what is left of them, and reports.

  Returns:
    The failures: condition -> seed -> the step whose loss or gradient was
    not finite.

  Raises:
    DataError, ResumeError, Stopped: see where they are defined.
  """
  data = mnist.load(data_dir)
  writer = record.Writer(workdir / "metrics.jsonl")
  with StopSignal() as stop:
    for name, change in config["conditions"].items():
      _run_condition(
        name,
        _changed(config, change),
        data,
        workdir,
        writer,
        stop,
        profile=profile,
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
    if (unlike := _unlike_claims(name, _changed(config, change)))
  }
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
    claims=[c for c in CLAIMS if c.condition not in others],
    notes="\n\n".join(notes),
  )


def _unlike_claims(name: str, settings: dict[str, Any]) -> list[str]:
  """What of a condition's settings is not what the claims about it are of."""
  if name not in SETTING_OF:
    return []
  wanted = {**SETTING, "model": {**SETTING["model"], **SETTING_OF[name]}}
  unlike = [
    f"{section}.{key}"
    for section, values in wanted.items()
    for key, value in values.items()
    if record.plain(settings[section][key]) != value
  ]
  if settings["train"]["num_steps"] < LEAST_STEPS:
    unlike.append("train.num_steps")
  return unlike


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
  num_steps = settings["train"]["num_steps"]
  source = order.Order(
    num_examples=len(data.train.labels),
    batch_size=settings["data"]["batch_size"],
    seeds=settings["seeds"],
    num_steps=num_steps,
  )
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
    meta=record.plain(
      {
        "data": data.fingerprint,
        "order": source.fingerprint(),
        "model": settings["model"],
        "optim": settings["optim"],
      }
    ),
    writer=writer,
    stop=stop,
    profile=workdir / "profile" / name if profile else None,
  )


def _setup(settings: dict[str, Any], data: mnist.Mnist) -> Setup:
  """The pure functions of one condition."""
  model = resmlp(**settings["model"])
  loss = partial(classification_loss, model)
  num_steps = settings["train"]["num_steps"]
  # Fixed, the same for every seed; the data's own order is no sample.
  chosen = np.random.default_rng(0).permutation(len(data.train.labels))
  chosen = chosen[: settings["probe"]["num_examples"]]
  gradients = partial(probe_gradients, loss, _batch(data.train, chosen))
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
        num_steps=num_steps,
      ),
      probing.make_probe(gradients, "hidden", name=name, **_how(section)),
    )
    for name, section in sections.items()
  ]
  at = log_and_every(
    per_decade=0, every=settings["eval"]["every"], num_steps=num_steps
  )
  evaluation = partial(evaluate, model, _batch(data.test))
  stacks = {s for section in sections.values() for s in section["stacks"]}
  return Setup(
    init=model.init,
    loss=loss,
    tx=_observed(baselines.baseline(**settings["optim"]), stacks),
    reference=partial(
      probing.reference_of,
      projection="hidden",
      sections={name: _how(section) for name, section in sections.items()},
    ),
    measures=[*measures, Measure("eval", at, evaluation)],
  )


def _observed(
  tx: optax.GradientTransformation, stacks: set[str]
) -> optax.GradientTransformation:
  """The optimizer, with links that remember what probes ask for."""

  def hidden(params: Params) -> Array:
    return roles.stacks(params)["hidden"]

  links = [tx]
  if "gradient_sum" in stacks:
    links.insert(0, observe.sum_of("gradient_sum", hidden))
  if "optimizer_updates" in stacks:
    links.append(observe.last("optimizer_updates", hidden))
  return optax.chain(*links)


def _batch(
  split: mnist.Split, rows: Any = slice(None)
) -> dict[str, np.ndarray]:
  return {"images": split.images[rows], "labels": split.labels[rows]}


def classification_loss(
  model: Model, params: Params, batch: dict[str, Array]
) -> tuple[Float[Array, ""], dict[str, Array]]:
  """Mean cross-entropy in nats; accuracy and taps beside it.

  `images` `(batch, pixels)` are bytes, given to the model as 0 to 1.
  """
  logits, taps = model.apply(params, batch["images"] / jnp.float32(255))
  labels = batch["labels"]
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
  return jnp.mean(loss), {"accuracy": accuracy, **taps}


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

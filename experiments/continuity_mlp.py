"""Why geometric continuity emerges (arXiv 2605.04971), on a residual MLP.

Trains one small network a condition and seed on MNIST and measures, while it
trains, whether the leading singular vectors of neighbouring layers agree: in
the weights, in the gradients, and in what training has added, W - W(0).
"""

import pathlib
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array

from experiments import continuity_claims as claims
from experiments.continuity_config import (
  check,
  how_taken,
  stacks_of,
  trained_config,
)
from experiments.continuity_optim import optimizer
from geom import record, roles
from geom.conditions import changed
from geom.data import mnist, order
from geom.models.base import Model, Params
from geom.models.resmlp import resmlp
from geom.optim import observe
from geom.probes.continuity import chance_cosine
from geom.probes.orbit import chance_share
from geom.report.continuity import write_report
from geom.train import probing, turning
from geom.train.assignments import say_table
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

__all__ = ["check", "report", "run"]  # What `launch.py` asks of it.


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
  trained = trained_config(config) if config["checkpoints_of"] else None
  with StopSignal() as stop:
    for name, change in config["conditions"].items():
      settings = changed(config, change)
      if trained is not None:
        then = changed(trained, trained["conditions"][name])
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
    if (unlike := claims.unlike(name, changed(config, change)))
  }
  shapes = jax.eval_shape(resmlp(**model).init, jax.random.key(0))
  numbers = sum(x.size for x in jax.tree.leaves(shapes))
  notes = [NOTES] + [
    f"`{name}` is not judged: not the claims' own: {', '.join(unlike)}."
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
  _, assignment = optimizer(settings)
  if assignment is not None:
    say_table(assignment.table, name, workdir)
  source = _order(settings, data)
  run_condition(
    _setup(settings, data),
    condition=name,
    seeds=settings["seeds"],
    data=order.batches(source, data.train._asdict()),
    num_steps=len(source),
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
  _, assignment = optimizer(settings)
  return record.plain(
    {
      "data": data.fingerprint,
      "order": _order(settings, data).fingerprint(),
      "model": settings["model"],
      "optim": settings["optim"],
      "assignment": assignment and assignment.fingerprint,
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
      probing.make_probe(gradients, "hidden", name=name, **how_taken(section)),
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
  tx, assignment = optimizer(settings)
  tx = _observed(tx, stacks_of(settings), bool(around["angles"]))
  return Setup(
    init=model.init,
    loss=loss,
    tx=tx,
    reference=partial(
      probing.reference_of,
      projection="hidden",
      sections={name: how_taken(section) for name, section in sections.items()},
    ),
    measures=measures,
    project=assignment and assignment.project,
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

"""The measuring process of `experiments.bench`, variant `probes`.

    python -m experiments.bench_probes WORKDIR DATA_DIR

Started with the environment that holds every library to one thread.
"""

import os
import pathlib
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import bench_machine
from geom import record, refine, roles
from geom.data import mnist, order
from geom.linalg import leading_triplets
from geom.models.resmlp import resmlp
from geom.optim import baselines, observe
from geom.probes import suite
from geom.train import probing
from geom.train.objectives import classification_loss
from geom.train.state import new_state
from geom.train.step import make_chunk, make_step, over_seeds


def measure(workdir: pathlib.Path, data_dir: pathlib.Path) -> None:
  config = record.read_json(workdir / "config.json")["config"]
  write = bench_machine.Log(workdir)
  write(0, "machine", "start", **bench_machine.machine())
  for step, condition, values in _against_numpy(config):
    write(step, condition, "measured", **values)
  data = mnist.load(data_dir)
  for step, condition, values in _beside_training(config["training"], data):
    write(step, condition, "measured", **values)
  write(0, "machine", "end", **{"load average after": os.getloadavg()})


Measured = Iterator[tuple[int, str, dict[str, float]]]


def _against_numpy(config: dict[str, Any]) -> Measured:
  """Gaussian float32 stacks: the whole spectrum, and warm from before."""
  rng = np.random.default_rng(0)
  stack, how = config["stack"], config["warm"]
  shape = (stack["layers"], stack["m"], stack["n"])

  def gaussian() -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)

  def numpy_svd(a: np.ndarray) -> np.ndarray:
    found = [np.linalg.svd(x, full_matrices=False) for x in a]
    return np.stack([values for _, values, _ in found])

  spectrum = jax.jit(lambda a: leading_triplets(a, min(shape[1:])))
  k, residual = how["k"], how["residual"]
  warm_from = jax.jit(
    lambda a, warm: refine.refine_triplets(
      a,
      warm,
      k,
      wanted=k,
      iterations=how["iterations"],
      tolerance=residual,
    )
  )
  a = gaussian()
  jax.block_until_ready(spectrum(a))
  warm = warm_from(a, refine.cold(jnp.asarray(a), how["block"])).warm
  for repeat in range(config["repeats"]):
    ours, triplets = bench_machine.ms(spectrum, jnp.asarray(a))
    theirs, values = bench_machine.ms(numpy_svd, a)
    error = np.max(np.abs(np.asarray(triplets.values) / values - 1)[:, :k])
    del triplets  # Memory that is held is memory to be found anew.
    calls = []
    for _ in range(how["calls"]):
      a = a + np.float32(how["change"]) * gaussian()
      took, found = bench_machine.ms(warm_from, jnp.asarray(a), warm)
      warm = found.warm
      calls.append((took, np.max(found.residual), np.sum(found.fell_back)))
    warm_ms, residuals, fell_back = np.transpose(calls)
    numbers = {"ours_ms": ours, "theirs_ms": theirs}
    note = {"largest relative difference of leading values": error}
    yield repeat, "spectrum", {**numbers, **note}
    numbers = {"ours_ms": np.mean(warm_ms), "theirs_ms": theirs}
    yield (
      repeat,
      "warm",
      {
        **numbers,
        "largest residual": np.max(residuals),
        "largest number that fell back": np.max(fell_back),
      },
    )


def _beside_training(how: dict[str, Any], data: mnist.Mnist) -> Measured:
  """Probes of a network that trains, taken in the run's own programs."""
  model = resmlp(
    width=how["width"], depth=how["depth"], activation="relu", residual=True
  )
  sections = {
    "default": {
      "names": ("cosines", "flattened", "dominance"),
      "stacks": ("weights", "updates"),
      "method": "warm",
      "k": 2,
    },
    "full": {
      "names": tuple(suite.PROBES),
      "stacks": probing.STACKS,
      "method": "gram",
      "k": None,
    },
  }

  loss = partial(classification_loss, model)

  def hidden(params: Any) -> Any:
    return roles.stacks(params)["hidden"]

  def gradients(params: Any) -> Any:
    few = {
      key: value[: how["num_examples"]]
      for key, value in data.train._asdict().items()
    }
    return jax.grad(loss, has_aux=True)(params, few)

  def tx_of(observed: bool) -> optax.GradientTransformation:
    adam = baselines.baseline(
      name="adam", lr=how["lr"], betas=(0.9, 0.999), eps=1e-8,
      momentum=None, adam_lr=None,
    )  # fmt: skip
    if not observed:
      return adam
    return optax.chain(
      observe.sum_of("gradient_sum", hidden),
      adam,
      observe.last("optimizer_updates", hidden),
    )

  source = order.Order(
    num_examples=len(data.train.labels),
    batch_size=how["batch_size"],
    seeds=(0,),
    num_steps=how["num_steps"],
  )
  for name, section in sections.items():
    full = name == "full"
    tx = tx_of(observed=full)
    reference = {name: section}
    params = model.init(jax.random.key(0))
    state = new_state(
      params, tx, probing.reference_of(params, "hidden", reference)
    )
    state = jax.tree.map(lambda x: x[None], state)
    probe = probing.make_probe(gradients, "hidden", name=name, **section)
    probe = jax.jit(lambda states, probe=probe: jax.lax.map(probe, states))
    length = how["steps_per_dispatch"]
    one = make_chunk(make_step(loss, tx), length)
    chunk = jax.jit(over_seeds(one), donate_argnums=0)
    batches = order.batches(source, data.train._asdict())
    every = how["full_measured_every"] if full else how["every"]
    per_probe = how["full_every"] if full else every
    # Compiles; the probe of step 0 counts as it does in a run.
    few = [next(batches)] * length
    spare = jax.tree.map(jnp.copy, state)
    jax.block_until_ready(chunk(spare, _stacked(few), jnp.int32(0)))
    _, kept = jax.block_until_ready(probe(state))
    state = state._replace(reference=kept)
    batches = order.batches(source, data.train._asdict())
    for step in range(every, how["num_steps"] + 1, every):
      began = time.perf_counter()
      for first in range(0, every, length):
        count = min(length, every - first)
        got = [next(batches) for _ in range(count)]
        got += [got[-1]] * (length - count)
        state, _ = chunk(state, _stacked(got), jnp.int32(count))
      jax.block_until_ready(state)
      theirs = (time.perf_counter() - began) * 1e3 * per_probe / every
      ours, (numbers, kept) = bench_machine.ms(probe, state)
      state = state._replace(reference=kept)
      values = {"ours_ms": ours, "theirs_ms": theirs}
      if not full:
        values["largest number that fell back"] = numbers["warm/fell_back"][0]
        values["largest residual"] = numbers["warm/residual"][0]
      yield step, f"{name}_share", values


def _stacked(batches: list[Any]) -> Any:
  """Batches of steps: `(seed, step, batch, ...)`."""
  return jax.tree.map(lambda *x: np.stack(x, axis=1), *batches)


if __name__ == "__main__":
  bench_machine.pin()
  measure(*map(pathlib.Path, sys.argv[1:]))

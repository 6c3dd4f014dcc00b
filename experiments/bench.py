"""How fast the parts are: against numpy, and beside training.

Measured in a process of its own at one thread, on one CPU where the system
can pin it, both sides in turns within one run. Nothing fails for being slow:
the report says "not met".
"""

import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from pydantic import Field

from geom import config as cfg
from geom import record, refine, roles
from geom.data import mnist, order
from geom.linalg import leading_triplets
from geom.models.resmlp import resmlp
from geom.optim import baselines, observe
from geom.probes import suite
from geom.train import probing
from geom.train.state import new_state
from geom.train.step import make_chunk, make_step, over_seeds

ROOT = pathlib.Path(__file__).parents[1]
ONE_THREAD = {
  "OPENBLAS_NUM_THREADS": "1",
  "OMP_NUM_THREADS": "1",
  "MKL_NUM_THREADS": "1",
  "VECLIB_MAXIMUM_THREADS": "1",
  "JAX_PLATFORMS": "cpu",
  "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


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


class Schema(cfg.Section):
  """A config of this experiment."""

  experiment: Literal["bench"]
  variant: Literal["probes"]
  repeats: cfg.Count
  stack: StackSection
  warm: WarmSection
  training: TrainingSection
  wanted: WantedSection


def check(config: ConfigDict) -> dict[str, Any]:
  """The config as a plain dict, once `run` can take it; uses no device.

  Raises:
    ConfigError: a key or value is not what the schema says.
  """
  checked = cfg.check(config, Schema)
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
  return checked


def run(
  config: dict[str, Any],
  *,
  workdir: pathlib.Path,
  data_dir: pathlib.Path,
  profile: bool,
) -> dict[str, dict[int, int]]:
  """Measures, anew if a run was stopped half way, and reports.

  Returns:
    No failures.

  Raises:
    DataError: see `geom.data.mnist`.
    OSError: the measuring process failed.
  """
  del profile
  metrics = workdir / "metrics.jsonl"
  if any(row.get("event") == "end" for row in record.read(metrics)):
    print("measured before", file=sys.stderr)
    return report(workdir)
  mnist.load(data_dir)
  metrics.unlink(missing_ok=True)
  command = [sys.executable, "-m", "experiments.bench", str(workdir.resolve())]
  done = subprocess.run(
    [*command, str(data_dir.resolve())],
    cwd=ROOT,
    env={**os.environ, **ONE_THREAD},
    check=False,
  )
  if done.returncode:
    raise OSError(f"the measuring process ended with {done.returncode}")
  return report(workdir)


WHAT = {
  "spectrum": "all triplets of a {layers} x {m} x {n} stack, both sides' "
  "vectors, against numpy.linalg.svd",
  "warm": "leading {k} triplets of it after a small change, warm, "
  "{iterations} iterations, against the same",
  "default_share": "default probes every {every} steps of training, against "
  "those steps",
  "full_share": "every probe, five stacks, every {full_every} steps of "
  "training, against those steps",
}


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes `report.md` and `summary.json` from what was measured."""
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  where = {**config["stack"], **config["warm"], **config["training"]}
  found = {
    name: _summary(name, config, [r for r in rows if r["condition"] == name])
    for name in WHAT
  }
  machine = {
    row["event"]: {k: v for k, v in row.items() if k not in ("step", "kind")}
    for row in rows
    if row["condition"] == "machine"
  }
  record.write_json(
    workdir / "summary.json", {"measured": found, "machine": machine}
  )
  lines = [
    "# Speed of the probes\n",
    "Milliseconds are medians. A ratio is theirs over ours, of neighbours in "
    "time, a share\nours over theirs; spread is from the least to the "
    "largest. A share is judged by\nthe sum over the run.\n",
    "| what | ours ms | theirs ms | median | spread | wanted | |",
    "| --- | --- | --- | --- | --- | --- | --- |",
  ]
  for name, x in found.items():
    share = name.endswith("share")
    show = "{:.1%}".format if share else "{:.1f}x".format
    total = f" (of all {show(x['total'])})" if share else ""
    lines.append(
      f"| {WHAT[name].format(**where)} | {x['ours_ms']:.1f} | "
      f"{x['theirs_ms']:.1f} | {show(x['median'])}{total} | "
      f"{show(x['least'])} to {show(x['largest'])} | "
      f"{'<=' if share else '>='} {show(x['wanted'])} | "
      f"**{'met' if x['met'] else 'not met'}** |"
    )
  lines.append("")
  for name, x in found.items():
    lines += [f"- `{name}`: {k} {v:.3g}" for k, v in x["notes"].items()]
  lines += [f"- {k}: {v}" for x in machine.values() for k, v in x.items()]
  record.write_text(workdir / "report.md", "\n".join(lines) + "\n")
  return {}


def _summary(
  name: str, config: dict[str, Any], rows: list[record.Row]
) -> dict[str, Any]:
  """Of the rows of one measurement; the last row has notes."""
  ours = np.array([row["ours_ms"] for row in rows])
  theirs = np.array([row["theirs_ms"] for row in rows])
  share = name.endswith("share")
  ratios = ours / theirs if share else theirs / ours
  wanted = config["wanted"][name]
  judged = ours.sum() / theirs.sum() if share else np.median(ratios)
  notes = {
    key: max(row[key] for row in rows)
    for key in rows[0]
    if key.startswith("largest ")
  }
  met = judged <= wanted if share else judged >= wanted
  if name == "warm":
    met &= notes["largest residual"] <= config["warm"]["residual"]
  return {
    "ours_ms": float(np.median(ours)),
    "theirs_ms": float(np.median(theirs)),
    "median": float(np.median(ratios)),
    "least": float(ratios.min()),
    "largest": float(ratios.max()),
    **({"total": float(judged)} if share else {}),
    "wanted": wanted,
    "met": bool(met),
    "notes": notes,
  }


# From here on in the measuring process.


def _measure(workdir: pathlib.Path, data_dir: pathlib.Path) -> None:
  config = record.read_json(workdir / "config.json")["config"]
  writer = record.Writer(workdir / "metrics.jsonl")

  def write(step: int, condition: str, event: str, **values: Any) -> None:
    where = {"step": step, "kind": "event", "condition": condition}
    writer.write([{**where, "event": event, **values}])

  write(0, "machine", "start", **_machine())
  for step, condition, values in _against_numpy(config):
    write(step, condition, "measured", **values)
  data = mnist.load(data_dir)
  for step, condition, values in _beside_training(config["training"], data):
    write(step, condition, "measured", **values)
  write(0, "machine", "end", **{"load average after": os.getloadavg()})


def _machine() -> dict[str, Any]:
  cpu = platform.processor()
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = text.split("model name")[1].split("\n")[0].strip("\t :")
  except (OSError, IndexError):
    pass
  pinned = getattr(os, "sched_getaffinity", lambda _: None)(0)
  blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
  return {
    "cpu": cpu,
    "cpus of the machine": os.cpu_count(),
    "pinned to": "nothing" if pinned is None else sorted(pinned),
    "threads": {k: os.environ[k] for k in ONE_THREAD},
    "python": platform.python_version(),
    "jax": jax.__version__,
    "numpy": f"{np.__version__}, {blas['name']} {blas['version']}",
    "load average before": os.getloadavg(),
  }


def _ms(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Milliseconds until the result is there, and the result."""
  began = time.perf_counter()
  out = jax.block_until_ready(function(*args))
  return (time.perf_counter() - began) * 1e3, out


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
    ours, triplets = _ms(spectrum, jnp.asarray(a))
    theirs, values = _ms(numpy_svd, a)
    error = np.max(np.abs(np.asarray(triplets.values) / values - 1)[:, :k])
    del triplets  # Memory that is held is memory to be found anew.
    calls = []
    for _ in range(how["calls"]):
      a = a + np.float32(how["change"]) * gaussian()
      took, found = _ms(warm_from, jnp.asarray(a), warm)
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

  def loss(params: Any, batch: Any) -> Any:
    logits, _ = model.apply(params, batch["images"] / jnp.float32(255))
    losses = optax.softmax_cross_entropy_with_integer_labels(
      logits, batch["labels"]
    )
    return losses.mean(), {}

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
      ours, (numbers, kept) = _ms(probe, state)
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
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  _measure(*map(pathlib.Path, sys.argv[1:]))

"""The measuring process of `experiments.bench`, variant `optimizer`.

    python -m experiments.bench_optimizer WORKDIR DATA_DIR

Whole updates `tx.update(gradients, state, params)`, compiled, on stacks of the
kernels of a GPT-2, q, k, v `split` in three kernels or `fused` in one:

| condition | ours | theirs |
| --- | --- | --- |
| euclidean/LAYOUT | `euclidean` | optax's Muon, as many steps |
| hetero/LAYOUT | `stiefel` q, k, v, o and `dgram` up, down | `euclidean` |
| dual_ascent/LAYOUT | hetero, fewer layers | the same by dual ascent |

Each repeat of the first two measures the three optimizers one after the other,
and the peak: the rate of one square product. Times are those of the CPU, see
`experiments.bench_machine.cpu_ms`.
"""

import os
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from experiments import bench_flops, bench_machine
from geom import record
from geom.linalg import matmul
from geom.manifolds import dgram, euclidean, stiefel
from geom.optim import solvers
from geom.optim.manifold_muon import manifold_muon

ATTENTION = ("q", "k", "v", "qkv", "o")
Arrays = dict[str, jax.Array]


def measure(workdir: pathlib.Path) -> None:
  config = record.read_json(workdir / "config.json")["config"]
  write = bench_machine.Log(workdir)
  write(0, "machine", "start", **bench_machine.machine())
  for layout in config["layouts"]:
    _against_muon(config, layout, write)
    _against_dual_ascent(config, layout, write)
  write(0, "machine", "end", **{"load average after": os.getloadavg()})


def _against_muon(config: dict[str, Any], layout: str, write: Any) -> None:
  params = kernels(layout, config["layers"], config["width"])
  auto = solvers.auto(steps=config["steps"])
  sides = {
    "muon": _muon(config),
    "euclidean": _ours(config, euclidean(), auto),
    "hetero": _hetero(config, params, auto),
  }
  updates = {name: Update(tx, params) for name, tx in sides.items()}
  peak = Peak(config["peak_size"])
  for update in updates.values():
    update.ms()  # The first call is slower.
  for repeat in range(config["repeats"]):
    ms = {name: update.ms() for name, update in updates.items()}
    flops_a_ms = peak.flops_a_ms()
    for ours, theirs in (("euclidean", "muon"), ("hetero", "euclidean")):
      flops = updates[ours].flops
      write(
        repeat,
        f"{ours}/{layout}",
        "measured",
        ours_ms=ms[ours],
        theirs_ms=ms[theirs],
        flops=flops,
        their_flops=updates[theirs].flops,
        of_peak=flops / ms[ours] / flops_a_ms,
        their_of_peak=updates[theirs].flops / ms[theirs] / flops_a_ms,
        peak_gflops=flops_a_ms / 1e6,
      )


def _against_dual_ascent(
  config: dict[str, Any], layout: str, write: Any
) -> None:
  how = config["dual_ascent"]
  params = kernels(layout, how["layers"], config["width"])
  found = {
    "auto": solvers.auto(steps=config["steps"]),
    "dual_ascent": solvers.dual_ascent(iterations=how["iterations"]),
  }
  ours, theirs = (
    Update(_hetero(config, params, solver), params) for solver in found.values()
  )
  for repeat in range(how["repeats"]):
    write(
      repeat,
      f"dual_ascent/{layout}",
      "measured",
      ours_ms=ours.ms(),
      theirs_ms=theirs.ms(),
      flops=ours.flops,
      their_flops=theirs.flops,
    )


class Update:
  """A compiled update of an optimizer, and what its products cost.

  Of branches the cheaper one counts: it is the one that is taken, as weights
  on a manifold are near it after a step.
  """

  def __init__(self, tx: optax.GradientTransformation, params: Arrays):
    self._given = gradients(params), tx.init(params), params
    traced = jax.jit(tx.update).trace(*self._given)
    self._program = traced.lower().compile()
    self.flops = bench_flops.of_jaxpr(traced.jaxpr.jaxpr, min).flops

  def ms(self) -> float:
    return bench_machine.cpu_ms(self._program, *self._given)[0]


class Peak:
  """The rate of one square product in float32."""

  def __init__(self, size: int):
    self._a = jax.random.normal(jax.random.key(0), (size, size))
    self._program = jax.jit(matmul).lower(self._a, self._a).compile()
    self._flops = 2 * size**3

  def flops_a_ms(self) -> float:
    return self._flops / min(
      bench_machine.cpu_ms(self._program, self._a, self._a)[0] for _ in range(3)
    )


def kernels(layout: str, layers: int, width: int) -> Arrays:
  """Stacks `(layers, in, out)` with orthonormal rows or columns."""
  attention = ("q", "k", "v") if layout == "split" else ("qkv",)
  shapes = {name: (width, width) for name in (*attention, "o")}
  shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
  if layout == "fused":
    shapes["qkv"] = (width, 3 * width)
  rng = np.random.default_rng(0)

  def kernel(fan_in: int, fan_out: int) -> np.ndarray:
    long, short = max(fan_in, fan_out), min(fan_in, fan_out)
    q, _ = np.linalg.qr(rng.standard_normal((long, short)))
    return np.float32(q if fan_in >= fan_out else q.T)

  return {
    name: jnp.array(np.stack([kernel(*shape) for _ in range(layers)]))
    for name, shape in shapes.items()
  }


def gradients(params: Arrays) -> Arrays:
  """Gaussian, of Frobenius norm .05 a matrix."""
  rng = np.random.default_rng(1)

  def gradient(shape: tuple[int, ...]) -> jax.Array:
    size = 0.05 / np.sqrt(shape[-1] * shape[-2])
    return jnp.array(np.float32(size * rng.standard_normal(shape)))

  return {name: gradient(w.shape) for name, w in params.items()}


def _ours(
  config: dict[str, Any], manifold: Any, solver: solvers.Solver
) -> optax.GradientTransformation:
  return manifold_muon(
    config["lr"],
    manifold,
    momentum=config["momentum"],
    nesterov=False,
    solver=solver,
  )


def _hetero(
  config: dict[str, Any], params: Arrays, solver: solvers.Solver
) -> optax.GradientTransformation:
  return optax.partition(
    {
      "stiefel": _ours(config, stiefel(), solver),
      "dgram": _ours(config, dgram(), solver),
    },
    {name: "stiefel" if name in ATTENTION else "dgram" for name in params},
  )


def _muon(config: dict[str, Any]) -> optax.GradientTransformation:
  stack = contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
  return contrib.muon(
    config["lr"],
    ns_steps=config["steps"],
    beta=config["momentum"],
    nesterov=False,
    muon_weight_dimension_numbers=lambda params: {k: stack for k in params},
  )


if __name__ == "__main__":
  bench_machine.pin()
  measure(pathlib.Path(sys.argv[1]))

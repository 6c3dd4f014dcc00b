"""The measuring process of `experiments.bench`, variants `solvers*`.

    python -m experiments.bench_solvers WORKDIR DATA_DIR

One row for every pair (W, G), written as soon as it is measured; pairs that
have one are passed over. Of every solver it has

| number | meaning |
| --- | --- |
| flops | of its matrix products, counted in its jaxpr; LAPACK's are not |
| unknown_loops | loops whose length is not known, counted once |
| ms | CPU time of a call, the median of `repeats`, solvers in turns |
| tangency, spectral_norm, alignment | `geom.optim.solvers.quality` |
| gap | `1 - <G, A_T> / (max(1, ||A_T||_2) f*)` in float64 |

and of `auto` once more tangency and gap with G or W at other scales; of
`dual_ascent` with Gaussian G of a scale that suits it, where W.T W = I.
"""

import os
import pathlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import bench_flops, bench_machine, bench_optimum, bench_pairs
from geom import manifolds, record
from geom.optim import solvers


def measure(workdir: pathlib.Path) -> None:
  config = record.read_json(workdir / "config.json")["config"]
  done = {row["condition"] for row in record.read(workdir / "metrics.jsonl")}
  write = bench_machine.Log(workdir)
  write(0, "machine", "start", **bench_machine.machine())
  pairs = list(bench_pairs.all_pairs(config))
  programs: dict[tuple, dict[str, Any]] = {}
  for step, pair in enumerate(pairs):
    if pair.name in done:
      continue
    key = (pair.shape, pair.manifold)
    if key not in programs:
      programs = {key: _programs(config["solvers"], *key)}
    values = _of_pair(config, pair, programs[key])
    write(step, pair.name, "pair", **pair._asdict(), **values)
    print(f"{step + 1}/{len(pairs)} {pair.name}", file=sys.stderr, flush=True)
  write(0, "machine", "end", **{"load average after": os.getloadavg()})


class Programs(NamedTuple):
  """Compiled for one shape and manifold.

  Attributes:
    solve: by name of the solver, `(W, G) -> A`.
    flops: by name of the solver.
    quality: `(W, G, A) -> Quality`.
  """

  solve: dict[str, Callable[..., Any]]
  flops: dict[str, bench_flops.Products]
  quality: Callable[..., Any]


def _programs(
  names: list[str], shape: tuple[int, int], manifold: str
) -> Programs:
  on = manifolds.MANIFOLDS[manifold]()
  given = (jax.ShapeDtypeStruct(shape, jnp.float32),) * 2
  solve = {
    name: partial(solvers.solve, solvers.SOLVERS[name](), on) for name in names
  }
  traced = {name: jax.jit(f).trace(*given) for name, f in solve.items()}
  return Programs(
    {k: x.lower().compile() for k, x in traced.items()},
    {k: bench_flops.of_jaxpr(x.jaxpr.jaxpr) for k, x in traced.items()},
    jax.jit(partial(solvers.quality, on)),
  )


def _of_pair(
  config: dict[str, Any], pair: bench_pairs.Pair, programs: Programs
) -> dict[str, Any]:
  w, g = bench_pairs.make(pair, rank=config["rank"], norm=config["norm"])
  began = time.perf_counter()
  best = bench_optimum.optimum(w, g, pair.manifold, **config["optimum"])
  values = {
    "optimum": best.upper,
    "uncertainty": best.uncertainty,
    "optimum_s": time.perf_counter() - began,
  }
  for name, found in _of_solvers(config, pair, programs, w, g, best).items():
    values |= {f"{name}/{key}": value for key, value in found.items()}
  exact = partial(_exact, pair.manifold, w, g, best=best.upper)
  for label, solver, w_by, g_by in _scales(config, pair):
    given = np.float32(w_by) * w, np.float32(g_by) * g
    a = programs.solve[solver](*map(jnp.array, given))
    values |= {f"{label}/{k}": value for k, value in exact(a).items()}
  return values


def _of_solvers(
  config: dict[str, Any],
  pair: bench_pairs.Pair,
  programs: Programs,
  w: np.ndarray,
  g: np.ndarray,
  best: bench_optimum.Optimum,
) -> dict[str, dict[str, Any]]:
  """By solver, what the table above says."""
  ms: dict[str, list[float]] = {name: [] for name in programs.solve}
  directions, given = {}, (jnp.array(w), jnp.array(g))
  for _ in range(config["repeats"]):
    for name, solve in programs.solve.items():
      took, directions[name] = bench_machine.cpu_ms(solve, *given)
      ms[name].append(took)
  return {
    name: {
      **programs.flops[name]._asdict(),
      "ms": np.median(ms[name]),
      **programs.quality(*given, a)._asdict(),
      "gap": _exact(pair.manifold, w, g, a, best.upper)["gap"],
    }
    for name, a in directions.items()
  }


def _exact(
  manifold: str, w: np.ndarray, g: np.ndarray, a: Any, best: float
) -> dict[str, float]:
  """In float64: tangency, and the gap to f*."""
  problem = bench_optimum.Problem(w, g, manifold, reduce=False)
  a = problem.tall(np.float64(a))
  if not np.all(np.isfinite(a)):
    return {"tangency": np.nan, "gap": np.nan}
  off = np.linalg.norm(a - problem.tangent(a)) / np.linalg.norm(a)
  return {
    "tangency": float(off),
    "gap": 1 - problem.lower(a) * problem.size / best,
  }


def _scales(
  config: dict[str, Any], pair: bench_pairs.Pair
) -> list[tuple[str, str, float, float]]:
  """What else is solved: a label, the solver, factors on W and on G.

  `auto` is to be indifferent to scale; dual ascent has one that suits it.
  """
  found = [("as it is", "auto", 1.0, 1.0)]
  for by in config["scale_gradients"]:
    found.append((f"G times {by:g}", "auto", 1.0, by))
  if pair.manifold == "dgram":
    for by in config["scale_weights"]:
      found.append((f"W times {by:g}", "auto", by, 1.0))
  if pair.spectrum == "gaussian" and pair.spread == 1:
    by = config["easy_norm"] / config["norm"]
    found.append(("dual_ascent, easy", "dual_ascent", 1.0, by))
  return found


if __name__ == "__main__":
  bench_machine.pin()
  measure(pathlib.Path(sys.argv[1]))

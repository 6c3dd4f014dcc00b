"""What a manifold optimizer does to every matrix: on demand, not every step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from geom import manifolds
from geom.linalg import exact_triplets
from geom.manifolds import Manifold
from geom.optim import layout as layouts_of
from geom.optim.layout import Choice
from geom.optim.solvers import SOLVERS, Solver, quality, solve
from geom.roles import paths

Numbers = dict[str, Array]


def diagnose(
  params: Any,
  gradients: Any,
  manifold: Manifold,
  *,
  updates: Any = None,
  solver: Solver | str = "auto",
  **choices: Choice,
) -> dict[str, Numbers]:
  """Numbers of every matrix of a tree of kernels, by path of the parameter.

  Several matrices fused in one kernel are further entries of the stack; if
  they are of several sizes, each size has a path of its own, `path[0]` and so
  on. Uses LAPACK: call it outside of `jit`.

  Args:
    params: kernels `(*stack, in, out)`, as the optimizer's layout has them.
    gradients: of the same structure; or the momentum, to see the directions
      that the optimizer takes.
    manifold: where they are meant to be.
    updates: what was added to the parameters, of the same structure.
    solver: the optimizer's.
    **choices: orientation, fused, dimension_numbers: the optimizer's.

  Returns:
    By path a dict of arrays `(*stack,)`: `distance` to the manifold, relative;
    `tangency`, `alignment` and `spectral_norm` of the direction (see
    `geom.optim.solvers.Quality`); `sigma_max` and `sigma_min` of the weights;
    `update_rms`, the root mean square entry of the updates, if there are any;
    and `column_norms` `(*stack, min(in, out))` of the constrained vectors.
  """
  if isinstance(solver, str):
    solver = SOLVERS[solver]()
  direction = jax.jit(functools.partial(solve, solver, manifold))
  found = layouts_of.layouts(params, **choices)
  leaves = [paths(tree) for tree in (params, gradients)]
  moved = None if updates is None else paths(updates)
  out: dict[str, Numbers] = {}
  for path, w in leaves[0].items():
    trees = [w, leaves[1][path]] + ([] if moved is None else [moved[path]])
    parts = zip(*(layouts_of.split(x, found[path]) for x in trees), strict=True)
    named = list(parts)
    for i, part in enumerate(named):
      name = path if len(named) == 1 else f"{path}[{i}]"
      out[name] = _of_stack(manifold, direction, *part)
  return out


def _of_stack(
  manifold: Manifold,
  direction: Any,
  w: Array,
  g: Array,
  u: Array | None = None,
) -> Numbers:
  a = direction(w, g)
  how = quality(manifold, w, g, a)
  values = exact_triplets(w, min(w.shape[-2:])).values
  axis = -2 if w.shape[-2] >= w.shape[-1] else -1
  numbers = {
    "distance": manifolds.distance(manifold, w),
    **how._asdict(),
    "sigma_max": values[..., 0],
    "sigma_min": values[..., -1],
    "column_norms": jnp.linalg.norm(w, axis=axis),
  }
  if u is not None:
    numbers["update_rms"] = jnp.sqrt(jnp.mean(u * u, axis=(-1, -2)))
  return numbers

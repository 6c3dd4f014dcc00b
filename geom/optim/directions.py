"""What the optimizer of an assignment does to every kernel, while it trains.

Pure functions, cheap enough to compile into a probe; `geom.optim.diagnostics`
has the exact ones.
"""

from collections.abc import Iterable
from typing import Any

import optax
from jaxtyping import Array

from geom import manifolds
from geom.linalg import after
from geom.optim import layout as layouts_of
from geom.optim.assignment import manifold_of, solver_of
from geom.optim.assignment_table import Row
from geom.optim.rules import ADAMW
from geom.optim.solvers import quality, solve
from geom.roles import FUSED, paths, role_of

Numbers = dict[str, Array]


def momentum(opt_state: Any) -> dict[str, Array]:
  """The momentum buffers of `optax.trace` links, by path of the parameter."""
  found: dict[str, Array] = {}
  for _, tree in optax.tree.get_all_with_path(opt_state, "trace"):
    found |= {k: x for k, x in paths(tree).items() if hasattr(x, "shape")}
  return found


def directions(
  table: Iterable[Row], params: Any, gradients: dict[str, Array]
) -> dict[str, Numbers]:
  """Numbers of the directions taken, by projection (`q`, `up`, ...).

  Args:
    table: of an assignment (`geom.optim.assignment`).
    params: of the model.
    gradients: by path; or the momentum, to see the directions taken. Kernels
      on a manifold must be among them.

  Returns:
    Of every kernel that has a manifold arrays `(layer,)`: `tangency` and
    `alignment` of the direction (`geom.optim.solvers.Quality`), and
    `violation` of the manifold by the weights (`geom.manifolds.violation`).
    Fused kernels that are optimized apart have their parts' names; those of
    one matrix the name of the whole. Where a gradient is zero there is no
    direction: tangency and alignment are NaN.
  """
  leaves = paths(params)
  out: dict[str, Numbers] = {}
  done: list[Array] = []
  for row in table:
    if row.manifold == ADAMW:
      continue
    manifold, solver = manifold_of(row), solver_of(row)
    layout = layouts_of.Layout(None, row.fused, row.orientation)
    w, g = leaves[row.parameter], gradients[row.parameter]
    parts = zip(
      layouts_of.split(w, layout), layouts_of.split(g, layout), strict=True
    )
    numbers = []
    for w_part, g_part in parts:
      # One after the other: some solvers and retractions call LAPACK.
      w_part = after(w_part, *done)
      a = solve(solver, manifold, w_part, g_part)
      how = quality(manifold, w_part, g_part, a, exact=False)
      violation = manifolds.violation(manifold, after(w_part, a))
      numbers.append(
        {
          "tangency": how.tangency,
          "alignment": how.alignment,
          "violation": violation,
        }
      )
      done = [violation]
    out |= _named(role_of(row.parameter).projection, row.fused, numbers)
  return out


def _named(
  projection: str,
  fused: int | tuple[int, ...] | None,
  numbers: list[Numbers],
) -> dict[str, Numbers]:
  """The numbers of each matrix of a kernel, by its own projection."""
  if fused is None:
    return {projection: numbers[0]}
  count = fused if isinstance(fused, int) else len(fused)
  if len(numbers) == 1:  # Equal matrices are one stack.
    numbers = [
      {k: x[..., i] for k, x in numbers[0].items()} for i in range(count)
    ]
  names = FUSED.get(projection, ())
  if len(names) != count:
    names = tuple(f"{projection}[{i}]" for i in range(count))
  return dict(zip(names, numbers, strict=True))

"""One optimizer for a whole model, with a manifold for each of its modules.

    found = assign(params, "hetero", lr=0.02)
    print(format_table(found.table))        # of geom.optim.assignment_table
    params, moved = found.project(params)   # before step 0
    state = found.tx.init(params)

Kernels go to Manifold Muon on the manifold that the rules give them, all else
to AdamW: module-wise assignment, arXiv 2606.13276. Its settings are the
defaults, but for the solver, the retraction of `dgram`, and qkv, which is three
matrices here; with `faithful` these are the paper's too.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array

from geom.linalg import after
from geom.manifolds import Manifold
from geom.optim import manifold_muon, rules, solvers
from geom.optim.assignment_table import Row, fingerprint, rows
from geom.optim.rules import ADAMW, Rule
from geom.roles import path_name

Rate = optax.ScalarOrSchedule


class Assignment(NamedTuple):
  """What `assign` found.

  Attributes:
    tx: the optimizer of all parameters. Nothing may follow it in a chain.
    table: a row a parameter; `format_table` prints it.
    project: `project(params) -> (params, distances)`: the nearest parameters
      on their manifolds, to start from, and how far each was, relative to its
      norm, by path. By LAPACK: not to be compiled on a CPU.
    fingerprint: what `tx` does to each parameter, by path, as JSON has it.
  """

  tx: optax.GradientTransformation
  table: list[Row]
  project: Callable[[Any], tuple[Any, dict[str, Array]]]
  fingerprint: dict[str, dict[str, Any]]


def assign(
  params: Any,
  assignment: str | Mapping[str, Any],
  *,
  lr: Rate = 0.02,
  momentum: float | None = 0.95,
  nesterov: bool = True,
  adamw_lr: Rate = 6e-4,
  adamw_betas: tuple[float, float] = (0.9, 0.95),
  adamw_weight_decay: float = 0.1,
  clip: float | None = 1.0,
  solver: str = "auto",
  orientation: str = "short",
  fused: str = "split",
  momentum_dtype: Any = None,
  checked: bool = False,
  faithful: bool = False,
) -> Assignment:
  """The optimizer that keeps every parameter where the rules put it.

  Args:
    params: nested dicts of arrays or ShapeDtypeStructs; every parameter needs
      a role (`geom.roles`). Leaves may be None.
    assignment: a name of `geom.optim.rules.NAMED`, or rules: see that module.
      Rules override the arguments below.
    lr: of Manifold Muon: a number or a schedule. `warmup_cosine` is the
      paper's.
    momentum, nesterov, momentum_dtype, checked: of Manifold Muon.
    adamw_lr, adamw_betas: of the rest.
    adamw_weight_decay: decoupled; of matrices among the rest, embeddings
      included, not of vectors.
    clip: the largest global norm of the gradient; None: any.
    solver: a name of `geom.optim.solvers.SOLVERS`.
    orientation: see `geom.optim.layout`.
    fused: `split` kernels of several matrices as their role says (qkv in
      three), or `whole`: one matrix.
    faithful: the paper's solver (`dual_ascent`), retraction of `dgram`
      (`sorted_svd`), fused kernels as one matrix.

  Raises:
    ValueError: see `geom.optim.rules`; a parameter has no role; a kernel does
      not split as it should; `faithful` and one of its three choices.
  """
  if faithful:
    if (solver, orientation, fused) != ("auto", "short", "split"):
      raise ValueError(
        "faithful chooses solver, orientation and fused: leave them, or set "
        "them in a rule"
      )
    solver, fused = "dual_ascent", "whole"
  defaults = Rule(
    "",
    "",
    weight_decay=adamw_weight_decay,
    lr_factor=1.0,
    solver=solver,
    orientation=orientation,
    fused=fused,
    shape_scaling="none",
    retraction="sorted_svd" if faithful else "column",
  )
  table = rows(params, assignment, defaults)
  found = {row.parameter: row for row in table}

  def manifold_group(row: Row) -> optax.GradientTransformation:
    mine = [other for other in table if other.group == row.group]
    return manifold_muon.manifold_muon(
      _times(lr, row.lr_factor),
      manifold_of(row),
      momentum=momentum,
      nesterov=nesterov,
      solver=solver_of(row),
      shape_scaling=row.shape_scaling,
      weight_decay=row.weight_decay or None,
      orientation={r.parameter: r.orientation for r in mine},
      fused={r.parameter: r.fused for r in mine},
      momentum_dtype=momentum_dtype,
      checked=checked,
    )

  def adamw_group(row: Row) -> optax.GradientTransformation:
    return optax.adamw(
      _times(adamw_lr, row.lr_factor),
      *adamw_betas,
      weight_decay=row.weight_decay,
    )

  groups = {
    row.group: (adamw_group if row.manifold == ADAMW else manifold_group)(row)
    for row in {row.group: row for row in table}.values()
  }
  in_turn = [
    group
    for group in groups
    if any(row.group == group and _calls_lapack(row) for row in table)
  ]
  labels = jax.tree_util.tree_map_with_path(
    lambda path, _: found[path_name(path)].group, params
  )
  links = _partitions(groups, labels, in_turn)
  if clip is not None:
    links.insert(0, optax.clip_by_global_norm(clip))
  return Assignment(
    tx=optax.chain(*links),
    table=table,
    project=lambda params: _project(params, found),
    fingerprint=fingerprint(
      table,
      of_all={"clip": clip},
      of_manifolds={"lr": lr, "momentum": momentum, "nesterov": nesterov},
      of_adamw={"lr": adamw_lr, "betas": adamw_betas},
    ),
  )


def warmup_cosine(
  peak: float, *, num_steps: int, warmup_steps: int
) -> optax.Schedule:
  """From 0 up to the peak in a line, then down to a tenth by half a cosine.

  The paper has 50,000 steps, 1000 of them up. The step 0 has rate 0.
  """
  return optax.warmup_cosine_decay_schedule(
    0.0, peak, warmup_steps, num_steps, end_value=peak / 10
  )


def manifold_of(row: Row) -> Manifold:
  """The manifold of a parameter that is on one."""
  return rules.make_manifold(row.manifold, retraction=row.retraction, c=row.c)


def solver_of(row: Row) -> solvers.Solver:
  """The solver of a parameter that is on a manifold."""
  if row.solver == "dual_ascent" and row.manifold == "euclidean":
    # The multiplier stays 0: all iterations give the same bits.
    return solvers.dual_ascent(iterations=1)
  return solvers.SOLVERS[row.solver]()


def _calls_lapack(row: Row) -> bool:
  return row.manifold != ADAMW and (
    manifold_of(row).lapack or solver_of(row).lapack
  )


def _times(rate: Rate, factor: float) -> Rate:
  if callable(rate):
    return rate if factor == 1 else lambda count: factor * rate(count)
  return factor * rate


def _partitions(
  groups: dict[str, optax.GradientTransformation],
  labels: Any,
  in_turn: list[str],
) -> list[optax.GradientTransformation]:
  """The groups side by side, but those that call LAPACK one by one.

  On a CPU LAPACK calls of one program that may run at the same time can hang.
  """
  links = []
  turns = [in_turn[:1], *([group] for group in in_turn[1:])]
  for i, turn in enumerate(turns):
    now = [g for g in groups if g in turn or (i == 0 and g not in in_turn)]
    others = {g: optax.identity() for g in groups if g not in now}
    if i:
      links.append(_barrier())
    links.append(
      optax.partition({**others, **{g: groups[g] for g in now}}, labels)
    )
  return links


def _barrier() -> optax.GradientTransformation:
  """A link that what follows waits for."""

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    del params
    every = jax.tree.leaves(updates)
    return jax.tree.map(lambda u: after(u, *every), updates), state

  return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _project(
  params: Any, found: Mapping[str, Row]
) -> tuple[Any, dict[str, Array]]:
  distances: dict[str, Array] = {}

  def one(path: Any, w: Array) -> Array:
    name = path_name(path)
    if name not in found:
      raise ValueError(f"parameter {name!r} is not in the assignment")
    row = found[name]
    if row.manifold == ADAMW:
      return w
    near, moved = manifold_muon.project(
      {name: w},
      manifold_of(row),
      orientation=row.orientation,
      fused={name: row.fused},
    )
    distances.update(moved)
    return near[name]

  return jax.tree_util.tree_map_with_path(one, params), distances

"""What an assignment does to each parameter: rows, a table, a fingerprint."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

from geom import roles
from geom.optim import layout as layouts_of
from geom.optim import rules
from geom.optim.layout import Layout
from geom.optim.rules import ADAMW, Rule
from geom.roles import Role


class Row(NamedTuple):
  """What becomes of one parameter.

  Attributes:
    parameter: its path.
    shape: its shape.
    role: `module/projection`.
    rule: the pattern of the rule that has it.
    manifold: the name of its manifold, or `adamw`.
    lr_factor: of the learning rate of its optimizer.
    weight_decay: decoupled, times the learning rate.
    solver, orientation, shape_scaling: of Manifold Muon; None with AdamW.
    fused: None for one matrix; else how many equal ones, or their sizes.
    retraction: of `dgram`.
    c: of `stiefel`, where it is not 1.
    group: rows of one group share a transformation.
  """

  parameter: str
  shape: tuple[int, ...]
  role: str
  rule: str
  manifold: str
  lr_factor: float = 1.0
  weight_decay: float = 0.0
  solver: str | None = None
  orientation: str | None = None
  fused: int | tuple[int, ...] | None = None
  shape_scaling: str | None = None
  retraction: str | None = None
  c: float | None = None
  group: str = ""

  @property
  def lr(self) -> str:
    """Which learning rate it has: the argument's name."""
    return "adamw_lr" if self.manifold == ADAMW else "lr"

  @property
  def how(self) -> tuple[Any, ...]:
    """What rows of one group agree in."""
    return (
      self.manifold,
      self.retraction,
      self.c,
      self.solver,
      self.shape_scaling,
      self.weight_decay,
      self.lr_factor,
    )


def rows(
  params: Any, assignment: str | Mapping[str, Any], defaults: Rule
) -> list[Row]:
  """A row for every parameter of a tree.

  Args:
    params: nested dicts of what has a shape.
    assignment: a name, or rules.
    defaults: what holds where a rule sets nothing; its `weight_decay` is that
      of matrices with AdamW.

  Raises:
    ValueError: see `geom.optim.assignment.assign`.
  """
  shapes = {path: x.shape for path, x in roles.paths(params).items()}
  if not shapes:
    raise ValueError("there are no parameters to assign")
  try:
    found = {path: roles.role_of(path) for path in shapes}
  except KeyError as error:
    raise ValueError(error.args[0]) from None
  has = rules.claims(
    rules.parse(assignment), found, every=not isinstance(assignment, str)
  )
  for option in ("solver", "orientation", "fused"):
    rules.check_option(option, getattr(defaults, option))
  table = [
    _row(path, shapes[path], found[path], has[path], defaults)
    for path in shapes
  ]
  numbers: dict[tuple, str] = {}
  for row in table:
    alike = [how for how in numbers if how[0] == row.manifold]
    numbers.setdefault(row.how, f"{row.manifold}_{len(alike)}")
  return [row._replace(group=numbers[row.how]) for row in table]


def _row(
  path: str, shape: tuple[int, ...], role: Role, rule: Rule, defaults: Rule
) -> Row:
  def chosen(option: str) -> Any:
    value = getattr(rule, option)
    return getattr(defaults, option) if value is None else value

  row = Row(
    parameter=path,
    shape=shape,
    role=f"{role.module}/{role.projection}",
    rule=rule.pattern,
    manifold=rule.manifold,
    lr_factor=chosen("lr_factor"),
  )
  if rule.manifold == ADAMW:
    decay = chosen("weight_decay") if role.is_matrix else 0.0
    return row._replace(weight_decay=decay)
  return row._replace(
    weight_decay=rule.weight_decay or 0.0,
    solver=chosen("solver"),
    orientation=chosen("orientation"),
    fused=_parts(path, shape, role, chosen("fused")),
    shape_scaling=chosen("shape_scaling"),
    retraction=chosen("retraction") if rule.manifold == "dgram" else None,
    c=rule.c,
  )


def _parts(
  path: str,
  shape: tuple[int, ...],
  role: Role,
  fused: str | int | tuple[int, ...],
) -> int | tuple[int, ...] | None:
  """What `geom.optim.layout` calls fused."""
  if fused == "whole":
    return None
  if fused == "split":
    if role.parts == 1:
      return None
    fan_in, fan_out = shape[-2:]
    # Queries may have more heads than keys and values.
    if role.module == "attention" and fan_out != role.parts * fan_in:
      raise ValueError(
        f"parameter {path!r} of shape {shape} is not {role.parts} square "
        f"matrices: give its rule 'fused', their number or sizes"
      )
    fused = role.parts
  layouts_of.layouts(
    {path: jax.ShapeDtypeStruct(shape, float)}, fused={path: fused}
  )
  return None if fused == 1 else fused


HEADER = (
  "parameter", "shape", "role", "manifold", "matrices", "side", "solver",
  "decay", "rate",
)  # fmt: skip


def format_table(table: Iterable[Row]) -> str:
  """The table as text in aligned columns.

  `matrices` are those that the constraint sees, (in, out), `3 x` of them side
  by side in a kernel; `side` is where their Gram matrix is held: the shorter
  one, and of square ones what `orientation` says.
  """
  lines = [HEADER, *map(_cells, table)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return "\n".join(
    "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines
  )


def fingerprint(
  table: Iterable[Row],
  *,
  of_all: Mapping[str, Any],
  of_manifolds: Mapping[str, Any],
  of_adamw: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
  """By path, all that decides what is done to a parameter, as JSON has it.

  Args:
    table: of the assignment.
    of_all: settings that all parameters share; likewise the other two. A
      schedule is `schedule`, whatever it does.
  """
  options = (
    "manifold", "weight_decay", "lr_factor", "solver", "orientation", "fused",
    "shape_scaling", "retraction", "c",
  )  # fmt: skip

  def one(row: Row) -> dict[str, Any]:
    shared = of_adamw if row.manifold == ADAMW else of_manifolds
    chosen = {key: getattr(row, key) for key in options}
    kept = {k: v for k, v in chosen.items() if v is not None}
    return {k: _plain(v) for k, v in {**kept, **shared, **of_all}.items()}

  return {row.parameter: one(row) for row in table}


def _plain(value: Any) -> Any:
  if callable(value):
    return "schedule"
  if isinstance(value, (list, tuple)):
    return [_plain(v) for v in value]
  if value is None or isinstance(value, (bool, int, str)):
    return value
  return float(value)


def _cells(row: Row) -> tuple[str, ...]:
  rate = row.lr if row.lr_factor == 1 else f"{row.lr_factor:g} {row.lr}"
  first = (row.parameter, _size(row.shape), row.role)
  decay = f"{row.weight_decay:g}"
  if row.manifold == ADAMW:
    return (*first, ADAMW, "-", "-", "-", decay, rate)
  if row.shape_scaling != "none":
    rate = f"{rate}, {row.shape_scaling}"
  return (
    *first, _place(row), *_matrices(row), str(row.solver), decay, rate,
  )  # fmt: skip


def _place(row: Row) -> str:
  """The manifold and the option of its own, where that is not the usual."""
  if row.c is not None:
    return f"{row.manifold} c={row.c:g}"
  usual = row.retraction in (None, "column")
  return row.manifold if usual else f"{row.manifold} {row.retraction}"


def _matrices(row: Row) -> tuple[str, str]:
  """The matrices that a constraint sees, and where their Gram matrix is."""
  layout = Layout(None, row.fused, row.orientation or "short")
  fans = layouts_of.fans(row.shape, layout)
  count = row.fused if isinstance(row.fused, int) else 1
  # Several of one size are given once.
  if isinstance(row.fused, tuple) and len(fans) < len(row.fused):
    count = len(row.fused)
  sizes = " ".join(_size(fan) for fan in fans)
  sides = dict.fromkeys(_side(*fan, layout) for fan in fans)
  side = "-" if row.manifold == "euclidean" else " ".join(sides)
  return (sizes if count == 1 else f"{count} x {sizes}"), side


def _side(fan_in: int, fan_out: int, layout: Layout) -> str:
  if fan_in == fan_out:
    return "output" if layout.orientation == "output" else "input"
  return "input" if fan_in < fan_out else "output"


def _size(shape: tuple[int, ...]) -> str:
  return f"({', '.join(map(str, shape))})"

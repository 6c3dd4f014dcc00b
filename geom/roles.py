"""What each parameter of a model is: one table.

Optimizers and probes pick their matrices by it.

A path such as `hidden/kernel` is matched against `TABLE` from the top; the
first pattern that fits the whole path decides. A path that nothing matches is
an error, so a new model cannot silently leave a matrix without a role.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Role(NamedTuple):
  """What a parameter is.

  Attributes:
    module: the part of the network: `embed`, `mlp`, `head`, `norm`.
    projection: the name of the map, for one curve or one row of a table.
    reads_residual: its input space is the residual stream, where the model
      has one.
    writes_residual: its output space is the residual stream, likewise.
    nonlinearity: an elementwise nonlinearity may follow its output.
    axes: a name for every axis; `layer` first marks a stack over layers.
  """

  module: str
  projection: str
  reads_residual: bool
  writes_residual: bool
  nonlinearity: bool
  axes: tuple[str, ...]

  @property
  def is_stack(self) -> bool:
    """A stack `(layer, in, out)` of kernels of one projection."""
    return len(self.axes) == 3 and self.axes[0] == "layer"


TABLE: dict[str, Role] = {
  # The residual MLP (geom/models/resmlp.py).
  r"embed/kernel": Role("embed", "embed", False, True, False, ("in", "out")),
  r"hidden/kernel": Role(
    "mlp", "hidden", True, True, True, ("layer", "in", "out")
  ),
  r"hidden/bias": Role("mlp", "hidden", False, True, True, ("layer", "out")),
  r"hidden/norm/(scale|bias)": Role(
    "norm", "norm", True, False, False, ("layer", "in")
  ),
  r"head/kernel": Role("head", "head", True, False, False, ("in", "out")),
  r"embed/bias": Role("embed", "bias", False, True, False, ("out",)),
  r"head/bias": Role("head", "bias", False, False, False, ("out",)),
}


def paths(params: Any) -> dict[str, Any]:
  """The leaves of a tree of nested dicts, by `a/b/c` path."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {_name(path): leaf for path, leaf in leaves}


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def role_of(path: str) -> Role:
  """The role of the parameter at a path such as `hidden/kernel`.

  Raises:
    KeyError: no pattern of `TABLE` matches the whole path.
  """
  for pattern, role in TABLE.items():
    if re.fullmatch(pattern, path):
      return role
  raise KeyError(f"no role for parameter {path!r}; add it to geom.roles.TABLE")


def map_with_role(f: Callable[[Role, Any], Any], params: Any) -> Any:
  """`f(role, leaf)` of every parameter, as a tree like the parameters.

  Raises:
    KeyError: a parameter has no role.
  """
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: f(role_of(_name(path)), leaf), params
  )


def stacks(params: Any) -> dict[str, Any]:
  """The stacks `(layer, in, out)` of a params-like tree, by projection.

  Works on anything with the structure of the parameters of a model of this
  package: weights, gradients, updates. For another model pass its stacks to
  the probes yourself; they want arrays and no roles.

  Raises:
    KeyError: a parameter has no role.
  """
  found = {path: (role_of(path), x) for path, x in paths(params).items()}
  return {role.projection: x for role, x in found.values() if role.is_stack}

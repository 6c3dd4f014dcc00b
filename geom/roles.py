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
    module: the part of the network: `embed`, `attention`, `mlp`, `head`,
      `norm`.
    projection: the name of the map, for one curve or one row of a table.
    reads_residual: its input space is the residual stream, where the model
      has one.
    writes_residual: its output space is the residual stream, likewise.
    nonlinearity: an elementwise nonlinearity may follow its output.
    axes: a name for every axis; `layer` first marks a stack over layers.
    parts: how many equal maps lie side by side along `out`: 3 in `qkv`.
  """

  module: str
  projection: str
  reads_residual: bool
  writes_residual: bool
  nonlinearity: bool
  axes: tuple[str, ...]
  parts: int = 1

  @property
  def is_stack(self) -> bool:
    """A stack `(layer, in, out)` of kernels of one projection."""
    return len(self.axes) == 3 and self.axes[0] == "layer"

  @property
  def is_kernel(self) -> bool:
    """A kernel `(in, out)`, or a stack of them."""
    return self.axes[-2:] == ("in", "out")

  @property
  def is_matrix(self) -> bool:
    """Has two axes besides the layers': a kernel, or a table of vectors."""
    return len(self.axes) - (self.axes[0] == "layer") >= 2


def _in_blocks(
  module: str, projection: str, reads: bool, nonlinear: bool, parts: int = 1
) -> dict[str, Role]:
  """Kernel and bias of a projection of a transformer's blocks."""
  kernel = Role(
    module,
    projection,
    reads_residual=reads,
    writes_residual=not reads,
    nonlinearity=nonlinear,
    axes=("layer", "in", "out"),
    parts=parts,
  )
  path = rf"blocks/{module}/{projection}"
  return {
    rf"{path}/kernel": kernel,
    rf"{path}/bias": kernel._replace(axes=("layer", "out")),
  }


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
  # Transformers, as GPT-2 and as Llama: blocks stacked over layers.
  r"embed/tokens": Role(
    "embed", "tokens", False, True, False, ("token", "out")
  ),
  r"embed/positions": Role(
    "embed", "positions", False, True, False, ("position", "out")
  ),
  **_in_blocks("attention", "qkv", reads=True, nonlinear=False, parts=3),
  **_in_blocks("attention", "q", reads=True, nonlinear=False),
  **_in_blocks("attention", "k", reads=True, nonlinear=False),
  **_in_blocks("attention", "v", reads=True, nonlinear=False),
  **_in_blocks("attention", "o", reads=False, nonlinear=False),
  **_in_blocks("mlp", "up", reads=True, nonlinear=True),
  **_in_blocks("mlp", "gate", reads=True, nonlinear=True),
  **_in_blocks("mlp", "gate_up", reads=True, nonlinear=True, parts=2),
  **_in_blocks("mlp", "down", reads=False, nonlinear=False),
  # Of queries and keys, whose axis is that of a head.
  r"blocks/attention/[qk]_norm/(scale|bias)": Role(
    "norm", "head_norm", False, False, False, ("layer", "in")
  ),
  r"blocks/\w*norm\w*/(scale|bias)": Role(
    "norm", "norm", True, False, False, ("layer", "in")
  ),
  r"\w*norm\w*/(scale|bias)": Role("norm", "norm", True, False, False, ("in",)),
}


# Which norm's gain the input of a projection has been multiplied with.
GAINS = {
  "hidden": "hidden/norm/scale",
  **dict.fromkeys(("q", "k", "v"), "blocks/attention_norm/scale"),
  **dict.fromkeys(("gate", "up"), "blocks/mlp_norm/scale"),
}
# The maps that lie side by side in a fused projection, in order.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


def paths(params: Any) -> dict[str, Any]:
  """The leaves of a tree of nested dicts, by `a/b/c` path."""
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {path_name(path): leaf for path, leaf in leaves}


def path_name(path: Any) -> str:
  """`a/b/c` of a path that `jax.tree_util` gives."""
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
    lambda path, leaf: f(role_of(path_name(path)), leaf), params
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


def projections(params: Any) -> dict[str, Any]:
  """Like `stacks`, with fused projections taken apart: `q`, `k` and `v`.

  Raises:
    KeyError: a parameter has no role.
  """
  found = {}
  for name, stack in stacks(params).items():
    names = FUSED.get(name, (name,))
    size = stack.shape[-1] // len(names)
    found |= {
      part: stack[..., i * size : (i + 1) * size]
      for i, part in enumerate(names)
    }
  return found


def folded(params: Any) -> dict[str, Any]:
  """`projections`, each with the gain of the norm before it: `diag(gain) K`.

  That is the kernel which acts on the normalised stream. Projections without
  a norm before them are as they are.

  Raises:
    KeyError: a parameter has no role.
  """
  named = paths(params)
  found = {}
  for name, stack in projections(params).items():
    gain = named.get(GAINS.get(name, ""))
    found[name] = stack if gain is None else gain[..., :, None] * stack
  return found

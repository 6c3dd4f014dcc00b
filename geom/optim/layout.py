"""Where the matrices are in a parameter, and which way round.

A Flax kernel `(in, out)`, a stack of them `(..., in, out)`, a kernel with more
axes (optax's `MuonDimensionNumbers` say which), and several matrices side by
side in one kernel (q, k, v): all become stacks of matrices, and go back.
"""

import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers

from geom.roles import path_name

ORIENTATIONS = ("short", "input", "output")


class Layout(NamedTuple):
  """How one parameter is read as matrices `(in, out)`.

  Attributes:
    dimension_numbers: which axes are the input and the output, the others
      being stacked; None: the last two.
    fused: None if the kernel is one matrix. Else the matrices that lie side
      by side along its output axis: how many equal ones, or the size of each.
    orientation: on which side of a square matrix the Gram matrix is
      constrained: `input`, as the code of arXiv 2606.13276 does, or `output`.
      Of others it is the shorter side. `short` is `input`.
  """

  dimension_numbers: MuonDimensionNumbers | None = None
  fused: int | tuple[int, ...] | None = None
  orientation: str = "short"


# A value for every parameter, or a tree or dict of values whose paths or
# patterns (`*/qkv/*`) are matched against the parameters' paths.
Choice = Any


def layouts(
  tree: Any,
  *,
  dimension_numbers: Choice = None,
  fused: Choice = None,
  orientation: Choice = "short",
) -> dict[str, Layout]:
  """The layout of every leaf of a params-like tree, by path.

  Raises:
    TypeError: a choice is a function or an array.
    ValueError: a parameter is no matrix or stack of matrices in that layout,
      or the orientation is unknown.
  """
  found = {}
  for path, leaf in _leaves(tree):
    layout = Layout(
      _chosen("dimension_numbers", dimension_numbers, path),
      _chosen("fused", fused, path),
      _chosen("orientation", orientation, path) or "short",
    )
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise ValueError(f"parameter {path!r} has type {leaf.dtype}, not a float")
    _axes(path, leaf.shape, layout)
    found[path] = layout
  return found


def split(x: Array, layout: Layout) -> list[Array]:
  """The matrices of a parameter: stacks `(..., in, out)` of one shape each.

  Fused matrices of one size are one stack `(..., matrices, in, out)`.
  Square ones that are constrained on the input side come transposed: the
  functions of `geom.manifolds` constrain the columns of square matrices.
  """
  x = _by_axes(x, layout)
  sizes = _sizes(x.shape[-1], layout.fused)
  if len(sizes) == 1:
    parts = [x]
  elif len(set(sizes)) == 1:
    equal = x.reshape(*x.shape[:-1], len(sizes), sizes[0])
    parts = [jnp.moveaxis(equal, -2, -3)]
  else:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    parts = jnp.split(x, ends, axis=-1)
  return [_turned(part, layout) for part in parts]


def join(parts: list[Array], like: Array, layout: Layout) -> Array:
  """The inverse of `split`, for a parameter of the shape of `like`."""
  parts = [_turned(part, layout) for part in parts]
  shape = jax.eval_shape(lambda x: _by_axes(x, layout), like).shape
  sizes = _sizes(shape[-1], layout.fused)
  if len(sizes) == 1:
    (x,) = parts
  elif len(set(sizes)) == 1:
    x = jnp.moveaxis(parts[0], -3, -2).reshape(shape)
  else:
    x = jnp.concatenate(parts, axis=-1)
  if layout.dimension_numbers is None:
    return x
  batch, ins, outs = _axes("", like.shape, layout)
  order = (*batch, *ins, *outs)
  x = x.reshape([like.shape[axis] for axis in order])
  return jnp.transpose(x, [order.index(axis) for axis in range(like.ndim)])


def fans(shape: tuple[int, ...], layout: Layout) -> list[tuple[int, int]]:
  """Input and output size of the matrices that `split` gives, in order."""
  _, ins, outs = _axes("", shape, layout)
  fan_in, fan_out = (
    math.prod(shape[axis] for axis in axes) for axes in (ins, outs)
  )
  sizes = _sizes(fan_out, layout.fused)
  if len(set(sizes)) == 1:
    sizes = sizes[:1]
  return [(fan_in, size) for size in sizes]


def map_matrices(
  f: Callable[..., Array], layout: Layout, x: Array, *rest: Array
) -> Array:
  """`f` of the stacks of matrices of arrays of one shape, put together."""
  parts = zip(*(split(each, layout) for each in (x, *rest)), strict=True)
  return join([f(*part) for part in parts], x, layout)


def _turned(part: Array, layout: Layout) -> Array:
  square = part.shape[-2] == part.shape[-1]
  if square and layout.orientation != "output":
    return jnp.swapaxes(part, -1, -2)
  return part


def _by_axes(x: Array, layout: Layout) -> Array:
  """As a stack `(..., in, out)`."""
  if layout.dimension_numbers is None:
    return x
  batch, ins, outs = _axes("", x.shape, layout)
  shape = [
    *(x.shape[axis] for axis in batch),
    math.prod(x.shape[axis] for axis in ins),
    math.prod(x.shape[axis] for axis in outs),
  ]
  return jnp.transpose(x, (*batch, *ins, *outs)).reshape(shape)


def _axes(
  path: str, shape: tuple[int, ...], layout: Layout
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
  """Stacked, input and output axes; raises ValueError where they cannot be."""
  rank, what = len(shape), f"parameter {path!r} of shape {shape}"
  if rank < 2:
    raise ValueError(
      f"{what} is no matrix; give it to another optimizer by optax.partition"
    )
  if layout.orientation not in ORIENTATIONS:
    raise ValueError(
      f"orientation {layout.orientation!r} is none of {', '.join(ORIENTATIONS)}"
    )
  numbers = layout.dimension_numbers or MuonDimensionNumbers(-2, -1)
  ins, outs = (
    (axes,) if isinstance(axes, int) else tuple(axes)
    for axes in (numbers.reduction_axis, numbers.output_axis)
  )
  if not all(-rank <= axis < rank for axis in (*ins, *outs)):
    raise ValueError(f"{what} has no axes {ins} and {outs}")
  ins, outs = (tuple(a % rank for a in axes) for axes in (ins, outs))
  if len({*ins, *outs}) < len(ins) + len(outs) or not ins or not outs:
    raise ValueError(f"{what}: input axes {ins}, output axes {outs} overlap")
  batch = tuple(a for a in range(rank) if a not in (*ins, *outs))
  fan_out = math.prod(shape[axis] for axis in outs)
  if not _sizes(fan_out, layout.fused):
    raise ValueError(
      f"{what}: its output axis of {fan_out} is not {layout.fused!r} fused "
      f"matrices"
    )
  return batch, ins, outs


def _sizes(total: int, fused: int | tuple[int, ...] | None) -> tuple[int, ...]:
  """Of fused matrices along an axis; empty if they do not fit."""
  if fused is None:
    return (total,)
  if isinstance(fused, int):
    fits = fused >= 1 and total % fused == 0
    return (total // fused,) * fused if fits else ()
  sizes = tuple(fused)
  return sizes if sum(sizes) == total and min(sizes) > 0 else ()


def require_static(name: str, choice: Choice) -> None:
  """Raises TypeError for what `optax.inject_hyperparams` makes of a choice."""
  if callable(choice):
    raise TypeError(
      f"{name}: a function is taken for a schedule by inject_hyperparams; give "
      f"its result for the parameters, or a dict of patterns of their paths"
    )
  if isinstance(choice, jax.Array):
    raise TypeError(
      f"{name}: became an array; name it in inject_hyperparams' static_args"
    )


def _chosen(name: str, choice: Choice, path: str) -> Any:
  require_static(name, choice)
  if isinstance(choice, Mapping):
    for pattern, value in _leaves(choice):
      if path == pattern or fnmatch.fnmatchcase(path, pattern):
        return value
    return None
  return choice


def _leaves(tree: Any) -> list[tuple[str, Any]]:
  """Leaves by `a/b` path; tuples of numbers are values."""
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_value)
  return [(path_name(path), leaf) for path, leaf in leaves]


def _is_value(x: Any) -> bool:
  if isinstance(x, MuonDimensionNumbers):
    return True
  return isinstance(x, tuple) and all(isinstance(i, int) for i in x) and x != ()

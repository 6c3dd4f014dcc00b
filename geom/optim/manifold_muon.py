"""Manifold Muon as links of an optax chain.

    optax.chain(
      optax.trace(0.95, nesterov=True),
      steepest_descent(manifold),        # gradients -> directions
      optax.scale_by_learning_rate(lr),
      retract(manifold),                 # u -> R(W + u) - W: the last link
    )

What comes before `retract` is linear in the learning rate, so schedules, masks
and `optax.partition` work as always. Nothing may come after it. Keep the
parameters on the manifold from the start: `project`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from geom import manifolds
from geom.linalg import after
from geom.manifolds import Manifold
from geom.optim import layout as layouts_of
from geom.optim.layout import Choice, Layout, map_matrices
from geom.optim.solvers import SOLVERS, Solver, solve
from geom.roles import path_name

SHAPE_SCALINGS = ("none", "width", "rms")


class ManifoldError(RuntimeError):
  """Parameters are not on the manifold on which an optimizer moves them."""


def manifold_muon(
  learning_rate: optax.ScalarOrSchedule,
  manifold: Manifold,
  *,
  momentum: ArrayLike | None = 0.95,
  nesterov: bool = True,
  bias_correction: bool = False,
  solver: Solver | str = "auto",
  shape_scaling: str = "none",
  weight_decay: optax.ScalarOrSchedule | None = None,
  orientation: Choice = "short",
  fused: Choice = None,
  dimension_numbers: Choice = None,
  momentum_dtype: Any = None,
  checked: bool = False,
) -> optax.GradientTransformation:
  """Steepest descent under the spectral norm on a manifold, with momentum.

  Every parameter it gets must be a kernel `(in, out)` or a stack of them; give
  the others to another optimizer by `optax.partition`. On `euclidean` it is
  Muon. (arXiv 2606.13276; Bernstein, *Modular manifolds*, 2025.)

  Args:
    learning_rate: the spectral norm of a step before retraction; a number or
      an optax schedule.
    manifold: where the parameters are, and stay: see `geom.manifolds`.
    momentum: `b = momentum b + g`; None: none.
    nesterov: use `g + momentum b` in place of b.
    bias_correction: momentum as `optax.contrib.muon` has it, an average whose
      first steps are corrected. Without `nesterov` the directions are the
      same, as they do not depend on scale; with it the weight of g differs.
    solver: of `geom.optim.solvers`, or its name.
    shape_scaling: factor on the directions, by shape: `none`; `width`,
      `sqrt(max(1, out / in))`, as Muon has it; `rms`, `0.2 sqrt(max(out,
      in))`, which gives `euclidean` steps the rms of AdamW's. It multiplies
      the learning rate of a matrix and leaves the constraint as it is, but
      steps of a spectral norm near 1 leave the region where a retraction is
      accurate: on `stiefel` prefer `none`.
    weight_decay: decoupled, times the learning rate. Only on manifolds that
      are cones (`euclidean`, `dgram`), where it shrinks the scale.
    orientation: `short`, `input` or `output`; see `geom.optim.layout`.
    fused: how many matrices lie side by side in a kernel, or their sizes.
    dimension_numbers: optax's `MuonDimensionNumbers`, for kernels whose axes
      are not `(..., in, out)`. This and the two above: one value for all, or a
      tree or dict by path or pattern, `{"*/qkv/*": 3}`.
    momentum_dtype: of the accumulator; by default that of the parameters.
    checked: raise `ManifoldError` at the step that finds its parameters off
      the manifold, for finding a link after this chain that moves them. What
      a retraction keeps, such as a column of zeros, is not noticed.

  Raises:
    ValueError: weight decay on a manifold that is no cone, or an unknown name.
      At init: a parameter is no matrix. At update: no `params`.
    TypeError: a function for one of the three that go by path.
  """
  if (
    weight_decay is not None
    and not manifold.cone
    and not _is_zero(weight_decay)
  ):
    raise ValueError(
      f"weight decay leaves the manifold {manifold.name}: it is no cone"
    )
  choices = {
    "orientation": orientation,
    "fused": fused,
    "dimension_numbers": dimension_numbers,
  }
  for name, choice in choices.items():
    layouts_of.require_static(name, choice)
  links = []
  if momentum is not None:
    make = _average if bias_correction else optax.trace
    links.append(
      make(momentum, nesterov=nesterov, accumulator_dtype=momentum_dtype)
    )
  links.append(steepest_descent(manifold, solver=solver, **choices))
  if shape_scaling != "none":
    links.append(scale_by_shape(shape_scaling, **choices))
  if weight_decay is not None:
    links.append(optax.add_decayed_weights(weight_decay))
  links.append(optax.scale_by_learning_rate(learning_rate))
  links.append(retract(manifold, checked=checked, **choices))
  return optax.chain(*links)


def steepest_descent(
  manifold: Manifold, *, solver: Solver | str = "auto", **choices: Choice
) -> optax.GradientTransformation:
  """A link: gradients (or momentum) G -> directions A of steepest ascent.

  `A = msign(G + 2 W X)`, as good as the solver finds it: of spectral norm 1,
  tangent to the manifold at W, whatever the scale of G. Zero gives zero.

  Args:
    manifold: one that the parameters are on.
    solver: of `geom.optim.solvers`, or its name.
    **choices: orientation, fused, dimension_numbers, as in `manifold_muon`.
  """
  if isinstance(solver, str):
    if solver not in SOLVERS:
      raise ValueError(f"solver {solver!r} is none of {', '.join(SOLVERS)}")
    solver = SOLVERS[solver]()
  one = functools.partial(solve, solver, manifold)

  def direction(layout: Layout, g: Array, w: Array) -> Array:
    return map_matrices(lambda g, w: one(w, g), layout, g, w)

  return _link(direction, choices, in_order=solver.lapack)


def retract(
  manifold: Manifold, *, checked: bool = False, **choices: Choice
) -> optax.GradientTransformation:
  """The last link: updates u -> `R(W + u) - W`, R the manifold's retraction.

  A matrix whose update is all zero gets exactly zero. Computed in float32 or
  wider.

  Args:
    manifold: one that the parameters are on.
    checked: raise `ManifoldError` where they are not (needs callbacks, and
      costs three matrix products a matrix).
    **choices: orientation, fused, dimension_numbers, as in `manifold_muon`.
  """

  def move(u: Array, w: Array) -> Array:
    wide = jnp.promote_types(jnp.promote_types(u.dtype, w.dtype), jnp.float32)
    w = w.astype(wide)
    to = manifolds.retract(manifold, w + u.astype(wide))
    moved = jnp.any(u != 0, axis=(-1, -2), keepdims=True)
    return jnp.where(moved, to - w, 0).astype(u.dtype)

  def update(layout: Layout, u: Array, w: Array) -> Array:
    return map_matrices(move, layout, u, w)

  def check(path: str, layout: Layout, w: Array) -> None:
    for part in layouts_of.split(w, layout):
      if part.size:
        off = jnp.max(manifolds.violation(manifold, part))
        allowed = 30 * float(jnp.finfo(w.dtype).eps) + 1e-4
        jax.debug.callback(
          functools.partial(_require_on, manifold.name, path, allowed), off
        )

  return _link(
    update, choices, in_order=manifold.lapack, check=check if checked else None
  )


def scale_by_shape(
  kind: str, **choices: Choice
) -> optax.GradientTransformation:
  """A link: a factor on every matrix by its shape; see `manifold_muon`."""
  if kind not in SHAPE_SCALINGS:
    raise ValueError(
      f"shape_scaling {kind!r} is none of {', '.join(SHAPE_SCALINGS)}"
    )

  def update(layout: Layout, u: Array, w: Array) -> Array:
    del w
    parts = layouts_of.split(u, layout)
    factors = [
      shape_factor(kind, *fan) for fan in layouts_of.fans(u.shape, layout)
    ]
    scaled = [f * part for f, part in zip(factors, parts, strict=True)]
    return layouts_of.join(scaled, u, layout)

  return _link(update, choices)


def shape_factor(kind: str, fan_in: int, fan_out: int) -> float:
  """What `shape_scaling` multiplies the directions of a matrix by."""
  if kind == "none" or not fan_in * fan_out:
    return 1.0
  if kind == "width":
    return math.sqrt(max(1, fan_out / fan_in))
  return 0.2 * math.sqrt(max(fan_in, fan_out))


def project(
  params: optax.Params, manifold: Manifold, **choices: Choice
) -> tuple[optax.Params, dict[str, Array]]:
  """The nearest parameters on the manifold, before step 0, and how far.

  Args:
    params: a tree of kernels.
    manifold: where to.
    **choices: orientation, fused, dimension_numbers, as in `manifold_muon`.

  Returns:
    The projected tree, and by path of the parameter `||W - nearest||_F /
    ||W||_F`, the largest of its matrices. Runs leaf by leaf, not to be
    compiled as a whole on a CPU (see `geom.manifolds.project`).
  """
  found, distances = layouts_of.layouts(params, **choices), {}

  def one(path: Any, w: Array) -> Array:
    path = path_name(path)
    if not w.size:
      return w
    near = map_matrices(
      functools.partial(manifolds.project, manifold), found[path], w
    )
    both = [layouts_of.split(x, found[path]) for x in (w, near)]
    distances[path] = jnp.max(
      jnp.stack([jnp.max(manifolds.moved(*p)) for p in zip(*both, strict=True)])
    )
    return near

  return jax.tree_util.tree_map_with_path(one, params), distances


def _link(
  f: Callable[[Layout, Array, Array], Array],
  choices: dict[str, Choice],
  *,
  in_order: bool = False,
  check: Callable[[str, Layout, Array], None] | None = None,
) -> optax.GradientTransformation:
  """A stateless link that maps `f(layout, update, parameter)` over leaves.

  With `in_order` one leaf waits for the one before: LAPACK calls that may run
  at the same time inside one program can hang on a CPU.
  """

  def init(params: optax.Params) -> optax.EmptyState:
    layouts_of.layouts(params, **choices)
    return optax.EmptyState()

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    if params is None:
      raise ValueError(
        "needs the parameters: tx.update(updates, state, params)"
      )
    found, before = layouts_of.layouts(params, **choices), []

    def one(path: Any, u: Array | None, w: Array | None) -> Array | None:
      if u is None or not u.size:
        return u
      layout = found[path_name(path)]
      if check is not None:
        check(path_name(path), layout, w)
      if in_order:
        # The first waits for what comes before this link.
        u = after(u, *(before or jax.tree.leaves(updates)))
      before[:] = [f(layout, u, w)]
      return before[0]

    out = jax.tree_util.tree_map_with_path(
      one, updates, params, is_leaf=lambda x: x is None
    )
    return out, state

  return optax.GradientTransformation(init, update)


def _average(
  decay: ArrayLike, nesterov: bool, accumulator_dtype: Any
) -> optax.GradientTransformation:
  """Momentum as in `optax.contrib.scale_by_muon`: bias-corrected averages."""

  def init(params: optax.Params) -> Any:
    mu = optax.tree.zeros_like(params, dtype=accumulator_dtype)
    return jnp.zeros((), jnp.int32), mu

  def update(updates: Any, state: Any, params: Any = None) -> Any:
    del params
    count, mu = state
    count = optax.safe_increment(count)
    mu = optax.tree.update_moment(updates, mu, decay, 1)
    if nesterov:
      ahead = optax.tree.bias_correction(mu, decay, optax.safe_increment(count))
      now = optax.tree.bias_correction(updates, decay, count)
      out = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, ahead, now)
    else:
      out = optax.tree.bias_correction(mu, decay, count)
    return out, (count, optax.tree.cast(mu, accumulator_dtype))

  return optax.GradientTransformation(init, update)


def _require_on(name: str, path: str, allowed: float, off: Any) -> None:
  if not off <= allowed:
    raise ManifoldError(
      f"parameter {path!r} is off the manifold {name} by {float(off):.1e}: it "
      f"was not projected at the start, or a link after retract moves it"
    )


def _is_zero(x: Any) -> bool:
  return isinstance(x, (int, float)) and x == 0

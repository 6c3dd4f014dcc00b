"""Links of an optax chain that change nothing and remember something.

    tx = optax.chain(sum_of("gradients"), optax.adam(1e-3), last("updates"))

`seen(opt_state)` then has the running sum of the gradients and the optimizer's
last update, for probes that compare the weights with either.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Select = Callable[[Any], Any]


class Observed(NamedTuple):
  """What a link remembers, by name: a tree of arrays."""

  seen: dict[str, Any]


def _all(tree: Any) -> Any:
  return tree


def sum_of(name: str, select: Select = _all) -> optax.GradientTransformation:
  """Remembers the running sum of what passes, in float32.

  Args:
    name: under which `seen` has it.
    select: of a params-like tree, the part to remember, such as
      `geom.roles.stacks`.
  """

  def init(params: Any) -> Observed:
    zeros = jax.tree.map(
      lambda x: jnp.zeros(x.shape, jnp.float32), select(params)
    )
    return Observed({name: zeros})

  def update(updates: Any, state: Observed, params: Any = None) -> Any:
    del params
    total = jax.tree.map(
      lambda s, x: s + x.astype(jnp.float32), state.seen[name], select(updates)
    )
    return updates, Observed({name: total})

  return optax.GradientTransformation(init, update)


def last(name: str, select: Select = _all) -> optax.GradientTransformation:
  """Remembers the last of what passes: zero before the first.

  Args:
    name: under which `seen` has it.
    select: of a params-like tree, the part to remember.
  """

  def init(params: Any) -> Observed:
    return Observed({name: jax.tree.map(jnp.zeros_like, select(params))})

  def update(updates: Any, state: Observed, params: Any = None) -> Any:
    del state, params
    return updates, Observed({name: select(updates)})

  return optax.GradientTransformation(init, update)


def seen(opt_state: Any) -> dict[str, Any]:
  """All that the links of a chain remember, wherever they are in it."""
  found: dict[str, Any] = {}
  leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, Observed))
  for leaf in leaves:
    if isinstance(leaf, Observed):
      found |= leaf.seen
  return found

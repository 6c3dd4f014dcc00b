"""The states of all seeds at step 0."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from geom.models.base import Params
from geom.train.state import State, new_state
from geom.train.watch import Watch

# Parameters -> those to start from, and how far each was moved, by path.
Project = Callable[[Params], tuple[Params, Mapping[str, Any]]]


def start_states(
  init: Callable[[Any], Params],
  tx: optax.GradientTransformation,
  reference: Callable[[Params], Any],
  seeds: Sequence[int],
  project: Project | None = None,
  watch: Watch | None = None,
) -> tuple[State, list[Mapping[str, Any]]]:
  """The states of all seeds, stacked.

  Args:
    init: key -> parameters.
    tx: the optimizer.
    reference: parameters at step 0 -> what measurements compare with.
    seeds: of initialisation (`jax.random.key(seed)`).
    project: applied to the parameters of each seed, not compiled.
    watch: what counts as unstable; None: there is no watch.

  Returns:
    The states, and what `project` says of each seed; [] without it.
  """
  keys = jnp.stack([jax.random.key(seed) for seed in seeds])

  def start(params: Params) -> State:
    return new_state(params, tx, reference(params), watch)

  if project is None:
    mapped = jax.jit(lambda keys: jax.lax.map(lambda k: start(init(k)), keys))
    return mapped(keys), []
  params = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)
  each = [
    project(jax.tree.map(lambda x, i=i: x[i], params))
    for i in range(len(seeds))
  ]
  params = jax.tree.map(lambda *x: jnp.stack(x), *(p for p, _ in each))
  states = jax.jit(lambda params: jax.lax.map(start, params))(params)
  return states, [moved for _, moved in each]

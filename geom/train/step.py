"""The training step as a pure function, and several of them a dispatch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from geom.train.state import HEALTHY, State

Batch = Any
Metrics = dict[str, Any]
# loss(params, batch) -> (loss, named scalars)
Loss = Callable[[Any, Batch], tuple[Float[Array, ""], Metrics]]
Step = Callable[[State, Batch], tuple[State, Metrics]]
Chunk = Callable[[State, Batch, Int[Array, ""]], tuple[State, Metrics]]


def make_step(loss: Loss, tx: optax.GradientTransformation) -> Step:
  """One update: `step(state, batch) -> (state, metrics)`.

  Args:
    loss: `loss(params, batch) -> (scalar, dict of named scalars)`, the dict
      empty if there is nothing to add.
    tx: any optax transformation; its updates are added.

  The metrics are `loss`, `grad_norm` (global, of the raw gradient) and what
  the loss names. Where loss or gradient is not finite the state is left as it
  was, but for `failed_at`, and so it is left by every step after that.
  """

  def step(state: State, batch: Batch) -> tuple[State, Metrics]:
    (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, batch
    )
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    healthy = state.failed_at == HEALTHY

    def update(state: State) -> State:
      updates, opt_state = tx.update(grads, state.opt_state, state.params)
      return state._replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
      )

    def keep(state: State) -> State:
      failed_at = jnp.where(healthy, state.step + 1, state.failed_at)
      return state._replace(failed_at=failed_at)

    state = jax.lax.cond(finite & healthy, update, keep, state)
    return state, {"loss": value, "grad_norm": norm, **aux}

  return step


def make_chunk(step: Step, length: int) -> Chunk:
  """Up to `length` steps in one dispatch: `chunk(state, batches, n)`.

  `batches` has a leading axis of `length`, of which the first n <= length
  are used; n is data, so that every n runs the one compiled program and the
  result does not depend on how a run is cut into chunks. Metrics must be
  floating; they get a leading axis of `length`, NaN from n on.
  """

  def chunk(
    state: State, batches: Batch, n: Int[Array, ""]
  ) -> tuple[State, Metrics]:
    first = jax.tree.map(lambda x: x[0], batches)
    shapes = jax.eval_shape(step, state, first)[1]
    metrics = jax.tree.map(
      lambda s: jnp.full((length, *s.shape), jnp.nan, s.dtype), shapes
    )

    def body(
      i: Int[Array, ""], carry: tuple[State, Metrics]
    ) -> tuple[State, Metrics]:
      state, metrics = carry
      state, new = step(state, jax.tree.map(lambda x: x[i], batches))
      return state, jax.tree.map(lambda m, x: m.at[i].set(x), metrics, new)

    return jax.lax.fori_loop(0, jnp.minimum(n, length), body, (state, metrics))

  return chunk


def over_seeds(chunk: Chunk) -> Chunk:
  """A chunk of one seed -> one of a leading axis of seeds, in one program.

  `lax.map` runs the seeds one after the other through the same code, so the
  numbers of a seed are bitwise those that it has alone (`vmap`'s are not).
  """

  def mapped(
    states: State, batches: Batch, n: Int[Array, ""]
  ) -> tuple[State, Metrics]:
    return jax.lax.map(lambda xs: chunk(*xs, n), (states, batches))

  return mapped

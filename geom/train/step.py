"""The training step as a pure function, and several of them a dispatch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from geom.train import watch as watch_of
from geom.train.state import HEALTHY, State
from geom.train.watch import NOT_YET, Watch

Batch = Any
Metrics = dict[str, Any]
# loss(params, batch) -> (loss, named scalars)
Loss = Callable[[Any, Batch], tuple[Float[Array, ""], Metrics]]
Step = Callable[[State, Batch], tuple[State, Metrics]]
Chunk = Callable[[State, Batch, Int[Array, ""]], tuple[State, Metrics]]


def make_step(
  loss: Loss, tx: optax.GradientTransformation, watch: Watch | None = None
) -> Step:
  """One update: `step(state, batch) -> (state, metrics)`.

  Args:
    loss: `loss(params, batch) -> (scalar, dict of named scalars)`, the dict
      empty if there is nothing to add.
    tx: any optax transformation; its updates are added.
    watch: what counts as unstable, for a state that has such a watch.

  The metrics are `loss`, `grad_norm` (global, of the raw gradient) and what
  the loss names; with a watch also `watch`, what it has seen after the step.
  Where loss or gradient is not finite the state is left as it was, but for
  `failed_at`, and so it is left by every step after that. Where a watch that
  is to stop the run fires, the step's update is the last.
  """

  def step(state: State, batch: Batch) -> tuple[State, Metrics]:
    (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(
      state.params, batch
    )
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    healthy = state.failed_at == HEALTHY
    if watch is not None and watch.stop:
      healthy &= state.watch.fired_at == NOT_YET

    def update(state: State) -> State:
      updates, opt_state = tx.update(grads, state.opt_state, state.params)
      state = state._replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
      )
      if watch is None:
        return state
      seen = watch_of.look(
        watch,
        state.watch,
        step=state.step,
        loss=value,
        reference=state.reference,
      )
      return state._replace(watch=seen)

    def keep(state: State) -> State:
      failed_at = jnp.where(healthy, state.step + 1, state.failed_at)
      return state._replace(failed_at=failed_at)

    state = jax.lax.cond(finite & healthy, update, keep, state)
    metrics = {"loss": value, "grad_norm": norm, **aux}
    if watch is not None:
      metrics["watch"] = state.watch
    return state, metrics

  return step


def make_chunk(step: Step, length: int) -> Chunk:
  """Up to `length` steps in one dispatch: `chunk(state, batches, n)`.

  `batches` has a leading axis of `length`, of which the first n <= length
  are used; n is data, so that every n runs the one compiled program and the
  result does not depend on how a run is cut into chunks. Metrics get a
  leading axis of `length`; from n on they are NaN, integers -1.
  """

  def unset(like: jax.ShapeDtypeStruct) -> Array:
    floating = jnp.issubdtype(like.dtype, jnp.floating)
    value = jnp.nan if floating else -1
    return jnp.full((length, *like.shape), value, like.dtype)

  def chunk(
    state: State, batches: Batch, n: Int[Array, ""]
  ) -> tuple[State, Metrics]:
    first = jax.tree.map(lambda x: x[0], batches)
    shapes = jax.eval_shape(step, state, first)[1]
    metrics = jax.tree.map(unset, shapes)

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

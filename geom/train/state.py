"""The training state: arrays only."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from geom.models.base import Params
from geom.train import watch as watch_of
from geom.train.watch import Watch, Watched

HEALTHY = -1


class State(NamedTuple):
  """All that a run is, besides its place in the data.

  Attributes:
    step: updates made.
    params: nested dict of arrays.
    opt_state: of the optax transformation.
    reference: what probes compare with, such as the weights at step 0; any
      tree of arrays, `{}` where nothing is.
    failed_at: the step whose loss or gradient was not finite, -1 while there
      is none. A failed state is left as it was before that step, for good.
    watch: what a watch has seen of the run; `()` where there is none.
  """

  step: Int[Array, "*seed"]
  params: Params
  opt_state: Any
  reference: Any
  failed_at: Int[Array, "*seed"]
  watch: Watched | tuple[()] = ()


def new_state(
  params: Params,
  tx: optax.GradientTransformation,
  reference: Any,
  watch: Watch | None = None,
) -> State:
  """The state at step 0.

  Raises:
    ValueError: the watch makes no sense.
  """
  return State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=tx.init(params),
    reference=reference,
    failed_at=jnp.full((), HEALTHY, jnp.int32),
    watch=() if watch is None else watch_of.begin(watch),
  )

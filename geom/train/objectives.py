"""What is minimised, as pure functions of parameters and a batch."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from geom.models.base import Model, Params


def classification_loss(
  model: Model, params: Params, batch: dict[str, Array]
) -> tuple[Float[Array, ""], dict[str, Array]]:
  """Mean cross-entropy in nats; accuracy and taps beside it.

  Args:
    model: `(batch, pixels)` -> logits.
    params: of the model.
    batch: `images` `(batch, pixels)`, bytes, given to the model as 0 to 1,
      and `labels` `(batch,)`.
  """
  logits, taps = model.apply(params, batch["images"] / jnp.float32(255))
  labels = batch["labels"]
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
  return jnp.mean(loss), {"accuracy": accuracy, **taps}

"""What is minimised, as pure functions of parameters and a batch."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from geom.models.base import LanguageModel, Model, Params
from geom.train.cross_entropy import cross_entropy


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


def next_token_loss(
  model: LanguageModel,
  params: Params,
  batch: dict[str, Array],
  *,
  chunk: int | None = None,
) -> tuple[Float[Array, ""], dict[str, Array]]:
  """Mean cross-entropy of the next token, in nats a token.

  Args:
    model: of tokens.
    params: of the model.
    batch: `tokens` `(batch, time + 1)`, of which all but the last are given
      and all but the first are predicted.
    chunk: positions whose logits exist at a time; None: all.
  """
  given, wanted = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
  h, _ = model.features(params, given)
  return cross_entropy(
    h.reshape(-1, h.shape[-1]),
    model.unembedding(params),
    wanted.reshape(-1),
    chunk=chunk,
  ), {}

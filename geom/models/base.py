"""What a model is: pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Of products, by the name a config gives it.
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

Params = Any  # A nested dict of arrays, nothing else.
Taps = dict[str, Any]  # What a forward pass shows of itself, by name.


class Model(NamedTuple):
  """A model as a value of pure functions; no Flax type crosses this border.

  Attributes:
    init: `init(key) -> params`, a plain nested dict of float32 arrays.
    apply: `apply(params, inputs) -> (outputs, taps)`.
  """

  init: Callable[[Any], Params]
  apply: Callable[[Params, Any], tuple[Any, Taps]]


# What a block shows to whoever asks, by name, all of one layer: `stream`
# `(batch, time, width)`, as the block reads it; `logits` `(batch, head, time,
# time)`, as attention's softmax is given them, -inf where a key is not seen;
# `preactivation` `(batch, time, hidden)`, what the MLP's activation is given.
Seen = dict[str, Any]
# Made of it while the model runs; the results come back stacked over layers.
Tap = Callable[[Seen], Taps]


class LanguageModel(NamedTuple):
  """A causal model of tokens, open before its last product.

  Attributes:
    init: `init(key) -> params`.
    features: `features(params, tokens, tap=None) -> (features, taps)`, tokens
      `(batch, time)`, features `(batch, time, width)`, of which logits are
      the product with `unembedding`; taps are what `tap` makes of each layer.
    unembedding: `unembedding(params) -> (vocabulary, width)`.
    apply: `apply(params, tokens, tap=None) -> (logits, taps)`, logits float32
      `(batch, time, vocabulary)`.
  """

  init: Callable[[Any], Params]
  features: Callable[..., tuple[Any, Taps]]
  unembedding: Callable[[Params], Any]
  apply: Callable[..., tuple[Any, Taps]]


def language_model(
  init: Callable[[Any], Params],
  features: Callable[..., tuple[Any, Taps]],
  unembedding: Callable[[Params], Any],
) -> LanguageModel:
  """The model whose logits are the product of features and unembedding."""

  def apply(
    params: Params, tokens: Int[Array, "b t"], tap: Tap | None = None
  ) -> tuple[Float[Array, "b t v"], Taps]:
    h, taps = features(params, tokens, tap)
    table = unembedding(params).astype(h.dtype)
    logits = jnp.einsum(
      "btd,vd->btv", h, table, preferred_element_type=jnp.float32
    )
    return logits, taps

  return LanguageModel(init, features, unembedding, apply)

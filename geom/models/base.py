"""What a model is: pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

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

"""What a model is: two pure functions."""

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

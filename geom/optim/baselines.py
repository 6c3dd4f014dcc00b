"""Plain optax optimizers, by the name a config gives them."""

import optax

NAMES = ("adam", "sgd")


def baseline(
  *,
  name: str,
  lr: float,
  betas: tuple[float, float] | None,
  eps: float | None,
  momentum: float | None,
) -> optax.GradientTransformation:
  """The optimizer of that name, from a config's numbers.

  | name   | reads               | must be None |
  | ------ | ------------------- | ------------ |
  | `adam` | lr, betas, eps      | momentum     |
  | `sgd`  | lr, momentum (None) | betas, eps   |

  Raises:
    ValueError: an unknown name, or a number that the optimizer does not read
      (so that no sweep varies a number without effect), or one that lacks.
  """
  if name == "adam":
    if betas is None or eps is None or momentum is not None:
      raise ValueError("adam takes betas and eps, and momentum=None")
    return optax.adam(lr, b1=betas[0], b2=betas[1], eps=eps)
  if name == "sgd":
    if betas is not None or eps is not None:
      raise ValueError("sgd takes momentum or None, and betas=None, eps=None")
    return optax.sgd(lr, momentum=momentum)
  raise ValueError(f"optimizer {name!r} is none of {', '.join(NAMES)}")

"""Plain optax optimizers, by the name a config gives them."""

from collections.abc import Mapping
from typing import Any

import optax
from optax import contrib

from geom import roles

# What each reads, besides the learning rate.
READS = {
  "adam": ("betas", "eps"),
  "sgd": ("momentum",),
  "sign": (),
  "muon": ("momentum", "adam_lr", "betas"),
}
NAMES = tuple(READS)


def baseline(
  *,
  name: str,
  lr: float,
  betas: tuple[float, float] | None,
  eps: float | None,
  momentum: float | None,
  adam_lr: float | None,
) -> optax.GradientTransformation:
  """The optimizer of that name, from a config's numbers.

  | name   | reads                        | None allowed |
  | ------ | ---------------------------- | ------------ |
  | `adam` | lr, betas, eps               |              |
  | `sgd`  | lr, momentum                 | momentum     |
  | `sign` | lr                           |              |
  | `muon` | lr, momentum, adam_lr, betas |              |

  `sign` is sign descent. `muon` is optax's, Nesterov, on every kernel of a
  stack by itself, at its usual scale sqrt(max(1, out / in)); everything else
  gets Adam with Nesterov momentum, `adam_lr` and `betas`.

  Raises:
    ValueError: an unknown name, a number that lacks, or one that the
      optimizer does not read, so that no sweep varies it without effect.
  """
  given = {
    "betas": betas, "eps": eps, "momentum": momentum, "adam_lr": adam_lr,
  }  # fmt: skip
  require(name, given, READS)
  if name == "adam":
    return optax.adam(lr, b1=betas[0], b2=betas[1], eps=eps)
  if name == "sgd":
    return optax.sgd(lr, momentum=momentum)
  if name == "sign":
    return optax.sign_sgd(lr)
  return contrib.muon(
    lr,
    beta=momentum,
    adam_b1=betas[0],
    adam_b2=betas[1],
    adam_learning_rate=adam_lr,
    muon_weight_dimension_numbers=_stacks,
  )


def require(
  name: str, given: Mapping[str, Any], reads: Mapping[str, tuple[str, ...]]
) -> None:
  """Raises ValueError unless an optimizer has what it reads, and no more.

  Args:
    name: of the optimizer.
    given: what a config says; None is nothing.
    reads: by optimizer what it reads, all of which it needs (but `sgd`).
  """
  if name not in reads:
    raise ValueError(f"optimizer {name!r} is none of {', '.join(reads)}")
  unread = [
    k for k, v in given.items() if v is not None and k not in reads[name]
  ]
  if unread:
    raise ValueError(
      f"optimizer {name} does not read {', '.join(unread)}: set to None"
    )
  lacks = [k for k in reads[name] if given[k] is None and name != "sgd"]
  if lacks:
    raise ValueError(f"optimizer {name} needs {', '.join(lacks)}, got None")


def _stacks(params: Any) -> Any:
  """Which axes of each parameter are a matrix, for Muon: those of stacks."""
  stack = contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
  return roles.map_with_role(
    lambda role, _: stack if role.is_stack else None, params
  )

"""The optimizer of a condition of `experiments.continuity_mlp`."""

from typing import Any

import jax
import optax

from geom.models.resmlp import resmlp
from geom.optim import baselines
from geom.optim.assignment import Assignment, assign

READS = {
  **baselines.READS,
  "manifold_muon": ("assignment", "momentum", "adam_lr", "betas"),
}
NAMES = tuple(READS)


def optimizer(
  settings: dict[str, Any],
) -> tuple[optax.GradientTransformation, Assignment | None]:
  """The optimizer, and for `manifold_muon` where each parameter is.

  `manifold_muon` reads lr, momentum, adam_lr, betas and `assignment`, a name
  or rules (`geom.optim.rules`). As the other optimizers here it does not clip,
  and nothing decays but by a rule. Uses no device.

  Raises:
    ValueError: `baselines.baseline` or `assign` says why.
  """
  optim = dict(settings["optim"])
  assignment = optim.pop("assignment")
  name, lr = optim["name"], optim["lr"]
  others = {k: v for k, v in optim.items() if k not in ("name", "lr")}
  baselines.require(name, {"assignment": assignment, **others}, READS)
  if name != "manifold_muon":
    return baselines.baseline(**optim), None
  model = resmlp(**settings["model"])
  found = assign(
    jax.eval_shape(lambda: model.init(jax.random.key(0))),
    assignment,
    lr=lr,
    momentum=optim["momentum"],
    adamw_lr=optim["adam_lr"],
    adamw_betas=optim["betas"],
    adamw_weight_decay=0.0,
    clip=None,
  )
  return found.tx, found

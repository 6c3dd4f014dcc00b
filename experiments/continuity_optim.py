"""The optimizer of a condition of `experiments.continuity_mlp`."""

import pathlib
import sys
from typing import Any

import jax
import optax

from geom import record
from geom.models.resmlp import resmlp
from geom.optim import baselines
from geom.optim.assignment import Assignment, assign
from geom.optim.assignment_table import format_table

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


def say_assignment(
  name: str, settings: dict[str, Any], workdir: pathlib.Path
) -> None:
  """Prints and keeps the table of what each parameter gets, the first time."""
  _, assignment = optimizer(settings)
  path = workdir / "assignments" / f"{name}.txt"
  if assignment is None or path.exists():
    return
  table = format_table(assignment.table)
  print(f"{name}:\n{table}", file=sys.stderr)
  path.parent.mkdir(exist_ok=True)
  record.write_text(path, f"{table}\n")

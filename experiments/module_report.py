"""The report of `experiments.module_manifolds`: what `geom.report` is told."""

import pathlib
from typing import Any

import jax.numpy as jnp

from experiments import module_claims as claims
from experiments.module_config import optimizer
from geom import record
from geom.conditions import changed
from geom.config_sections import schedule
from geom.optim.assignment_table import Row
from geom.probes.continuity import chance_cosine
from geom.report.manifolds import write_report

MODULES = ("attention", "mlp")
ARMS = ("unconstrained", "all_stiefel", "all_dgram", "hetero", "hetero_inv")
# What is drawn together.
GROUPS = {
  "paper": (*ARMS, "adamw"),
  "scale": (
    "hetero", "hetero_inv", "hetero_inv_decay", "all_dgram", "all_dgram_decay",
    "unconstrained", "unconstrained_nodecay", "hetero_inv_qk_norm",
    "hetero_inv_cap",
  ),
  "method": (
    "hetero", "hetero_split", "hetero_faithful", "hetero_inv",
    "hetero_inv_split", "hetero_inv_sorted", "hetero_inv_faithful",
  ),
  "slow": tuple(f"{name}_slow" for name in ARMS),
  "long": tuple(f"{name}_slow_long" for name in ARMS),
  "ramp": tuple(f"{name}_ramp" for name in ARMS),
}  # fmt: skip


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes figures, `report.md` and `summary.json` from what was measured.

  Returns:
    The failures: condition -> seed -> the step whose loss or gradient was
    not finite.
  """
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  settings = {
    name: changed(config, change)
    for name, change in config["conditions"].items()
  }
  model = config["model"]
  return write_report(
    workdir,
    rows,
    title=f"Different layers, different manifolds: GPT-2, {model['depth']} "
    f"layers of width {model['width']}",
    config=config,
    assignments={
      name: assignment_of(optimizer(s).table, s) for name, s in settings.items()
    },
    summed_lr={name: summed_lr(s) for name, s in settings.items()},
    chances=chances(model["width"]),
    groups=GROUPS,
    claims=[c for c in claims.CLAIMS if claims.applies(c, settings)],
    notes="\n\n".join([NOTES, *_data(rows)]),
    paper=claims.PAPER,
  )


def chances(width: int) -> dict[str, float]:
  """Chance level of |cos| of adjacent layers, by `projection/side`."""
  level = {
    "stream": chance_cosine(width),
    "hidden": chance_cosine(4 * width),
  }
  found = {}
  for p in ("q", "k", "v", "o", "up", "down"):
    for side in ("input", "output"):
      hidden = (p, side) in (("up", "output"), ("down", "input"))
      found[f"{p}/{side}"] = level["hidden" if hidden else "stream"]
  return found


def assignment_of(
  table: list[Row], settings: dict[str, Any]
) -> dict[str, dict[str, str]]:
  """What each module gets, embeddings and all else being the last.

  Returns:
    By module `manifold`, with the retraction where it is not the usual one,
    `decay`, decoupled, of its matrices, and `lr`, the peak rate.
  """
  optim = settings["optim"]
  found = {}
  for module in (*MODULES, "rest"):
    rows = [
      row
      for row in table
      if len(row.shape) > 1
      and row.role.split("/")[0]
      in ((module,) if module in MODULES else ("embed", "head"))
    ]
    manifolds = dict.fromkeys(
      row.manifold
      + (f" ({row.retraction})" if row.retraction == "sorted_svd" else "")
      for row in rows
    )
    found[module] = {
      "manifold": ", ".join(manifolds),
      "decay": ", ".join(dict.fromkeys(f"{r.weight_decay:g}" for r in rows)),
      "lr": ", ".join(
        dict.fromkeys(f"{r.lr_factor * optim[r.lr]:g}" for r in rows)
      ),
    }
  return found


def summed_lr(settings: dict[str, Any]) -> float:
  """The learning rate of kernels summed over all steps."""
  steps = jnp.arange(settings["train"]["num_steps"])
  return float(jnp.sum(schedule(settings, "lr")(steps)))


def _data(rows: list[record.Row]) -> list[str]:
  """What the data was, and the loss of who knows only its frequencies."""
  found = {
    (r["train_tokens"], r["validation_tokens"], r["unigram_loss"])
    for r in rows
    if r.get("event") == "data"
  }
  return [
    f"Trained on {train:,} tokens, validated on windows of {held_out:,}. "
    f"Chance: knowing only how often each token comes gives {loss:.3f} nats."
    for train, held_out, loss in sorted(found)
  ]


NOTES = """\
Reading the numbers. Losses are in nats a token, of fixed validation windows.
The logit is the largest |logit| that any softmax of attention is given, on
fixed training windows; entropy is that of the layer where it is least, in nats;
saturation is the share of rows of attention whose largest probability is above
.99, rows that see one key left out. Decay is decoupled weight decay, times the
learning rate. Kernels that are not AdamW's get Manifold Muon; a fused qkv is
one matrix, as in the paper, but in the conditions `split`. Spread is the
sample standard deviation over seeds."""

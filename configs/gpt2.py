"""Different layers, different manifolds, on GPT-2 small (arXiv 2606.13276).

    python launch.py --config=configs/gpt2.py:hetero --workdir=runs/hetero \
        --config.data.train_files=train.bin, \
        --config.data.validation_files=val.bin,

at the paper's size: 124M parameters, 50,000 steps of 64 x 1024 tokens, bf16.
A variant is a list of conditions and of families, `paper` (its five arms),
`controls`, `rates`, `lengths` and `ramps`. Needs nanoGPT's files of OpenWebText
or shards of FineWeb (see the README), and a large GPU: not run by us.
`configs/gpt2_tiny.py` is the same for two CPU cores and minutes.
"""

from ml_collections import ConfigDict

DECAYED = {"manifold": "dgram", "weight_decay": 0.1}
REST = {"*": "adamw"}
PAPER = ("unconstrained", "all_stiefel", "all_dgram", "hetero", "hetero_inv")


def _on(assignment, **optim):
  return {"optim": {"assignment": assignment, **optim}}


# What each condition changes in the sections below. A name is an assignment
# of geom.optim.rules.
CONDITIONS = {
  "unconstrained": _on("unconstrained"),
  "all_stiefel": _on("all_stiefel"),
  "all_dgram": _on("all_dgram"),
  "hetero": _on("hetero"),
  "hetero_inv": _on("hetero_inv"),
  "adamw": _on("adamw"),
  # The paper's unconstrained arm decays its matrices, the others do not.
  "unconstrained_nodecay": _on(
    {"attention": "euclidean", "mlp": "euclidean", **REST}
  ),
  "hetero_inv_decay": _on({"attention": DECAYED, "mlp": "stiefel", **REST}),
  "all_dgram_decay": _on({"attention": DECAYED, "mlp": DECAYED, **REST}),
  # The paper's retraction alone, then its solver too.
  "hetero_inv_sorted": _on(
    {
      "attention": {"manifold": "dgram", "retraction": "sorted_svd"},
      "mlp": "stiefel",
      **REST,
    }
  ),
  **{f"{name}_faithful": _on(name, faithful=True) for name in PAPER},
  # Q, K and V each on the manifold, not side by side as one matrix.
  **{f"{name}_split": _on(name, fused="split") for name in PAPER},
  # Attention that bounds its own logits.
  "hetero_inv_qk_norm": {**_on("hetero_inv"), "model": {"qk_norm": True}},
  "hetero_inv_cap": {**_on("hetero_inv"), "model": {"logit_cap": 30.0}},
}
# A quarter of the learning rate, and, with the same sum of rates, four times
# the steps.
SLOW = {
  f"{name}_slow": {"optim": {**CONDITIONS[name]["optim"], "lr": 1 / 4}}
  for name in PAPER
}
LONG = {
  f"{name}_slow_long": {**SLOW[f"{name}_slow"], "train": {"num_steps": 4}}
  for name in PAPER
}
# Twice the learning rate at the end of three quarters of four times the steps,
# so that a run learns before its rate is high; only the loss is watched.
RAMP = {
  f"{name}_ramp": {
    "optim": {**CONDITIONS[name]["optim"], "lr": 2, "warmup_steps": 3},
    "train": {"num_steps": 4},
    "watch": {"saturation": None},
  }
  for name in PAPER
}
FAMILIES = {
  "paper": PAPER,
  "controls": tuple(name for name in CONDITIONS if name not in PAPER),
  "rates": tuple(SLOW),
  "lengths": tuple(LONG),
  "ramps": tuple(RAMP),
}
ALL = {**CONDITIONS, **SLOW, **LONG, **RAMP}


def in_order(value):
  """Nested dicts as ConfigDicts that keep the order of their keys."""
  if not isinstance(value, dict):
    return value
  values = {k: in_order(v) for k, v in value.items()}
  return ConfigDict(values, sort_keys=False)


def conditions_of(variant, *, lr, num_steps):
  """The changes of the conditions that a variant names.

  Args:
    variant: names of conditions and families, between commas.
    lr, num_steps: of the base, which `rates`, `lengths` and `ramps` multiply.
  """
  names = [n for name in variant.split(",") for n in FAMILIES.get(name, [name])]
  found = {}
  for name in names:
    if name not in ALL:
      raise ValueError(
        f"no condition or family {name!r}; there are "
        f"{', '.join([*FAMILIES, *ALL])}"
      )
    found[name] = {k: dict(v) for k, v in ALL[name].items()}
    change = found[name]
    if "lr" in change["optim"]:
      change["optim"]["lr"] *= lr
    if "train" in change:
      change["train"]["num_steps"] *= num_steps
    if "warmup_steps" in change["optim"]:
      change["optim"]["warmup_steps"] *= num_steps
  return found


def get_config(variant: str = "hetero") -> ConfigDict:
  config = {
    "experiment": "module_manifolds",
    "seeds": (0,),
    "model": {
      "vocabulary": 50304,
      "context": 1024,
      "width": 768,
      "depth": 12,
      "heads": 12,
      "qkv": "fused",
      "init_std": 0.02,
      "embed_std": 0.02,
      "qk_norm": False,
      "logit_cap": None,
      "attention": "fused",
      "dtype": "bfloat16",
      "remat": False,
      "unroll": 1,
    },
    "optim": {
      "assignment": "hetero",
      "lr": 0.02,
      "momentum": 0.95,
      "adamw_lr": 6e-4,
      "adamw_betas": (0.9, 0.95),
      "adamw_weight_decay": 0.1,
      "clip": 1.0,
      "warmup_steps": 1000,
      "solver": "auto",
      "fused": "whole",
      "faithful": False,
    },
    "data": {
      "source": "files",
      "tokenizer": "gpt2",  # Of text; files have their tokens.
      "train_files": ("train.bin",),
      "validation_files": ("val.bin",),
      "end_of_text": 50256,
      "order": "random",
      "batch_size": 64,
    },
    "train": {
      "num_steps": 50_000,
      "steps_per_dispatch": 10,
      "log_every": 10,
      "loss_chunk": 4096,
    },
    "eval": {"every": 1000, "windows": 200 * 64, "batch_size": 64},
    "probe": {
      "names": ("cosines", "flattened", "dominance"),
      "stacks": ("weights", "gradients", "updates"),
      "method": "warm",
      "k": 2,
      "windows": 4,
      "first": 0,
      "per_decade": 4,
      "every": 100,
    },
    "watch": {
      "margin": 0.5,
      "smoothing": 20,
      "patience": 200,
      "saturation": 0.5,
      "stop": False,
    },
    "checkpoint": {"every": 1000, "keep": 2, "keep_every": 10_000},
    "conditions": conditions_of(variant, lr=0.02, num_steps=50_000),
  }
  for change in config["conditions"].values():
    if "logit_cap" in change.get("model", {}):
      change["model"]["attention"] = "plain"  # Fused attention has no cap.
  return in_order(config)

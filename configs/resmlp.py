"""Geometric continuity on a residual MLP (arXiv 2605.04971).

    python launch.py --config=configs/resmlp.py:short

trains four conditions, three seeds each, on MNIST for 464 steps of 64, half an
epoch, in about a minute and a half on two cores. `long` goes on to 6000 steps,
15 to 20 minutes. See the README for what comes out. Any other variant is a
list of conditions: `relu`, `none,radial`.
"""

from ml_collections import ConfigDict

# What each condition changes in the sections below.
CONDITIONS = {
  "relu": {"model": {"residual": True, "activation": "relu"}},
  "gelu": {"model": {"residual": True, "activation": "gelu"}},
  "silu": {"model": {"residual": True, "activation": "silu"}},
  "none": {"model": {"residual": True, "activation": "identity"}},
  "radial": {"model": {"residual": True, "activation": "radial"}},
  # Without the residual a gain of .1 would let the signal die out.
  "nores_relu": {
    "model": {"residual": False, "activation": "relu", "init": "he"}
  },
  "nores_none": {
    "model": {"residual": False, "activation": "identity", "gain": 1.0}
  },
}

CONTRAST = ("relu", "none", "nores_relu", "nores_none")
# Conditions, steps, and every how many to probe and evaluate.
VARIANTS = {
  "short": (CONTRAST, 464, None, 232),
  "long": (CONTRAST, 6000, 500, 500),
}


def get_config(variant: str = "short") -> ConfigDict:
  names, num_steps, probe_every, eval_every = VARIANTS.get(
    variant, (variant.split(","), 464, None, 232)
  )
  for name in names:
    if name not in CONDITIONS:
      raise ValueError(
        f"no variant or condition {name!r}; there are "
        f"{', '.join([*VARIANTS, *CONDITIONS])}"
      )
  return ConfigDict(
    {
      "experiment": "continuity_mlp",
      "seeds": (0, 1, 2),
      "model": {
        "width": 256,
        "depth": 16,
        "activation": "relu",
        "radius": 1.0,
        "residual": True,
        "form": "post",
        "norm": "none",
        "bias": False,
        "init": "scaled",
        "gain": 0.1,
      },
      "optim": {
        "name": "adam",
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "momentum": None,
        "adam_lr": None,
      },
      "data": {"batch_size": 64},
      "train": {
        "num_steps": num_steps,
        "steps_per_dispatch": 8,
        "log_every": 8,
      },
      "eval": {"every": eval_every},
      "probe": {
        "names": ("cosines", "flattened", "dominance"),
        "stacks": ("weights", "gradients", "updates"),
        "method": "gram",
        "k": 2,
        "per_decade": 2,
        "every": probe_every,
        "num_examples": 1024,
      },
      "full_probe": {
        "names": (),
        "stacks": (),
        "method": "gram",
        "k": None,
        "per_decade": 0,
        "every": None,
      },
      "checkpoint": {"every": 200, "keep": 2, "keep_every": None},
      "conditions": ConfigDict(
        {name: CONDITIONS[name] for name in names}, sort_keys=False
      ),
    },
    sort_keys=False,
  )

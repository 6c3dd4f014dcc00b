"""Geometric continuity on a residual MLP (arXiv 2605.04971).

    python launch.py --config=configs/resmlp.py:short

trains four conditions, three seeds each, on MNIST for 464 steps of 64, half an
epoch, in about a minute and a half on two cores. `long` goes on to 6000 steps,
15 to 20 minutes; `paper` is every condition, with the whole set of probes, an
hour. See the README for what comes out. Any other variant is a list of
conditions or families of them: `relu`, `none,radial`, `optimizers`.
"""

from ml_collections import ConfigDict

NO_ADAM = {"betas": None, "eps": None}
MUON = {"momentum": 0.95, "adam_lr": 1e-3, "eps": None}
# What each condition changes in the sections below.
CONDITIONS = {
  "relu": {"model": {"residual": True, "activation": "relu"}},
  "gelu": {"model": {"residual": True, "activation": "gelu"}},
  "silu": {"model": {"residual": True, "activation": "silu"}},
  "none": {"model": {"residual": True, "activation": "identity"}},
  "radial": {"model": {"residual": True, "activation": "radial"}},
  # With a radius of 1 what the activation is given soon lies outside of its
  # curved range.
  "radial_curved": {
    "model": {"residual": True, "activation": "radial", "radius": 30.0}
  },
  # Without the residual a gain of .1 would let the signal die out.
  "nores_relu": {
    "model": {"residual": False, "activation": "relu", "init": "he"}
  },
  "nores_none": {
    "model": {"residual": False, "activation": "identity", "gain": 1.0}
  },
  "layernorm_none": {"model": {"activation": "identity", "norm": "layernorm"}},
  "layernorm_relu": {"model": {"activation": "relu", "norm": "layernorm"}},
  "rmsnorm_none": {"model": {"activation": "identity", "norm": "rmsnorm"}},
  "rmsnorm_relu": {"model": {"activation": "relu", "norm": "rmsnorm"}},
  "relu_gain_0.01": {"model": {"activation": "relu", "gain": 0.01}},
  "relu_gain_0.3": {"model": {"activation": "relu", "gain": 0.3}},
  "relu_gain_1": {"model": {"activation": "relu", "gain": 1.0}},
  "none_gain_0.01": {"model": {"activation": "identity", "gain": 0.01}},
  "none_gain_0.577": {"model": {"activation": "identity", "gain": 0.577}},
  # Optimizers, of Res+ReLU but for the last.
  "adam": {},
  "adam_b1_0": {"optim": {"betas": (0.0, 0.999)}},
  # With beta_2 = 0 the update is m / (|g| + eps): infinite where g vanishes.
  "adam_b2_0": {"optim": {"betas": (0.9, 0.0)}},
  "adam_b2_0_eps": {"optim": {"betas": (0.9, 0.0), "eps": 1e-4, "lr": 3e-4}},
  "adam_b1_0_b2_0": {"optim": {"betas": (0.0, 0.0), "lr": 3e-4}},
  "sign": {"optim": {"name": "sign", "lr": 3e-4, **NO_ADAM}},
  "sgd": {"optim": {"name": "sgd", "lr": 0.1, **NO_ADAM}},
  "muon": {"optim": {"name": "muon", "lr": 0.003, **MUON}},
  "none_sgd": {
    "model": {"activation": "identity"},
    "optim": {"name": "sgd", "lr": 0.1, **NO_ADAM},
  },
}  # fmt: skip

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

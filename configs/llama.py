"""Geometric continuity of a Llama-style transformer (arXiv 2605.04971).

    python launch.py --config=configs/llama.py:small

trains 1.6M parameters, 8 layers of width 128, on packaged prose, three seeds
of every condition in `small`: the base and each ablation. A variant is `small`,
`paper`, or a list of conditions: `silu,identity`; `paper` before a list, as in
`paper,silu,identity`, is those at the paper's size: 8 layers of width 512, 8
heads, hidden width 1376, 16384 tokens learnt from WikiText-103, one table for
embedding and head, 33.7M parameters, bfloat16 products. The paper's own widths,
learning rate, batch and number of steps were not known to us. `paper` alone is
all conditions. It wants a GPU.
"""

from ml_collections import ConfigDict

from configs.gpt2 import in_order


def _model(**changes):
  return {"model": changes}


# What each condition changes in the sections below.
CONDITIONS = {
  "silu": {},
  "gelu": _model(activation="gelu"),
  "relu": _model(activation="relu"),
  # Nothing elementwise between the stream and the product with Up.
  "identity": _model(activation="identity"),
  # Nonlinear, but it commutes with rotations of the hidden space.
  "radial": _model(activation="radial"),
  # Attention that no softmax normalises.
  "sigmoid_attention": _model(mixing="sigmoid"),
  "linear_attention": _model(mixing="linear"),
  # Something elementwise after V, which has nothing of its own.
  "value_silu": _model(value_activation="silu"),
  "layernorm": _model(norm="layernorm"),
  "nores": _model(residual=False),
}
VARIANTS = ("small", "paper")


def names_of(variant):
  """The conditions of a variant, and whether they are of the paper's size."""
  names = variant.split(",")
  sizes = [name for name in names if name in VARIANTS]
  names = [name for name in names if name not in VARIANTS]
  for name in names:
    if name not in CONDITIONS:
      raise ValueError(
        f"no variant or condition {name!r}; there are "
        f"{', '.join([*VARIANTS, *CONDITIONS])}"
      )
  if len(sizes) > 1:
    raise ValueError(f"several sizes: {', '.join(sizes)}")
  return names or list(CONDITIONS), sizes == ["paper"]


def get_config(variant: str = "small") -> ConfigDict:
  names, paper = names_of(variant)
  config = {
    "experiment": "continuity_lm",
    "seeds": (0, 1, 2),
    "model": {
      "vocabulary": 1024,
      "context": 64,
      "width": 128,
      "depth": 8,
      "heads": 4,
      "kv_heads": 2,
      "head_width": None,
      "hidden": 344,
      "activation": "silu",
      "radius": 1.0,
      "norm": "rmsnorm",
      "eps": 1e-5,
      "residual": True,
      "mixing": "softmax",
      "value_activation": "identity",
      "rope_base": 1e4,
      "tied": False,
      # The entries of products as large as at width 512.
      "init_std": 0.04,
      "embed_std": 0.04,
      "attention": "plain",
      "dtype": "float32",
      "remat": False,
      "unroll": 1,
    },
    "optim": {
      "assignment": "adamw",
      "lr": 0.02,  # Of Muon, where an assignment has it.
      "momentum": 0.95,
      "adamw_lr": 3e-3,
      "adamw_betas": (0.9, 0.95),
      "adamw_weight_decay": 0.1,
      "clip": 1.0,
      "warmup_steps": 50,
      "solver": "auto",
      "fused": "whole",
      "faithful": False,
    },
    "data": {
      "source": "prose",
      "tokenizer": "bpe",
      "train_files": (),
      "validation_files": (),
      "end_of_text": None,
      "order": "random",
      "batch_size": 8,
    },
    "train": {
      "num_steps": 500,
      "steps_per_dispatch": 10,
      "log_every": 5,
      "loss_chunk": None,
    },
    "eval": {"every": 100, "windows": 128, "batch_size": 128},
    "probe": {
      "names": ("cosines", "flattened", "dominance", "drift"),
      "stacks": ("weights", "folded", "gradients", "updates"),
      "method": "warm",
      "k": 2,
      "heads": True,
      "windows": 16,
      "first": 0,
      "per_decade": 4,
      "every": 100,
    },
    # What more than one direction says, seldom.
    "spread": {
      "names": ("same_index",),
      "stacks": ("weights",),
      "method": "gram",
      "k": 6,
      "every": 500,
    },
    "watch": {
      "margin": 0.5,
      "smoothing": 20,
      "patience": 50,
      "stop": False,
    },
    # When we agree, fixed before any run; but `learnt`, added when one seed of
    # `nores` had ended .007 nats below the unigram level.
    "claims": {
      # Nats below the unigram level that a seed must end to be judged there.
      "learnt": 0.5,
      # Seeds that are judged together; verdicts of groups that differ, or
      # bounds within the spread over seeds, leave a claim undecided.
      "group": 3,
      # |cos| of W at the end, as a multiple of its chance level.
      "above_chance": 4.0,
      # ... and how far it is further above chance than V's on that side.
      "above_v": 0.2,
      # |cos| of V is no larger multiple of chance than this.
      "v_at_most": 2.0,
      # |cos| of gradients at step 0, on the side of the residual stream.
      "gradients_at_least": 0.5,
      # Without residual connections, a multiple of chance.
      "nores_at_most": 2.0,
      # An ablation takes the continuity of a projection away if no more than
      # this share of what the base has above chance is left.
      "lost_at_most": 0.5,
      # One that keeps it leaves at least this share.
      "kept_at_least": 0.5,
      # V gains continuity if its |cos| rises by this.
      "v_gains": 0.2,
      # LayerNorm spreads it if |cos| of indices 2 to 5 rises by this.
      "spreads": 0.1,
    },
    "checkpoint": {"every": 200, "keep": 1, "keep_every": None},
    "conditions": {name: CONDITIONS[name] for name in names},
  }
  if paper:
    _as_in_the_paper(config)
  return in_order(config)


def _as_in_the_paper(config):
  """Sections as large as the paper's: 33.7M parameters, WikiText-103."""
  config["model"] |= {
    "vocabulary": 16384,
    "context": 512,
    "width": 512,
    "heads": 8,
    "kv_heads": 8,
    "hidden": 1376,
    "tied": True,
    "init_std": 0.02,
    "embed_std": 0.02,
    "attention": "plain",
    "dtype": "bfloat16",
    "unroll": 1,
  }
  config["optim"] |= {"adamw_lr": 1e-3, "warmup_steps": 500}
  config["data"] |= {"source": "wikitext103", "batch_size": 64}
  config["train"] |= {"num_steps": 10_000, "log_every": 10, "loss_chunk": 4096}
  config["eval"] = {"every": 500, "windows": 256, "batch_size": 64}
  config["probe"] |= {"every": 500, "windows": 16}
  config["spread"] |= {"every": 10_000}
  config["checkpoint"] |= {"every": 1000}

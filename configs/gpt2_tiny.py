"""Different layers, different manifolds, for two CPU cores (2606.13276).

    python launch.py --config=configs/gpt2_tiny.py:hetero

trains GPT-2 of width 64 for 500 steps of 16 x 64 tokens of English prose, and
the conditions and families of `configs/gpt2.py` likewise; `table` is all that
the committed report shows.
"""

from ml_collections import ConfigDict

from configs import gpt2

TABLE = (
  "paper,adamw,unconstrained_nodecay,hetero_inv_decay,all_dgram_decay,"
  "hetero_inv_sorted,hetero_faithful,hetero_inv_faithful,hetero_split,"
  "hetero_inv_split,hetero_inv_qk_norm,hetero_inv_cap,rates"
)


def get_config(variant: str = "hetero") -> ConfigDict:
  config = gpt2.get_config("hetero").to_dict()
  config["seeds"] = (0, 1, 2)
  config["model"] |= {
    "vocabulary": 1024,
    "context": 64,
    "width": 64,
    "depth": 3,
    "heads": 4,
    # The entries of products as large as at width 768.
    "init_std": 0.02 * (768 / 64) ** 0.5,
    "attention": "plain",
    "dtype": "float32",
    "unroll": 3,
  }
  config["optim"] |= {"lr": 0.2, "adamw_lr": 3e-3, "warmup_steps": 25}
  config["data"] |= {
    "source": "prose",
    "tokenizer": "bpe",
    "train_files": (),
    "validation_files": (),
    "end_of_text": None,
    "batch_size": 16,
  }
  config["train"] |= {
    "num_steps": 500,
    "steps_per_dispatch": 10,
    "log_every": 1,
    "loss_chunk": None,
  }
  config["eval"] = {"every": 50, "windows": 128, "batch_size": 128}
  config["probe"] |= {
    "method": "gram",
    "windows": 16,
    "per_decade": 6,
    "every": 10,
  }
  config["watch"] |= {"smoothing": 10, "patience": 25}
  config["checkpoint"] = {"every": 100, "keep": 1, "keep_every": None}
  names = ",".join(TABLE if v == "table" else v for v in variant.split(","))
  config["conditions"] = gpt2.conditions_of(names, lr=0.2, num_steps=500)
  return gpt2.in_order(config)

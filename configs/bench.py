"""Speed of the parts, against numpy and against training itself.

    python launch.py --config=configs/bench.py:probes

takes about three minutes: singular triplets of stacks against
`numpy.linalg.svd`, and the share of the time of a training run that its probes
take. Both sides at one thread, in turns.
"""

from ml_collections import ConfigDict

VARIANTS = ("probes",)


def get_config(variant: str = "probes") -> ConfigDict:
  if variant not in VARIANTS:
    raise ValueError(f"no variant {variant!r}; there is {', '.join(VARIANTS)}")
  return ConfigDict(
    {
      "experiment": "bench",
      "variant": variant,
      # Of everything against numpy; training has its intervals.
      "repeats": 5,
      "stack": {"layers": 12, "m": 768, "n": 3072},
      "warm": {
        "k": 16,
        "block": 20,
        "iterations": 2,
        "residual": 1e-3,
        # Standard deviation of what is added between two calls.
        "change": 1e-3,
        "calls": 8,
      },
      "training": {
        "width": 256,
        "depth": 16,
        "batch_size": 64,
        "lr": 1e-3,
        "num_steps": 2000,
        "steps_per_dispatch": 8,
        # The probes of the default set, and when the full set is taken to
        # be; it is measured more often than that.
        "every": 100,
        "full_every": 1000,
        "full_measured_every": 200,
        "num_examples": 1024,
      },
      # At least so many times as fast as numpy; at most that share.
      "wanted": {
        "spectrum": 5.0,
        "warm": 15.0,
        "default_share": 0.05,
        "full_share": 0.08,
      },
    },
    sort_keys=False,
  )

"""Speed of the parts, and quality of the solvers.

    python launch.py --config=configs/bench.py:VARIANT

`probes`, about three minutes: singular triplets of stacks against
`numpy.linalg.svd`, and the share of the time of a training run that its probes
take. `solvers`, more than half an hour: the solvers of steepest descent
against the float64 optimum, on shapes of GPT-2; `solvers_near_square`, about
as long: on shapes where the optimum is rank-deficient. `optimizer`, about
five minutes: whole updates of Manifold Muon against optax's Muon and against
dual ascent. `language`, about ten minutes: training steps of GPT-2, against
PyTorch where `--config.torch_python=PYTHON` names a Python that has it.
Everything at one thread, in turns.
"""

from ml_collections import ConfigDict

VARIANTS = ("probes", "solvers", "solvers_near_square", "optimizer", "language")


def get_config(variant: str = "probes") -> ConfigDict:
  sections = {
    "probes": _probes,
    "solvers": _solvers,
    "solvers_near_square": _solvers_near_square,
    "optimizer": _optimizer,
    "language": _language,
  }
  if variant not in sections:
    raise ValueError(f"no variant {variant!r}; there is {', '.join(VARIANTS)}")
  return ConfigDict(
    {"experiment": "bench", "variant": variant, **sections[variant]()},
    sort_keys=False,
  )


def _probes() -> dict:
  return {
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
  }


def _solvers() -> dict:
  return {
    "shapes": ((768, 768), (2304, 768), (3072, 768), (768, 3072)),
    "manifolds": ("stiefel", "dgram"),
    # Of the lengths of the columns of W on dgram: log-uniform in 1..spread.
    "spreads": (1.0, 30.0),
    "spectra": ("gaussian", "power", "exponential", "rank"),
    "rank": 32,
    "solvers": ("auto", "irls", "irls_clip", "dual_ascent", "projected"),
    "seeds": (0,),
    # Frobenius, of G: what clipping a whole GPT-2's gradient to 1 leaves.
    "norm": 0.05,
    # At which dual_ascent is at its best, with Gaussian G at W.T W = I.
    "easy_norm": 20.0,
    # Timed calls per pair; medians are over pairs as well.
    "repeats": 1,
    # Scales at which auto is measured once more.
    "scale_gradients": (1e-8, 1e6),
    "scale_weights": (30.0,),
    # The float64 optimum: relative certified gap, and when to give up.
    "optimum": {"tolerance": 1e-3, "irls_rounds": 30, "admm_rounds": 30},
    "wanted": {
      "tangency": 0.025,
      "spectral_norm": 1.01,
      # Of dual_ascent's, per shape.
      "gap_share": 0.65,
      "flops_share": 0.2,
      "invariance": 0.05,
    },
  }


def _solvers_near_square() -> dict:
  return {
    **_solvers(),
    # The second is that of keys and values shared by three queries.
    "shapes": ((1024, 768), (768, 256)),
    "wanted": None,
  }


def _optimizer() -> dict:
  return {
    # Of q, k and v: split in three kernels, fused in one.
    "layouts": ("split", "fused"),
    # Of GPT-2 small's twelve.
    "layers": 2,
    "width": 768,
    # Of msign.
    "steps": 8,
    "momentum": 0.95,
    "lr": 0.02,
    "repeats": 3,
    # Of the square product that is taken for the machine's peak.
    "peak_size": 2048,
    # A minute an update and layer: measured on fewer.
    "dual_ascent": {"iterations": 20, "layers": 1, "repeats": 1},
    # Times as long as optax's Muon, as euclidean; times as fast as
    # dual_ascent; share of the peak.
    "wanted": {
      "euclidean": 1.05,
      "hetero": 3.3,
      "dual_ascent": 5.0,
      "of_peak": 0.6,
    },
  }


def _language() -> dict:
  model = {
    "vocabulary": 1024,
    "context": 256,
    "width": 384,
    "depth": 6,
    "heads": 6,
    "unroll": 6,
  }
  middle = {
    "model": model,
    "batch_size": 12,
    "steps": 1,
    "loss_chunk": None,
    # Of tokens a second, AdamW's over PyTorch's: at least.
    "wanted": 0.55,
  }
  tiny = {"context": 64, "width": 64, "depth": 3, "heads": 4, "unroll": 3}
  return {
    "sizes": {
      "tiny": {
        **middle,
        "model": {**model, **tiny},
        "batch_size": 16,
        "steps": 20,
        "wanted": 0.75,
      },
      "middle": middle,
      "middle_50304": {
        **middle,
        "model": {**model, "vocabulary": 50304},
        "loss_chunk": 512,
        "wanted": 0.9,
      },
    },
    "lr": 1e-3,
    "repeats": 5,
    # A Python that has torch; None: only our sides.
    "torch_python": None,
    # Of time, a run's step over a plain loop's: at most.
    "run_over_bare": 1.02,
  }

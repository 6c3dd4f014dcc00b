"""What arXiv 2605.04971 claims of a residual MLP, and when we agree.

The bounds were set after an earlier trial (one or three seeds, 9000 training
digits), whose numbers stand beside them, and before the run that they judge,
but for those marked with a dagger: these were moved once, after seeds 0 to 5,
because they had lain within the spread from seed to seed, or are later
additions. The paper's initialisation, learning rate, batch and number of steps
were not known to us: agreement of numbers is not agreement of protocol.
"""

from typing import Any

from geom import record
from geom.probes.continuity import chance_cosine
from geom.probes.orbit import chance_share
from geom.report.claims import Claim, crossing, highest, last, start, turned

# The setting that the rules of the claims are for; others are not judged.
SETTING = {
  "model": {
    "width": 256, "depth": 16, "form": "post", "norm": "none", "bias": False,
    "radius": 1.0, "residual": True, "init": "scaled", "gain": 0.1,
    "activation": "relu",
  },
  "optim": {
    "name": "adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8,
    "momentum": None, "adam_lr": None,
  },
  "data": {"batch_size": 64, "probe_examples": 1024},
}  # fmt: skip
LEAST_STEPS = 464
# Where these are measured at all.
ANGLES = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
DRIFT_EVERY = 1000
NO_ADAM = {"betas": None, "eps": None}
NONE = {"activation": "identity"}
# What each condition changes in it.
MODELS = {
  "relu": {},
  "gelu": {"activation": "gelu"},
  "silu": {"activation": "silu"},
  "none": NONE,
  "radial": {"activation": "radial"},
  "radial_10": {"activation": "radial", "radius": 10.0},
  "radial_30": {"activation": "radial", "radius": 30.0},
  "nores_relu": {"residual": False, "init": "he"},
  "nores_none": {**NONE, "residual": False, "gain": 1.0},
  "layernorm_none": {**NONE, "norm": "layernorm"},
  "layernorm_relu": {"norm": "layernorm"},
  "rmsnorm_none": {**NONE, "norm": "rmsnorm"},
  "rmsnorm_relu": {"norm": "rmsnorm"},
  "relu_pre": {"form": "pre"},
  "relu_gain_small": {"gain": 0.01},
  "relu_gain_mid": {"gain": 0.3},
  "relu_gain_large": {"gain": 1.0},
  "none_gain_small": {**NONE, "gain": 0.01},
  "none_gain_large": {**NONE, "gain": 0.577},
  "none_sgd": NONE,
}
OPTIMIZERS = {
  "adam": {},
  "adam_b1_0": {"betas": [0.0, 0.999]},
  "adam_b2_0": {"betas": [0.9, 0.0]},
  "adam_b2_0_eps": {"betas": [0.9, 0.0], "eps": 1e-4, "lr": 3e-4},
  "adam_b1_0_b2_0": {"betas": [0.0, 0.0], "lr": 3e-4},
  "sign": {"name": "sign", "lr": 3e-4, **NO_ADAM},
  "sgd": {"name": "sgd", "lr": 0.1, **NO_ADAM},
  "muon": {
    "name": "muon", "lr": 0.003, "momentum": 0.95, "adam_lr": 1e-3,
    "eps": None,
  },
  "none_sgd": {"name": "sgd", "lr": 0.01, **NO_ADAM},
}  # fmt: skip

GROUPS = {
  "Activation and residual": (
    "relu", "gelu", "silu", "none", "radial", "radial_10", "radial_30",
    "nores_relu", "nores_none", "relu_pre",
  ),
  "Normalisation": (
    "relu", "none", "layernorm_relu", "layernorm_none", "rmsnorm_relu",
    "rmsnorm_none",
  ),
  "Initial scale": (
    "relu_gain_small", "adam", "relu_gain_mid", "relu_gain_large",
    "none_gain_small", "none_gain_large",
  ),
  "Optimizers": (
    "adam", "adam_b1_0", "adam_b2_0", "adam_b2_0_eps", "adam_b1_0_b2_0",
    "sign", "sgd", "muon", "none_sgd",
  ),
}  # fmt: skip

CHANCE = chance_cosine(256)
SHARE = chance_share(256, 784 * 256 + 16 * 256**2 + 256 * 10)
V1, U1 = "weights/cos_input_mean", "weights/cos_output_mean"
GRAD_V1, GRAD_U1 = "gradients/cos_input_mean", "gradients/cos_output_mean"
OTHERS = "weights/same_index_input", slice(1, 5)
SPECTRAL, FROBENIUS = "dominance/spectral_mean", "dominance/frobenius_mean"


def _cos(
  text: str,
  paper: str,
  trial: str,
  condition: str,
  quantity: Any,
  low: float | None = None,
  high: float | None = None,
) -> Claim:
  """A claim about |cos|, with its chance level."""
  return Claim(text, paper, trial, condition, quantity, low, high, CHANCE)


CLAIMS = (
  # Residual connections make gradients coherent.
  _cos("Res+ReLU: gradients coherent at step 0 (v1)", "high", ".98",
       "relu", start(GRAD_V1), 0.8),
  _cos("Res+None: gradients coherent at step 0 (v1)", "0.93", ".98",
       "none", start(GRAD_V1), 0.88),
  _cos("... with gain .01", "0.93", "1.0",
       "none_gain_small", start(GRAD_V1), 0.88),
  _cos("... with gain .577", "0.93", ".86",
       "none_gain_large", start(GRAD_V1), 0.8),
  _cos("NoRes+ReLU: gradients at chance (v1)", "about 0.05", ".37",
       "nores_relu", start(GRAD_V1), high=0.1),
  _cos("NoRes+ReLU: gradients at chance (u1)", "about 0.05", ".055",
       "nores_relu", start(GRAD_U1), high=0.1),
  _cos("NoRes+None: gradients at chance (v1)", "about 0.05", ".04",
       "nores_none", start(GRAD_V1), high=0.1),
  _cos("NoRes+None: gradients at chance (u1)", "about 0.05", ".04",
       "nores_none", start(GRAD_U1), high=0.1),
  # Weights, with both conditions met.
  _cos("Res+ReLU: weights continuous (v1) †", "high", ".96 at step 464",
       "relu", last(V1), 0.5),
  _cos("Res+ReLU: weights continuous (u1) †", "high", ".89 at step 464",
       "relu", last(U1), 0.5),
  _cos("Res+GELU: weights continuous (v1) †", "high", ".97 at step 464",
       "gelu", last(V1), 0.5),
  _cos("Res+SiLU: weights continuous (v1) †", "high", ".97 at step 464",
       "silu", last(V1), 0.5),
  _cos("NoRes+ReLU: weights do not become continuous (v1)", "about chance",
       ".053 at step 100", "nores_relu", last(V1), high=0.15),
  _cos("NoRes+None: weights do not become continuous (v1)", "about chance",
       "–", "nores_none", last(V1), high=0.15),
  # No frame: formed, then lost.
  _cos("Res+None: weight continuity forms at first (v1, its highest)", "yes",
       ".97 by step 50", "none", highest(V1), 0.8),
  _cos("Res+None: and is lost (v1) †", "0.22", ".20 at step 5500",
       "none", last(V1), high=0.32),
  _cos("Res+None: while gradients stay coherent (v1)", "0.93", ".947",
       "none", last(GRAD_V1), 0.8),
  Claim("Res+None: and its test loss healthy (nats)", "–", "diverged later",
        "none", last("loss", "eval"), high=0.5),
  _cos("Res+Radial: lost likewise (v1) †", "about 0.22", ".95 at step 464",
       "radial", last(V1), high=0.32),
  # Order of events, and what must dominate.
  _cos("Res+ReLU: weights at chance at step 0 (v1)", "at chance", "–",
       "relu", start(V1), high=0.1),
  Claim("Res+ReLU: v1 crosses .5 when dW dominates W(0), spectral norms",
        "about 1", ".75 to 1.04", "relu", crossing(SPECTRAL, V1, 0.5),
        0.5, 1.3),
  Claim("... Frobenius norms", "about 1", ".13 to .34", "relu",
        crossing(FROBENIUS, V1, 0.5), 0.5, 1.3),
  _cos("Res+ReLU: weights take over v1 of what training added", "high", "–",
       "relu", last("transfer/updates_input_mean"), 0.8),
  # Activation against normalisation.
  _cos("Res+ReLU: one direction carries it (index 2 to 5, v) †", "low",
       ".45, .28, ...", "relu", last(OTHERS[0], part=OTHERS[1]), high=0.4),
  _cos("LayerNorm spreads it over directions (index 2 to 5, v) †", "high",
       ".77, .76, .74", "layernorm_none", last(OTHERS[0], part=OTHERS[1]),
       0.4),
  _cos("Control: RMSNorm, which has no axes, does not (index 2 to 5, v) †",
       "–", "spreads as much", "rmsnorm_none",
       last(OTHERS[0], part=OTHERS[1]), high=0.4),
  _cos("LayerNorm+ReLU: v1 dominates (v1)", "high", ".50",
       "layernorm_relu", last(V1), 0.8),
  # Not an artefact of the initial scale or the optimizer.
  *(_cos(f"Res+ReLU, initial gain {gain}: weights continuous (v1)", "high",
         "–", f"relu_gain_{size}", last(V1), 0.5)
    for size, gain in (("small", ".01"), ("mid", ".3"), ("large", "1"))),
  *(_cos(f"Res+ReLU, {name}: weights continuous (v1)", "high", trial,
         condition, last(V1), 0.5)
    for condition, name, trial in (
      ("adam", "Adam", ".96"),
      ("adam_b1_0", "Adam with beta1 = 0", "–"),
      ("adam_b2_0", "Adam with beta2 = 0", "NaN"),
      ("adam_b2_0_eps", "Adam with beta2 = 0, eps 1e-4", "–"),
      ("adam_b1_0_b2_0", "Adam with beta1 = beta2 = 0", ".78"),
      ("sign", "sign descent", "–"),
      ("sgd", "SGD", "–"),
      ("muon", "Muon", "–"),
    )),
  # The mechanism: orbits of rotations. Where the loss is flat along them it
  # changes by rounding, 1e-7 nats.
  *(Claim(f"{name}: loss {said}, stream turned to 3 radians (log10 nats) †",
          said, "–", condition, turned("orbit/stream"), *bound)
    for condition, name, said, bound in (
      ("none", "Res+None", "flat", (None, -5.0)),
      ("radial", "Res+Radial", "flat", (None, -5.0)),
      ("rmsnorm_none", "RMSNorm", "flat", (None, -5.0)),
      ("relu", "Res+ReLU", "not flat", (-4.0, None)),
      ("layernorm_none", "LayerNorm", "not flat", (-4.0, None)),
    )),
  *(Claim(f"{name}: loss {said}, one layer turned so (log10 nats) †", said, "–",
          condition, turned("orbit/between"), *bound)
    for condition, name, said, bound in (
      ("nores_none", "NoRes+None", "flat", (None, -5.0)),
      ("none", "Res+None", "not flat", (-4.0, None)),
    )),
  Claim("Res+None: v1 turns between probes, 1000 steps (radians) †", "drift",
        "–", "none", last("drift/input", part=slice(None)), 0.8),
  Claim("Res+ReLU: v1 stays (radians) †", "none", "–", "relu",
        last("drift/input", part=slice(None)), high=0.3),
  Claim("Res+None: Adam's steps have a part along the orbit (share) †",
        "drift", "–", "none", last("orbit/drift_share", "orbit"), 0.003,
        chance=SHARE),
  Claim("Control, Res+None with SGD: its steps have none (share)", "–", "–",
        "none_sgd", last("orbit/drift_share", "orbit"), high=1e-3,
        chance=SHARE),
)  # fmt: skip


def unlike(name: str, settings: dict[str, Any]) -> list[str]:
  """What of a condition's settings is not what the claims about it are of."""
  if name not in MODELS and name not in OPTIMIZERS:
    return []
  wanted = {
    **SETTING,
    "model": {**SETTING["model"], **MODELS.get(name, {})},
    "optim": {**SETTING["optim"], **OPTIMIZERS.get(name, {})},
  }
  found = [
    f"{section}.{key}"
    for section, values in wanted.items()
    for key, value in values.items()
    if record.plain(settings[section][key]) != value
    and not (key == "gain" and wanted["model"]["init"] == "he")
  ]
  if settings["train"]["num_steps"] < LEAST_STEPS:
    found.append("train.num_steps")
  if settings["orbit"]["angles"] and (
    record.plain(settings["orbit"]["angles"]) != ANGLES
  ):
    found.append("orbit.angles")
  if name in ("none", "relu") and "drift" in settings["full_probe"]["names"]:
    if settings["full_probe"]["every"] != DRIFT_EVERY:
      found.append("full_probe.every")
    if "drift" in settings["probe"]["names"]:
      found.append("probe.names")
    steps = settings["train"]["num_steps"]
    if steps >= LEAST_STEPS and steps % DRIFT_EVERY:
      found.append("train.num_steps")
  if settings["checkpoints_of"] is not None:
    found.append("checkpoints_of")
  return found

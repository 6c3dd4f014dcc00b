"""Configs of module-wise manifolds: what is refused, and what names mean."""

import numpy as np
import optax
import pytest

from configs import gpt2, gpt2_tiny
from experiments import module_claims, module_report
from experiments.module_config import check, optimizer
from geom import config as cfg
from geom import config_sections
from geom.conditions import changed
from geom.config_sections import schedule
from geom.optim.assignment import Assignment
from geom.optim.solvers import SOLVERS
from geom.probes.continuity import chance_cosine
from geom.report import manifolds_tables

FILES = {"gpt2": gpt2, "gpt2_tiny": gpt2_tiny}
EVERY = ",".join(gpt2.FAMILIES)
# Attention, MLP. The unconstrained arm is the only one of the paper's whose
# matrices decay.
DGRAM, STIEFEL = "dgram, decay 0", "stiefel, decay 0"
SORTED = "dgram (sorted_svd), decay 0"
EUCLIDEAN = "euclidean, decay 0.1"
ARMS = {
  "unconstrained": (EUCLIDEAN, EUCLIDEAN),
  "all_stiefel": (STIEFEL, STIEFEL),
  "all_dgram": (DGRAM, DGRAM),
  "hetero": (STIEFEL, DGRAM),
  "hetero_inv": (DGRAM, STIEFEL),
}
OTHERS = {
  "adamw": ("adamw, decay 0.1", "adamw, decay 0.1"),
  "unconstrained_nodecay": ("euclidean, decay 0", "euclidean, decay 0"),
  "hetero_inv_decay": ("dgram, decay 0.1", STIEFEL),
  "all_dgram_decay": ("dgram, decay 0.1", "dgram, decay 0.1"),
  "hetero_inv_sorted": (SORTED, STIEFEL),
  "hetero_inv_qk_norm": (DGRAM, STIEFEL),
  "hetero_inv_cap": (DGRAM, STIEFEL),
}


def load(name="gpt2_tiny", variant="hetero", **changes):
  """A config, with changes such as `optim__lr="0.1"` of a command line."""
  config = FILES[name].get_config(variant)
  for path, text in changes.items():
    cfg.override(config, path.replace("__", "."), text)
  return config


def conditions_of(config):
  return {
    name: changed(config, change)
    for name, change in config["conditions"].items()
  }


@pytest.fixture(scope="module")
def settings():
  """Settings of all conditions, by file; all but assignments is checked."""
  with pytest.MonkeyPatch.context() as patch:
    # It is slow when types are checked.
    nothing = Assignment(optax.identity(), [], lambda p: (p, {}), {})
    patch.setattr(config_sections, "assign", lambda *args, **kwargs: nothing)
    return {name: conditions_of(check(load(name, EVERY))) for name in FILES}


def error_of(**changes):
  with pytest.raises(cfg.ConfigError) as caught:
    check(load(**changes))
  message = str(caught.value)
  assert len(message.splitlines()) == 1
  return message


# What conditions are.


def test_families_are_all_there_is_and_the_table_is_of_them():
  members = [n for family in gpt2.FAMILIES.values() for n in family]
  assert sorted(members) == sorted(gpt2.ALL)
  table = list(load(variant="table").conditions)
  assert table == [
    name
    for part in gpt2_tiny.TABLE.split(",")
    for name in gpt2.FAMILIES.get(part, [part])
  ]
  claimed = {claim.condition for claim in module_claims.CLAIMS}
  drawn = {n for group in module_report.GROUPS.values() for n in group}
  assert claimed <= set(table)
  assert drawn | set(module_claims.PAPER) <= set(gpt2.ALL)
  with pytest.raises(ValueError, match="no condition or family 'hetro'; there"):
    gpt2.get_config("hetero,hetro")


def test_an_assignment_is_what_its_name_says(settings):
  for name in gpt2.CONDITIONS:
    arm = max((a for a in ARMS if name.startswith(a)), key=len, default=None)
    wanted = OTHERS.get(name) or ARMS[arm]
    faithful = name.endswith("_faithful")
    if faithful:
      wanted = [w.replace(DGRAM, SORTED) for w in wanted]
    of = settings["gpt2_tiny"][name]
    table = optimizer(of).table
    said = module_report.assignment_of(table, of)
    assert manifolds_tables.both(said) == "; ".join(wanted), name
    assert (said["rest"]["manifold"], said["rest"]["decay"]) == ("adamw", "0.1")
    rows = {row.parameter: row for row in table}
    qkv = rows["blocks/attention/qkv/kernel"]
    assert qkv.fused == (3 if name.endswith("_split") else None), name
    solvers = {row.solver for row in table} - {None}
    if name == "adamw":
      assert not solvers
    else:
      assert solvers == {"dual_ascent" if faithful else "auto"}


@pytest.mark.parametrize("file", FILES)
def test_nothing_but_what_a_name_says_changes(file, settings):
  assert list(settings[file]) == list(gpt2.ALL)
  base = settings[file]["hetero_inv"]
  for name, of in settings[file].items():
    model = dict(base["model"])
    if name == "hetero_inv_qk_norm":
      model["qk_norm"] = True
    if name == "hetero_inv_cap":
      model |= {"logit_cap": 30.0, "attention": "plain"}
    optim = {**base["optim"], "assignment": of["optim"]["assignment"]}
    if "_slow" in name or "_ramp" in name:
      optim["assignment"] = name.removesuffix("_ramp").partition("_slow")[0]
    optim["faithful"] = name.endswith("_faithful")
    optim["fused"] = "split" if name.endswith("_split") else "whole"
    optim["lr"] /= 4 if "_slow" in name else 1
    train, watch = dict(base["train"]), dict(base["watch"])
    if name.endswith("_ramp"):
      optim["lr"] *= 2
      optim["warmup_steps"] = 3 * train["num_steps"]
      watch["saturation"] = None
    train["num_steps"] *= 4 if name.endswith(("_long", "_ramp")) else 1
    sections = {"model": model, "optim": optim, "train": train, "watch": watch}
    assert of == {**base, **sections}


@pytest.mark.parametrize(("rate", "peak"), [("lr", 0.2), ("adamw_lr", 3e-3)])
def test_a_schedule_goes_up_in_a_line_and_down_by_half_a_cosine(rate, peak):
  config = load(optim__warmup_steps="10", train__num_steps="110")
  rates = schedule(config.to_dict(), rate)(np.array([0, 5, 10, 60, 110]))
  wanted = peak * np.array([0, 0.5, 1, 0.55, 0.1])
  np.testing.assert_allclose(rates, wanted, rtol=1e-5)


def test_the_rate_is_summed_over_all_steps():
  config = load(optim__warmup_steps="1", train__num_steps="5")
  down = [0.1 + 0.9 * (1 + np.cos(np.pi * i / 4)) / 2 for i in range(4)]
  found = module_report.summed_lr(config.to_dict())
  assert found == pytest.approx(0.2 * sum(down), rel=1e-5)


# What is refused, and what is not.


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    ({"model__heads": "3"}, "condition hetero: 3 heads do not divide width 64"),
    ({"model__width": "63"}, "condition hetero: 4 heads do not divide"),
    ({"model__qkv": "both"}, "config.model.qkv: should be"),
    ({"model__attention": "flash"}, "config.model.attention: should be"),
    ({"model__dtype": "float16"}, "config.model.dtype: should be"),
    ({"model__vocabulary": "65537"}, "config.model.vocabulary: should be"),
    ({"model__depth": "1"}, "config.model.depth: should be"),
    ({"model__logit_cap": "0"}, "config.model.logit_cap: should be"),
    ({"model__attention": "fused", "model__logit_cap": "3.0"},
     "condition hetero: fused attention takes no logit_cap"),
    ({"optim__warmup_steps": "500"},
     "condition hetero: config.optim.warmup_steps: 500 leave nothing of 500"),
    ({"optim__solver": "best"}, "config.optim.solver: should be"),
    ({"optim__fused": "half"}, "config.optim.fused: should be"),
    ({"optim__momentum": "1.0"}, "config.optim.momentum: should be"),
    ({"variant": "hetero_faithful", "optim__solver": "irls"},
     "condition hetero_faithful: config.optim.solver: faithful wants auto"),
    ({"variant": "hetero_faithful", "optim__fused": "split"},
     "condition hetero_faithful: config.optim.fused: faithful wants whole"),
    ({"data__source": "files"}, "condition hetero: config.data.train_files: "),
    ({"data__train_files": "a.bin,"},
     "condition hetero: config.data.train_files: "),
    ({"data__order": "sorted"}, "config.data.order: should be"),
    ({"probe__k": "65"}, "condition hetero: config.probe.k: 65 is above"),
    ({"probe__method": "warm", "probe__k": "None"},
     "condition hetero: method warm takes k"),
    ({"probe__stacks": "weights,"}, "condition hetero: probe dominance needs"),
    ({"probe__names": "cosine,"}, "config.probe.names"),
    ({"watch__saturation": "1.5"}, "config.watch.saturation: should be"),
    ({"watch__patience": "0"}, "config.watch.patience: should be"),
    ({"seeds": "1,1"}, "config.seeds: the same seed twice"),
  ],
  ids=str,
)  # fmt: skip
def test_what_cannot_be_run_is_one_line(changes, says):
  assert error_of(**changes).startswith(says)


@pytest.mark.parametrize(
  ("assignment", "says"),
  [
    (5, "config.optim.assignment: should be the name of an assignment"),
    ("hetro", "assignment 'hetro' is none of"),
    ({"attention": "stiefel"}, "no rule claims parameter blocks/attention_"),
    ({"attention": {"manifold": "stiefel", "weight_decay": 0.1}, "*": "adamw"},
     "rule 'attention': weight decay 0.1 leaves the manifold stiefel"),
  ],
  ids=str,
)  # fmt: skip
def test_an_assignment_that_cannot_be(assignment, says):
  config = load()
  config.conditions.hetero.optim = {"assignment": assignment}
  with pytest.raises(cfg.ConfigError) as caught:
    check(config)
  assert str(caught.value).startswith(f"condition hetero: {says}")
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
  "changes",
  [{"optim__warmup_steps": "499"}, {"optim__warmup_steps": "0"},
   {"probe__k": "64"}, {"model__qkv": "split"}, {"optim__clip": "None"},
   {"seeds": "7"}, *({"optim__solver": solver} for solver in SOLVERS)],
  ids=str,
)  # fmt: skip
def test_what_is_right_at_the_edge(changes):
  check(load(**changes))


# What the report is told.


def test_what_a_module_gets_is_of_all_its_matrices():
  config = load()
  config.conditions.hetero.optim = gpt2.in_order({
    "assignment": {
      "mlp/up": {"manifold": "dgram", "lr_factor": 0.5},
      "mlp/down": {"manifold": "dgram", "retraction": "sorted_svd"},
      "attention": {"manifold": "euclidean", "weight_decay": 0.25},
      "embed": {"manifold": "adamw", "lr_factor": 2},
      "*": {"manifold": "adamw", "weight_decay": 0.5},
    }
  })  # fmt: skip
  (settings,) = conditions_of(check(config)).values()
  assert module_report.assignment_of(optimizer(settings).table, settings) == {
    "attention": {"manifold": "euclidean", "decay": "0.25", "lr": "0.2"},
    "mlp": {"manifold": "dgram (sorted_svd), dgram", "decay": "0",
            "lr": "0.2, 0.1"},
    # Vectors, which have a rule of their own, do not show.
    "rest": {"manifold": "adamw", "decay": "0.1", "lr": "0.006"},
  }  # fmt: skip


def test_chance_is_that_of_the_side_of_a_kernel():
  found = module_report.chances(64)
  shapes = {"q": (64, 64), "k": (64, 64), "v": (64, 64), "o": (64, 64),
            "up": (64, 256), "down": (256, 64)}  # fmt: skip
  assert found == {
    f"{projection}/{side}": pytest.approx(chance_cosine(size))
    for projection, sizes in shapes.items()
    for side, size in zip(("input", "output"), sizes, strict=True)
  }


def test_settings_that_differ_are_named():
  settings = load(optim__adamw_lr="0.01", model__heads="2").to_dict()
  assert sorted(x.split(" ")[0] for x in module_claims.unlike(settings)) == [
    "model.heads", "optim.adamw_lr",
  ]  # fmt: skip
  # What is not of the setting: how it is computed and measured.
  settings = load(model__unroll="1", probe__every="5", seeds="9").to_dict()
  assert module_claims.unlike(settings) == []

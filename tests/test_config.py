"""geom.config, and the schema and check of configs/resmlp.py.

Every mistake must be a ConfigError of one line that names the key.
"""

import json
import pathlib
import re

import ml_collections
import numpy as np
import pytest

from experiments import (
  continuity_claims,
  continuity_config,
  continuity_mlp,
)
from geom import config as cfg
from geom import record
from geom.conditions import changed
from geom.probes import suite
from geom.train import probing

CONFIG = pathlib.Path(__file__).parents[1] / "configs" / "resmlp.py"
FAMILIES = {
  "init_gain": [
    "relu_gain_small", "relu_gain_mid", "relu_gain_large", "none_gain_small",
    "none_gain_large",
  ],
  "optimizers": [
    "adam", "adam_b1_0", "adam_b2_0", "adam_b2_0_eps", "adam_b1_0_b2_0",
    "sign", "sgd", "muon", "none_sgd",
  ],
  "manifolds": ["euclidean_muon", "stiefel", "dgram", "oblique"],
}  # fmt: skip
CONDITIONS = [
  "relu", "gelu", "silu", "none", "radial", "radial_10", "radial_30",
  "nores_relu", "nores_none", "layernorm_none", "layernorm_relu",
  "rmsnorm_none", "rmsnorm_relu", "relu_pre", *FAMILIES["init_gain"],
  *FAMILIES["optimizers"],
]  # fmt: skip


def load(variant="relu"):
  return cfg.load(f"{CONFIG}:{variant}")


def put(config, path, value):
  """Sets an entry as a config file could, to any value, unchecked."""
  *sections, key = path.split(".")
  for section in sections:
    config = config[section]
  with config.ignore_type(), config.unlocked():
    config[key] = value


def checked(*overrides, variant="relu"):
  """The checked config, with overrides `path=text` of a command line."""
  config = load(variant)
  for path, _, text in (o.partition("=") for o in overrides):
    cfg.override(config, path, text)
  cfg.choice(config, "experiment", ["continuity_mlp"])
  return continuity_mlp.check(config)


def error_of(function, *args, **kwargs):
  """What the ConfigError says; it must say it in one line."""
  with pytest.raises(cfg.ConfigError) as caught:
    function(*args, **kwargs)
  message = str(caught.value)
  assert message and len(message.splitlines()) == 1
  return message


# Mistakes in the name of a key, on a command line.


@pytest.mark.parametrize(
  ("override", "message"),
  [
    (
      "model.widht=3",
      "unknown config key config.model.widht; did you mean config.model.width?",
    ),
    (
      "modle.width=3",
      "unknown config key config.modle; did you mean config.model?",
    ),
    (
      "optim.width=3",  # The key is right, the section is wrong.
      "unknown config key config.optim.width; did you mean config.model.width?",
    ),
    ("lr=3", "unknown config key config.lr; did you mean config.optim.lr?"),
    (
      "eval.zzz=3",
      "unknown config key config.eval.zzz; config.eval has every",
    ),
    (
      "model.width.x=3",
      "config.model.width is a single value, it has no entry 'x'",
    ),
    (
      "checkpoint=3",
      "config.checkpoint is a section: set one of its entries, "
      "every, keep, keep_every",
    ),
    (
      "conditions.relu.optim=3",
      "unknown config key config.conditions.relu.optim",
    ),
  ],
)
def test_a_wrong_key_is_named_and_the_right_one_suggested(override, message):
  assert error_of(checked, override).startswith(message)


def test_the_near_key_of_the_section_comes_before_one_elsewhere():
  message = error_of(checked, "train.every=3")
  assert message.endswith("did you mean config.train.log_every?")


# Mistakes in a value.


@pytest.mark.parametrize(
  ("override", "should"),
  [
    # Of another type.
    ("optim.lr=fast", "should be a valid number, got 'fast'"),
    ("optim.lr=true", "should be a valid number, got True"),
    ("optim.lr=none", "should be a valid number, got None"),
    ("optim.lr=(1,2)", "should be a valid number, got (1, 2)"),
    ("optim.lr={'a':1}", "should be a valid number, got {'a': 1}"),
    ("optim.lr={[1]:2}", "should be a valid number, got '{[1]:2}'"),
    ("model.width=6.5", "should be a valid integer, got 6.5"),
    ("model.width=8.0", "should be a valid integer, got 8.0"),
    ("model.width='8'", "should be a valid integer, got '8'"),
    ("model.width=true", "should be a valid integer, got True"),
    ("model.bias=1", "should be a valid boolean, got 1"),
    ("model.residual=yes", "should be a valid boolean, got 'yes'"),
    ("train.num_steps=none", "should be a valid integer, got None"),
    ("checkpoint.keep=none", "should be a valid integer, got None"),
    # Senseless.
    ("model.width=1", "should be greater than or equal to 2, got 1"),
    ("model.depth=1", "should be greater than or equal to 2, got 1"),
    ("model.radius=0", "should be greater than 0, got 0"),
    ("model.radius=nan", "should be a finite number, got nan"),
    ("model.radius=inf", "should be a finite number, got inf"),
    ("model.gain=-1", "should be greater than or equal to 0, got -1"),
    ("model.gain=inf", "should be a finite number, got inf"),
    ("optim.lr=-1", "should be greater than or equal to 0, got -1"),
    ("optim.lr=NaN", "should be a finite number, got nan"),
    ("optim.lr=-inf", "should be a finite number, got -inf"),
    ("optim.eps=0", "should be greater than 0, got 0"),
    ("optim.eps=inf", "should be a finite number, got inf"),
    ("optim.momentum=1", "should be less than 1, got 1"),
    ("optim.momentum=-0.1", "should be greater than or equal to 0, got -0.1"),
    ("data.batch_size=0", "should be greater than or equal to 1, got 0"),
    ("data.batch_size=60001", "should be less than or equal to 60000"),
    ("train.num_steps=0", "should be greater than or equal to 1, got 0"),
    ("train.num_steps=2147483648", "should be less than 2147483648"),
    ("train.steps_per_dispatch=0", "should be greater than or equal to 1"),
    ("train.log_every=-8", "should be greater than or equal to 1, got -8"),
    ("eval.every=0", "should be greater than or equal to 1, got 0"),
    ("probe.every=0", "should be greater than or equal to 1, got 0"),
    ("probe.per_decade=-1", "should be greater than or equal to 0, got -1"),
    ("probe.per_decade=1001", "should be less than or equal to 1000"),
    ("data.probe_examples=0", "should be greater than or equal to 1, got 0"),
    ("data.probe_examples=60001", "should be less than or equal to 60000"),
    ("checkpoint.every=0", "should be greater than or equal to 1, got 0"),
    ("checkpoint.keep=0", "should be greater than or equal to 1, got 0"),
    ("checkpoint.keep_every=0", "should be greater than or equal to 1, got 0"),
    # Pairs.
    ("optim.betas=0.9", "needs several values, got 0.9"),
    ("optim.betas=(0.9,)", "needs a pair of numbers, got (0.9,)"),
    ("optim.betas=(.1,.2,.3)", "Tuple should have at most 2 items"),
    # Names.
    ("model.activation=rleu", "should be 'relu', 'gelu', 'silu', 'identity' o"),
    ("model.activation=none", "should be 'relu', 'gelu', 'silu', 'identity' o"),
    ("model.form=inner", "should be 'post', 'outer' or 'pre', got 'inner'"),
    ("model.norm=batch", "should be 'none', 'layernorm', 'layernorm_free' or"),
    ("model.init=she", "should be 'scaled' or 'he', got 'she'"),
    (
      "optim.name=adma",
      "should be 'adam', 'sgd', 'sign', 'muon' or 'manifold_muon', got 'adma'",
    ),
    # Seeds.
    ("seeds=()", ""),
    ("seeds=(1,2,1)", "the same seed twice, got (1, 2, 1)"),
    ("seeds=none", "needs several values, got None"),
    ("seeds=all", "needs several values, got 'all'"),
  ],
)
def test_a_wrong_value_is_named_with_what_it_should_be(override, should):
  key = override.partition("=")[0]
  assert error_of(checked, override).startswith(f"config.{key}: {should}")


@pytest.mark.parametrize(
  ("override", "where"),
  [
    ("optim.betas=(.9,1)", "optim.betas.1: should be less than 1, got 1"),
    ("optim.betas=(-.1,.9)", "optim.betas.0: should be greater than or eq"),
    ("optim.betas=(.9,'x')", "optim.betas.1: should be a valid number, got"),
    ("optim.betas=(False,.9)", "optim.betas.0: should be a valid number, got"),
    ("seeds=true", "seeds.0: should be a valid integer, got True"),
    ("seeds=-1", "seeds.0: should be greater than or equal to 0, got -1"),
    ("seeds=(0,1.5)", "seeds.1: should be a valid integer, got 1.5"),
    ("seeds=(0,4294967296)", "seeds.1: should be less than 4294967296, got 4"),
  ],
)
def test_a_wrong_value_in_a_tuple_is_named_by_its_place(override, where):
  assert error_of(checked, override).startswith(f"config.{where}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_pair_of_a_config_file_with_a_number_that_is_none(value):
  config = load()
  put(config, "optim.betas", (0.9, value))
  message = error_of(continuity_mlp.check, config)
  assert message.startswith("config.optim.betas.1: should be")


@pytest.mark.parametrize(
  ("override", "value"),
  [
    ("optim.lr=0", 0.0),
    ("optim.lr=1", 1.0),
    ("optim.lr=1e-2", 0.01),
    ("optim.betas=[.8,.9]", (0.8, 0.9)),
    ("optim.betas=.8,.9", (0.8, 0.9)),
    ("optim.betas=(0,0)", (0.0, 0.0)),
    ("model.gain=0", 0.0),
    ("model.width=2", 2),
    ("model.depth=2", 2),
    ("data.batch_size=60000", 60_000),
    ("train.num_steps=2147483647", 2**31 - 1),
    ("model.bias=true", True),
    ("model.residual=FALSE", False),
    ("model.norm=none", "none"),
    ("model.norm='none'", "none"),
    ("eval.every=none", None),
    ("eval.every=1", 1),
    ("probe.every=10", 10),
    ("probe.per_decade=0", 0),
    ("data.probe_examples=60000", 60_000),
    ("checkpoint.every=None", None),
    ("checkpoint.keep_every=7", 7),
    ("seeds=4", (4,)),
    ("seeds=0,4294967295", (0, 2**32 - 1)),
    ("seeds=[2,1]", (2, 1)),
  ],
)
def test_a_right_value_is_taken(override, value):
  key = override.partition("=")[0]
  got = checked(override)
  for part in key.split("."):
    got = got[part]
  assert got == value and type(got) is type(value)


def test_several_mistakes_are_counted():
  message = error_of(checked, "model.width=0", "optim.lr=x", "eval.every=0")
  assert message.startswith("config.model.width: ")
  assert message.endswith(" (and 2 more)")


@pytest.mark.parametrize("override", ["model.width=0", "seeds=()", "seeds=-1"])
def test_one_mistake_is_counted_once(override):
  assert "more)" not in error_of(checked, override)


# What the numbers of an optimizer mean together.


@pytest.mark.parametrize(
  "overrides, said",
  [
    (["momentum=0.9"], "adam does not read momentum: set to None"),
    (["betas=none"], "adam needs betas, got None"),
    (["eps=none", "betas=none"], "adam needs betas, eps, got None"),
    (["name=sgd"], "sgd does not read betas, eps: set to None"),
    (["name=sgd", "betas=none"], "sgd does not read eps: set to None"),
    (["assignment=hetero"], "adam does not read assignment: set to None"),
    (
      ["name=manifold_muon"],
      "manifold_muon does not read eps: set to None",
    ),
    (
      ["name=manifold_muon", "eps=none"],
      "manifold_muon needs assignment, momentum, adam_lr, got None",
    ),
  ],
)
def test_an_optimizer_is_not_given_numbers_it_does_not_read(overrides, said):
  message = error_of(checked, *(f"optim.{o}" for o in overrides))
  assert message == f"condition relu: optimizer {said}"


MANIFOLD_MUON = (
  "optim.name=manifold_muon", "optim.eps=none", "optim.momentum=0.9",
  "optim.adam_lr=0.1",
)  # fmt: skip


@pytest.mark.parametrize(
  ("assignment", "said"),
  [
    ("heterro", "'heterro' is none of unconstrained, .*; did you mean hetero?"),
    ("{'mlp': 'stifel', '*': 'adamw'}", "rule 'mlp': .*did you mean stiefel?"),
    ("{'mlp': 'stiefel'}", "no rule claims parameter embed/kernel, head/kern"),
    ("{'attention': 'stiefel', '*': 'adamw'}", "rule 'attention': .* no param"),
    (
      "{'mlp': {'manifold': 'oblique', 'weight_decay': 0.1}, '*': 'adamw'}",
      "rule 'mlp': weight decay 0.1 leaves the manifold oblique",
    ),
  ],
)
def test_an_assignment_that_cannot_be(assignment, said):
  message = error_of(checked, *MANIFOLD_MUON, f"optim.assignment={assignment}")
  assert re.match(f"condition relu: (assignment )?{said}", message)


@pytest.mark.parametrize("value", [5, True, ("hetero",)])
def test_what_is_no_assignment_at_all(value):
  config = load()
  put(config, "optim.assignment", value)
  assert error_of(continuity_mlp.check, config) == (
    "config.optim.assignment: should be the name of an assignment, rules, or "
    f"None, got {value!r}"
  )


def test_rules_keep_their_order():
  rules = {"m*": "oblique", "hidden/*": {"manifold": "adamw"}, "*": "adamw"}
  given = f"optim.assignment={rules}"
  message = error_of(checked, *MANIFOLD_MUON, given)
  assert "rule 'hidden/*': adamw claims nothing" in message
  del rules["hidden/*"]
  given = f"optim.assignment={rules}"
  optim = checked(*MANIFOLD_MUON, given)["optim"]
  assert list(optim["assignment"].items()) == list(rules.items())
  path = "conditions.stiefel.optim.assignment.mlp=oblique"
  family = checked(path, variant="manifolds")["conditions"]["stiefel"]
  rules = {"mlp": "oblique", "*": "adamw"}
  assert list(family["optim"]["assignment"].items()) == list(rules.items())


@pytest.mark.parametrize("momentum", ["none", "0.9"])
def test_sgd(momentum):
  sgd = ["optim.name=sgd", "optim.betas=none", "optim.eps=none"]
  optim = checked(*sgd, f"optim.momentum={momentum}")["optim"]
  assert optim["momentum"] == cfg.parse(momentum)


# Mistakes that only a config file can make.


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("model", 5, "config.model: should be "),
    ("optim", None, "config.optim: should be "),
    ("train", (1, 2), "config.train: should be "),
    (
      "model.widht",
      5,
      "unknown config key config.model.widht; did you mean width?",
    ),
    ("modle", {}, "unknown config key config.modle; did you mean model?"),
    ("zzz", 1, "unknown config key config.zzz"),
    ("optim.lr", "1e-3", "config.optim.lr: should be a valid number"),
    ("experiment", "other", "config.experiment: should be 'continuity_mlp'"),
    ("conditions", {}, "config.conditions: names no condition"),
    ("conditions", None, "config.conditions: names no condition"),
    ("conditions", "relu", "config.conditions: names no condition"),
  ],
)
def test_a_wrong_entry_of_a_config_file(path, value, message):
  config = load()
  put(config, path, value)
  assert error_of(continuity_mlp.check, config).startswith(message)


@pytest.mark.parametrize("path", ["model.width", "optim", "seeds"])
def test_a_missing_entry_is_named(path):
  config = load()
  *sections, key = path.split(".")
  del (config[sections[0]] if sections else config)[key]
  message = error_of(continuity_mlp.check, config)
  assert message == f"config key config.{path} is missing"


def test_missing_conditions():
  config = load()
  del config["conditions"]
  message = error_of(continuity_mlp.check, config)
  assert message == "config.conditions: names no condition"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model": {"activation": "rleu"}}, "config.model.activation: should be"),
    ({"model": {"width": 0}}, "config.model.width: should be greater"),
    (
      {"model": {"widht": 5}},
      "unknown config key config.model.widht; did you mean width?",
    ),
    (
      {"modle": {"width": 5}},
      "unknown config key config.modle; did you mean model?",
    ),
    ({"model": {"width": 5}}, "config.model.width: is one for all"),
    ({"model": {"depth": 5}}, "config.model.depth: is one for all"),
    ({"conditions": {"x": {}}}, "unknown config key config.conditions"),
    ({"optim": {"momentum": 0.9}}, "optimizer adam does not read"),
    ({"model": 5}, "config.model"),
    ({"model": None}, "config.model"),
    ({"seeds": (1, 2)}, "config.seeds"),
    ({"seeds": {"first": 1}}, "config.seeds"),
    (5, ""),
    (None, ""),
  ],
  ids=str,
)
def test_a_bad_condition_is_named(change, message):
  config = load()
  put(config, "conditions", {"good": {}, "odd": change})
  found = error_of(continuity_mlp.check, config)
  assert found.startswith(f"condition odd: {message}")


@pytest.mark.parametrize("name", ["", "a/b", "-x", "a b", "+1", "x\n"])
def test_the_name_of_a_condition_is_a_folder(name):
  config = load()
  put(config, "conditions", {name: {}})
  message = error_of(continuity_mlp.check, config)
  assert message == f"condition {name!r}: not a name for a folder"
  put(config, "conditions", {"_lr+0-1": {}, "2": {}})
  assert set(continuity_mlp.check(config)["conditions"]) == {"_lr+0-1", "2"}


# What is right.


@pytest.mark.parametrize(
  "variant", ["short", *CONDITIONS, ",".join(CONDITIONS)]
)
def test_every_variant_and_condition_passes(variant):
  config = load(variant)
  checked = continuity_mlp.check(config)
  names = variant.split(",")
  if variant == "short":
    names = ["relu", "none", "nores_relu", "nores_none"]
  assert type(checked) is dict and type(checked["model"]) is dict
  assert list(checked["conditions"]) == names
  assert checked == config.to_dict()


def test_the_conditions_are_all_there_are():
  message = error_of(load, "zzz")
  names = ["short", "long", "paper", *FAMILIES, *CONDITIONS]
  names += FAMILIES["manifolds"]
  assert message.endswith("there are " + ", ".join(names))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_its_conditions(family):
  assert list(checked(variant=family)["conditions"]) == FAMILIES[family]
  both = checked(variant=f"none,{family}")
  assert list(both["conditions"]) == ["none", *FAMILIES[family]]


def test_the_paper_is_everything():
  config = checked(variant="paper")
  assert list(config["conditions"]) == CONDITIONS
  assert not set(CONDITIONS) & set(FAMILIES["manifolds"])
  assert len(config["seeds"]) == 3 and config["orbit"]["angles"]
  assert set(config["full_probe"]["names"]) == set(suite.PROBES)
  assert set(config["full_probe"]["stacks"]) == set(probing.STACKS)
  steps = {
    name: changed(config, change)["train"]["num_steps"]
    for name, change in config["conditions"].items()
  }
  assert steps["none"] == steps["relu"] == steps["radial_10"] == 6000
  assert steps["adam"] == steps["muon"] == 464


@pytest.mark.parametrize(
  ("condition", "optimizer"),
  [
    ("adam", {"name": "adam", "betas": (0.9, 0.999), "lr": 1e-3}),
    ("adam_b1_0", {"name": "adam", "betas": (0.0, 0.999)}),
    ("adam_b2_0", {"name": "adam", "betas": (0.9, 0.0), "eps": 1e-8}),
    ("adam_b1_0_b2_0", {"name": "adam", "betas": (0.0, 0.0)}),
    ("sign", {"name": "sign", "betas": None}),
    ("sgd", {"name": "sgd", "momentum": None}),
    ("muon", {"name": "muon", "momentum": 0.95, "betas": (0.9, 0.999)}),
  ],
)
def test_the_optimizers_are_what_their_names_say(condition, optimizer):
  config = checked(variant=condition)
  settings = changed(config, config["conditions"][condition])
  assert settings["optim"] == settings["optim"] | optimizer
  assert settings["model"]["activation"] == "relu"


# Measuring the checkpoints of a run.


def a_run(tmp_path, variant="relu", **changes):
  config = load(variant)
  for path, value in changes.items():
    cfg.override(config, path.replace("__", "."), value)
  checked = continuity_mlp.check(config)
  record.write_json(tmp_path / "config.json", {"config": checked})
  for name in checked["conditions"]:
    (tmp_path / "checkpoints" / name / "100").mkdir(parents=True)
  return f"checkpoints_of={tmp_path}"


def test_other_probes_may_be_taken_of_checkpoints(tmp_path):
  of = a_run(tmp_path)
  checked(
    of, "full_probe.names=ranks,drift", "full_probe.k=None",
    "full_probe.stacks=weights,updates,gradients", "orbit.angles=0.1,1.0",
    "eval.every=3",
  )  # fmt: skip


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ("model.gain=0.2", "another config.model.gain (0.1 there, 0.2 now)"),
    ("seeds=3", "another config.seeds ([0, 1, 2] there, [3] now)"),
    (
      "full_probe.stacks=weights,gradient_sum,updates",
      "condition relu: that run did not remember gradient_sum",
    ),
    (
      "probe.stacks=weights,optimizer_updates,updates",
      "condition relu: that run did not remember optimizer_updates",
    ),
  ],
)
def test_what_checkpoints_do_not_have(tmp_path, change, message):
  assert message in error_of(checked, a_run(tmp_path), change)


def test_what_a_run_remembered_may_be_measured(tmp_path):
  stacks = "weights,gradient_sum,updates"
  of = a_run(tmp_path, full_probe__stacks=stacks)
  checked(of, f"full_probe.stacks={stacks}")


def test_checkpoints_of_no_run(tmp_path):
  message = error_of(checked, f"checkpoints_of={tmp_path}")
  assert "no config.json of a run in" in message
  (tmp_path / "config.json").write_text("{}")
  again = error_of(checked, f"checkpoints_of={tmp_path}")
  assert "no config.json of a run in" in again


def test_checkpoints_of_a_run_that_has_none(tmp_path):
  of = a_run(tmp_path)
  (tmp_path / "checkpoints" / "relu" / "100").rmdir()
  assert "relu: no checkpoints in" in error_of(checked, of)


def test_checkpoints_of_an_older_run(tmp_path):
  of = a_run(tmp_path)
  there = record.read_json(tmp_path / "config.json")
  del there["config"]["orbit"]
  record.write_json(tmp_path / "config.json", there)
  message = error_of(checked, of)
  assert "that can be used (config key config.orbit is missing)" in message


def test_checkpoints_of_nothing_is_a_mistake():
  assert "at least 1 character" in error_of(checked, "checkpoints_of=''")


@pytest.mark.parametrize(
  ("condition", "activation", "residual"),
  [
    ("relu", "relu", True),
    ("gelu", "gelu", True),
    ("silu", "silu", True),
    ("none", "identity", True),
    ("radial", "radial", True),
    ("nores_relu", "relu", False),
    ("nores_none", "identity", False),
  ],
)
def test_a_condition_is_what_its_name_says(condition, activation, residual):
  base = checked(variant=condition)
  model = base["model"] | base["conditions"][condition].get("model", {})
  assert (model["activation"], model["residual"]) == (activation, residual)


def test_what_the_model_refuses_is_a_mistake_of_its_condition(monkeypatch):
  def refuse(**settings):
    raise ValueError(f"no model of width {settings['width']}")

  monkeypatch.setattr(continuity_config, "resmlp", refuse)
  assert error_of(checked) == "condition relu: no model of width 256"


def test_short_is_the_default_variant():
  short = load("short")
  assert cfg.load(str(CONFIG)).to_dict() == short.to_dict()


def test_a_condition_changes_its_entries_and_no_others():
  base = checked(variant="nores_none")
  settings = changed(base, base["conditions"]["nores_none"])
  wanted = {"residual": False, "activation": "identity", "gain": 1.0}
  assert settings["model"] == {**base["model"], **wanted}
  assert "conditions" not in settings
  rest = {k: v for k, v in base.items() if k not in ("model", "conditions")}
  assert {k: v for k, v in settings.items() if k != "model"} == rest
  assert base["model"]["residual"] is True


def test_check_leaves_the_config_alone():
  config = load()
  before = config.to_dict()
  continuity_mlp.check(config)
  assert config.to_dict() == before


@pytest.mark.parametrize("variant", ["short", *CONDITIONS])
def test_the_config_that_a_run_wrote_is_read_back(tmp_path, variant):
  config = checked("seeds=5", "eval.every=none", variant=variant)
  path = tmp_path / "config.json"
  record.write_json(path, {"config": record.plain(config), "command": []})
  again = cfg.load(str(path))
  assert isinstance(again, ml_collections.ConfigDict)
  again = continuity_mlp.check(again)
  assert again == config
  assert list(again["conditions"]) == list(config["conditions"])


def test_tuples_of_conditions_are_read_back(tmp_path):
  config = load()
  put(config, "conditions", {"slow": {"optim": {"betas": (0.5, 0.9)}}})
  config = continuity_mlp.check(config)
  path = tmp_path / "config.json"
  record.write_json(path, {"config": record.plain(config)})
  again = continuity_mlp.check(cfg.load(str(path)))
  assert again == config
  assert again["conditions"]["slow"]["optim"]["betas"] == (0.5, 0.9)


def test_lists_of_a_config_json_are_tuples_at_any_depth(tmp_path):
  path = tmp_path / "config.json"
  path.write_text('{"config": {"a": [1, [2, [3]]], "b": {"c": [4]}}}')
  config = cfg.load(str(path)).to_dict()
  assert config == {"a": (1, (2, (3,))), "b": {"c": (4,)}}


# Files.


@pytest.mark.parametrize(
  "text",
  [
    "",
    "[]",
    "null",
    "{}",
    "{nonsense",
    '{"config": 5}',
    '{"config": [1, 2]}',
    '{"config": {"a.b": 1}}',
    '{"command": []}',
  ],
)
def test_a_file_that_is_no_config_json(tmp_path, text):
  path = tmp_path / "config.json"
  path.write_text(text)
  message = error_of(cfg.load, str(path))
  assert message == f"--config={path}: not a config.json of a run"


def test_a_missing_file_is_named_and_a_near_one_suggested(tmp_path):
  (tmp_path / "resmlp.py").touch()
  (tmp_path / "other.py").touch()
  message = error_of(cfg.load, f"{tmp_path}/resmpl.py:short")
  assert message == (
    f"--config: no file {tmp_path}/resmpl.py; "
    f"did you mean {tmp_path}/resmlp.py?"
  )
  nowhere = str(tmp_path / "deep" / "down" / "resmlp.py")
  assert error_of(cfg.load, nowhere) == f"--config: no file {nowhere}"
  assert error_of(cfg.load, str(tmp_path)).startswith("--config: no file ")


@pytest.mark.parametrize("variant", ["longest", "relu,long", "relu,"])
def test_an_unknown_variant(variant):
  wrong = variant.split(",")[-1]
  message = error_of(load, variant)
  assert message.startswith(f"--config={CONFIG}:{variant}: ")
  assert f"no variant or condition {wrong!r}" in message


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("get_config = 1 / 0", "ZeroDivisionError: division by zero"),
    ("def get_config(v=''):\n  raise ValueError('bad')", "ValueError: bad"),
    ("raise ValueError('two\\nlines')", "ValueError: two"),
    ("raise SystemExit('enough')", "SystemExit: enough"),
    ("def get_config(:", "SyntaxError: "),
    ("import no_such_module_at_all", "ModuleNotFoundError: No module named"),
    ("config = {}", "no 'get_config'"),
    ("def get_config():\n  return {}['model']", "no 'model'"),
    ("def get_config(v=''): pass", ""),
  ],
)
def test_a_config_file_that_fails(tmp_path, text, says):
  path = tmp_path / "mine.py"
  path.write_text(text)
  message = error_of(cfg.load, str(path))
  assert message.startswith(f"--config={path}: {says}")


def test_the_variant_is_what_stands_behind_the_colon(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(
    "from ml_collections import ConfigDict\n"
    "def get_config(variant='plain'):\n"
    "  return ConfigDict({'variant': variant})"
  )
  assert cfg.load(f"{path}").variant == "plain"
  assert cfg.load(f"{path}:").variant == "plain"
  assert cfg.load(f"{path}:a:b,c").variant == "a:b,c"


SIZED = (
  "from ml_collections import ConfigDict\n"
  "def get_config():\n"
  "  return ConfigDict({{'size': {}}})"
)


def test_a_file_of_another_folder_is_found_when_it_is_not_here(
  tmp_path, monkeypatch
):
  here, there = tmp_path / "here", tmp_path / "there"
  here.mkdir()
  there.mkdir()
  monkeypatch.chdir(here)
  (there / "mine.py").write_text(SIZED.format(2))
  assert cfg.load("mine.py", also=there).size == 2
  assert error_of(cfg.load, "mine.py") == "--config: no file mine.py"
  message = error_of(cfg.load, "yours.py", also=there)
  assert message == "--config: no file yours.py"
  (here / "mine.py").write_text(SIZED.format(1))
  assert cfg.load("mine.py", also=there).size == 1


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "mine.py").write_text(SIZED.format(3))
  assert cfg.load("~/mine.py").size == 3


@pytest.mark.parametrize(
  ("reference", "path", "variant"),
  [
    ("a/mine.py", "a/mine.py", ""),
    ("a/mine.py:", "a/mine.py", ""),
    ("a/mine.py:b,c", "a/mine.py", "b,c"),
    ("a:b/mine.py:c", "a:b/mine.py", "c"),
    ("a/config.json", "a/config.json", ""),
    ("a/config.json:b", "a/config.json:b", ""),  # It has no variants.
  ],
)
def test_a_reference_is_a_file_and_a_variant(reference, path, variant):
  assert cfg.split_reference(reference) == (pathlib.Path(path), variant)


# Overrides on a command line.


def test_overrides_are_parted_from_the_rest():
  arguments = [
    "launch.py",
    "--config=configs/resmlp.py:short",
    "--config.seeds=1,2",
    "--workdir",
    "runs",
    "-config.model.width=3",
    "--config.optim.name",
    "sgd",
    "--config.optim.lr",
    "-1",
    "--config.a=b=c",
    "--config.b=",
    "--config.c=two\nlines",
    "--profile",
    "--config",
    "x.py",
  ]
  rest, overrides = cfg.split_overrides(arguments)
  assert rest == [
    "launch.py",
    "--config=configs/resmlp.py:short",
    "--workdir",
    "runs",
    "--profile",
    "--config",
    "x.py",
  ]
  assert overrides == [
    ("seeds", "1,2"),
    ("model.width", "3"),
    ("optim.name", "sgd"),
    ("optim.lr", "-1"),
    ("a", "b=c"),
    ("b", ""),
    ("c", "two\nlines"),
  ]
  assert arguments[0] == "launch.py" and len(arguments) == 16


@pytest.mark.parametrize(
  "arguments",
  [["--config.optim.lr"], ["x", "--config.optim.lr", "--config.seeds=1"]],
)
def test_an_override_without_a_value(arguments):
  message = error_of(cfg.split_overrides, arguments)
  assert message == "--config.optim.lr: needs a value, --config.optim.lr=VALUE"


def test_both_forms_of_a_negative_number():
  for arguments in (["--config.optim.lr", "-1"], ["--config.optim.lr=-1"]):
    rest, overrides = cfg.split_overrides(arguments)
    assert rest == [] and overrides == [("optim.lr", "-1")]
  message = error_of(checked, "optim.lr=-1")
  assert message.startswith("config.optim.lr: should be greater than or equal")


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("1", 1),
    ("-2", -2),
    ("1e-3", 1e-3),
    ("true", True),
    ("False", False),
    ("TRUE", True),
    ("none", None),
    ("null", None),
    ("inf", float("inf")),
    ("-Inf", -float("inf")),
    ("+inf", float("inf")),
    ("(1, 2)", (1, 2)),
    ("1,", (1,)),
    ("[1,2]", [1, 2]),
    ("relu", "relu"),
    ("'none'", "none"),
    ("a b", "a b"),
    ("1 +", "1 +"),
    ("", ""),
    ("{[1]: 2}", "{[1]: 2}"),
  ],
)
def test_parse(text, value):
  parsed = cfg.parse(text)
  assert parsed == value and type(parsed) is type(value)


def test_parse_nan():
  assert np.isnan(cfg.parse("NaN"))


def test_override_sets_the_entry_and_no_other():
  config, same = load(), load()
  cfg.override(config, "checkpoint.every", "[1, 2]")
  cfg.override(config, "seeds", "7")
  assert config.checkpoint.every == (1, 2)
  assert config.seeds == 7
  wanted = same.to_dict()
  wanted["checkpoint"]["every"], wanted["seeds"] = (1, 2), 7
  assert config.to_dict() == wanted


def test_override_of_a_condition():
  config = checked("conditions.none.model.activation=gelu", variant="none")
  model = {"activation": "gelu", "residual": True}
  assert config["conditions"] == {"none": {"model": model}}


# The pieces.


def test_choice():
  config = ml_collections.ConfigDict({"experiment": "ablation"})
  names = {"ablation": 1, "study": 2}
  assert cfg.choice(config, "experiment", names) == "ablation"
  put(config, "experiment", "studdy")
  assert error_of(cfg.choice, config, "experiment", names) == (
    "config.experiment: should be ablation or study, got 'studdy'; "
    "did you mean study?"
  )
  for value in (None, 5, (1, 2), {"a": 1}):
    put(config, "experiment", value)
    message = error_of(cfg.choice, config, "experiment", names)
    assert message == (
      f"config.experiment: should be ablation or study, got {value!r}"
    )
  message = error_of(cfg.choice, config, "other", names)
  assert message == "config.other: should be ablation or study, got None"


def test_check_takes_configs_and_dicts_and_gives_fresh_dicts():
  class Inner(cfg.Section):
    size: cfg.Count

  class Outer(cfg.Section):
    inner: Inner
    rate: cfg.Fraction

  config = {"inner": {"size": 3}, "rate": 0}
  for given in (config, ml_collections.ConfigDict(config)):
    found = cfg.check(given, Outer)
    assert found == {"inner": {"size": 3}, "rate": 0.0}
    assert type(found["inner"]) is dict
    assert found["inner"] is not config["inner"]
  with pytest.raises(ValueError, match="frozen"):
    Outer.model_validate(config).rate = 0.5


def test_differing_names_nested_paths():
  a = {"model": {"width": 2, "depth": 3, "bias": True}, "seeds": [1], "x": 1}
  b = {"model": {"width": 4, "depth": 3, "form": "pre"}, "seeds": [2], "y": 1}
  assert record.differing(a, a) == []
  assert record.differing(a, b) == [
    "config.model.bias",
    "config.model.form",
    "config.model.width (2 there, 4 now)",
    "config.seeds ([1] there, [2] now)",
    "config.x",
    "config.y",
  ]
  assert record.differing({"a": {"b": 1}}, {"a": 1}) == [
    "config.a ({'b': 1} there, 1 now)"
  ]


def test_differing_of_a_run_and_its_config_json():
  config = checked(variant="short")
  written = json.loads(json.dumps(record.plain(config)))
  assert record.differing(written, record.plain(config)) == []
  other = record.plain(checked("optim.lr=0.5", variant="short"))
  assert record.differing(written, other) == [
    "config.optim.lr (0.001 there, 0.5 now)"
  ]


# Which settings the claims are about.


def claims_unlike(variant, **changes):
  config = load(variant)
  for path, value in changes.items():
    cfg.override(config, path.replace("__", "."), value)
  checked = continuity_mlp.check(config)
  return {
    name: continuity_claims.unlike(name, changed(checked, change))
    for name, change in checked["conditions"].items()
  }


@pytest.mark.parametrize("variant", ["short", "long", "paper", "optimizers"])
def test_the_claims_are_about_the_main_job(variant):
  assert not any(claims_unlike(variant).values())


@pytest.mark.parametrize(
  "key, value",
  [
    ("model.width", "128"),
    ("model.norm", "rmsnorm"),
    ("model.gain", "0.5"),
    ("optim.lr", "0.01"),
    ("optim.betas", "0.9,0.99"),
    ("data.batch_size", "32"),
    ("train.num_steps", "463"),
  ],
)
def test_another_setting_is_not_judged(key, value):
  assert claims_unlike("relu", **{key.replace(".", "__"): value}) == {
    "relu": [key]
  }


@pytest.mark.parametrize(
  "key, value", [("orbit.angles", "0.1,1.0"), ("data.probe_examples", "9")]
)
def test_what_is_measured_otherwise_is_not_judged(key, value):
  unlike = claims_unlike("paper", **{key.replace(".", "__"): value})
  assert all(found == [key] for found in unlike.values())


@pytest.mark.parametrize(
  "key, value",
  [
    ("full_probe.every", "500"),
    ("probe.names", "cosines,drift"),
    ("train.num_steps", "5500"),
  ],
)
def test_drift_is_judged_over_a_thousand_steps(key, value):
  unlike = claims_unlike("paper", **{key.replace(".", "__"): value})
  assert unlike.pop("relu") == unlike.pop("none") == [key]
  assert not any(unlike.values())
  # Where it is not measured, it is no matter.
  assert claims_unlike("relu", full_probe__every="500") == {"relu": []}


def test_a_base_that_says_otherwise_does_not_change_what_a_condition_is():
  unlike = claims_unlike("relu", model__activation="gelu")
  assert unlike == {"relu": []}


@pytest.mark.parametrize("section", ["probe", "full_probe"])
def test_there_are_no_more_triplets_than_the_width(section):
  small = ("model.width=24", f"{section}.method=gram")
  checked(*small, f"{section}.k=24")
  message = error_of(checked, *small, f"{section}.k=25")
  assert message.startswith(f"condition relu: config.{section}.k: 25 is above")


def test_probes_need_stacks():
  message = error_of(checked, "full_probe.stacks=()")
  assert message == (
    "condition relu: probes cosines, flattened, dominance need stacks"
  )

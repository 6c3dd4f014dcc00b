"""Configs of the transformer's continuity: sizes, conditions, mistakes."""

import jax
import pytest

from configs import llama
from experiments import continuity_lm_report
from experiments.continuity_lm_config import (
  check,
  heads_of,
  shapes,
  shapes_of,
)
from geom import config as cfg
from geom.conditions import changed
from geom.probes.continuity import chance_cosine


def load(variant="silu", **changes):
  config = llama.get_config(variant)
  for path, text in changes.items():
    cfg.override(config, path.replace("__", "."), text)
  return config


def count(config):
  leaves = jax.tree.leaves(shapes(**config["model"]))
  return sum(x.size for x in leaves)


def test_the_papers_size_is_34_million():
  config = check(load("paper,silu"))
  assert count(config) == pytest.approx(34e6, rel=0.02)
  model = config["model"]
  assert (model["depth"], model["dtype"]) == (8, "bfloat16")
  assert config["data"]["source"] == "wikitext103"
  small = check(load())
  assert small["model"]["depth"] == 8 and count(small) < 2e6


def test_every_condition_changes_one_thing_of_the_base():
  config = check(load("small"))
  assert list(config["conditions"]) == list(llama.CONDITIONS)
  assert list(load("paper").conditions) == list(llama.CONDITIONS)
  base = changed(config, {})
  for name, change in config["conditions"].items():
    settings = changed(config, change)
    differs = {
      (section, key)
      for section, of in settings.items()
      if isinstance(of, dict)
      for key in of
      if of[key] != base[section][key]
    }
    assert len(differs) == (name != "silu"), name
  drawn = {n for of in continuity_lm_report.TOGETHER.values() for n in of}
  assert drawn == set(llama.CONDITIONS)


def test_chance_is_of_each_projections_own_spaces():
  config = check(load())
  levels = continuity_lm_report.chances(config)
  assert shapes_of(config)["k"] == (8, 128, 64)
  assert heads_of(config) == {"q": 4, "k": 2, "v": 2, "o": 4}
  for key, d in {
    "q/input": 128, "k/output": 64, "down/input": 344, "up/output": 344,
    "q/heads/same_output": 32, "o/heads/pairs_input": 32,
    "o/heads/same_output": 128,
  }.items():  # fmt: skip
    assert levels[key] == pytest.approx(chance_cosine(d)), key
  assert levels["q/heads/best_input"] > levels["k/heads/best_input"]


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    ({"model__heads": "3"}, "3 heads do not divide width 128"),
    ({"model__kv_heads": "3"}, "heads"),
    ({"model__activation": "swish"}, "config.model.activation"),
    ({"probe__k": "1"}, "config.probe.k"),
    ({"spread__k": "65"}, "config.spread.k: 65 is above the least width"),
    ({"claims__group": "1"}, "config.claims.group"),
    ({"optim__warmup_steps": "500"}, "leave nothing of 500 steps"),
    ({"data__train_files": "a.bin,"}, "source=files alone takes it"),
    ({"model__vocabulary": "100"}, "too small for bpe"),
  ],
)
def test_a_mistake_is_one_line(changes, says):
  with pytest.raises(cfg.ConfigError, match=says) as caught:
    check(load(**changes))
  assert len(str(caught.value).splitlines()) == 1


def test_sizes_are_one_for_all_conditions():
  config = load()
  with config.unlocked():
    config.conditions.silu.model = {"hidden": 100}
  with pytest.raises(cfg.ConfigError, match="hidden: is one for"):
    check(config)


def test_a_variant_that_is_none():
  with pytest.raises(ValueError, match="no variant or condition 'sliu'"):
    llama.get_config("sliu")
  with pytest.raises(ValueError, match="several sizes"):
    llama.get_config("small,paper")

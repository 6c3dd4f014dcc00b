"""The rules of the claims on manifolds of modules, and what they are of."""

import pytest

from configs import gpt2, gpt2_tiny
from experiments import module_claims
from geom.conditions import changed
from geom.report import causes

TABLE = gpt2_tiny.get_config("table").to_dict()


def settings_of(config):
  return {
    name: changed(config, change)
    for name, change in config["conditions"].items()
  }


def test_claims_are_told_apart_and_have_a_rule():
  texts = [claim.text for claim in module_claims.CLAIMS]
  assert len(set(texts)) == len(texts)
  for claim in module_claims.CLAIMS:
    assert claim.low is not None or claim.high is not None, claim.text


def test_signals_in_order_are_signals():
  assert set(module_claims.ORDER) <= set(causes.SIGNALS)


def test_every_claim_is_of_a_condition_of_the_table():
  settings = settings_of(TABLE)
  for claim in module_claims.CLAIMS:
    assert module_claims.applies(claim, settings), claim.text


@pytest.mark.parametrize("section, key, value", [
  ("optim", "lr", 0.05), ("train", "num_steps", 1000), ("model", "width", 128),
])  # fmt: skip
def test_other_settings_are_judged_by_the_order_alone(section, key, value):
  settings = settings_of(TABLE)
  for of in settings.values():
    of[section] = {**of[section], key: value}
  judged = [
    claim.text
    for claim in module_claims.CLAIMS
    if module_claims.applies(claim, settings) and "slow" not in claim.text
  ]
  assert len(judged) == 3 and all("ends below" in text for text in judged)


def test_of_other_sizes_and_of_what_was_not_run():
  settings = settings_of(gpt2.get_config("paper").to_dict())
  judged = [
    c for c in module_claims.CLAIMS if module_claims.applies(c, settings)
  ]
  assert len(judged) == 3
  assert not any(module_claims.applies(c, {}) for c in module_claims.CLAIMS)

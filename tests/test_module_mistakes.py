"""What a config of module-wise manifolds may not say, in one line each."""

import pathlib

import pytest

from experiments import module_config
from geom import config as cfg

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"


def checked(reference, *changes):
  config = cfg.load(str(CONFIGS / reference), also=CONFIGS.parent)
  for change in changes:
    cfg.override(config, *change.split("=", 1))
  return module_config.check(config)


@pytest.mark.parametrize(
  "reference", ["gpt2.py:hetero_inv_cap", "gpt2_tiny.py:hetero_inv_cap"]
)
def test_capped_attention_needs_nothing_set(reference):
  config = checked(reference)
  assert config["conditions"]["hetero_inv_cap"]["model"]["logit_cap"] == 30


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    (["data.source=files"], "train_files: source=files needs some"),
    (
      ["data.source=files", "data.train_files=a,"],
      "validation_files: source=files needs some",
    ),
    (["data.train_files=a,"], "train_files: source=files alone takes it"),
    (["data.end_of_text=0"], "end_of_text: source=files alone takes it"),
    (["data.tokenizer=gpt2"], "1024 is too small for gpt2"),
    (
      [
        "data.source=files", "data.train_files=a,", "data.validation_files=a,",
        "data.order=packed",
      ],
      "end_of_text: order=packed needs it",
    ),
    (["probe.every=None"], "every at most 25, the patience; it is None"),
    (["probe.every=26"], "every at most 25, the patience; it is 26"),
  ],
)  # fmt: skip
def test_what_no_data_can_make_right(changes, says):
  with pytest.raises(cfg.ConfigError, match=says) as error:
    checked("gpt2_tiny.py:hetero", *changes)
  assert "\n" not in str(error.value)


def test_without_saturation_probes_may_be_rare():
  checked("gpt2_tiny.py:hetero", "probe.every=None", "watch.saturation=None")

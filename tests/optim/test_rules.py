"""Rules: who has which parameter, and every mistake is one line that helps."""

import pytest

from geom import roles
from geom.optim import rules
from geom.optim.rules import NAMED, Rule, claims, parse

KERNELS = ("attention/qkv", "attention/o", "mlp/up", "mlp/down")
PATHS = (
  "embed/tokens",
  "embed/positions",
  "blocks/attention_norm/scale",
  "blocks/attention/qkv/bias",
  "head/kernel",
  *(f"blocks/{kernel}/kernel" for kernel in KERNELS),
)
ROLES = {path: roles.role_of(path) for path in PATHS}


def manifolds_of(assignment, found=ROLES, every=True):
  has = claims(parse(assignment), found, every=every)
  return {path: rule.manifold for path, rule in has.items()}


def error_of(assignment, found=ROLES):
  with pytest.raises(ValueError) as caught:
    claims(parse(assignment), found, every=True)
  message = str(caught.value)
  assert message and len(message.splitlines()) == 1
  return message


@pytest.mark.parametrize(
  ("name", "attention", "mlp", "decay"),
  [
    ("unconstrained", "euclidean", "euclidean", 0.1),
    ("all_stiefel", "stiefel", "stiefel", None),
    ("all_dgram", "dgram", "dgram", None),
    ("hetero", "stiefel", "dgram", None),
    ("hetero_inv", "dgram", "stiefel", None),
    ("adamw", "adamw", "adamw", None),
  ],
)
def test_the_named_assignments(name, attention, mlp, decay):
  has = claims(parse(name), ROLES, every=False)
  for path, rule in has.items():
    if path in PATHS[:5]:
      assert rule == Rule("*", "adamw")
    else:
      wanted = attention if "attention" in path else mlp
      assert (rule.manifold, rule.weight_decay) == (wanted, decay)


def test_that_is_all_of_them_and_each_ends_with_adamw():
  assert len(NAMED) == 6
  assert all(list(named.items())[-1] == ("*", "adamw") for named in
             NAMED.values())  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_named_ones_take_a_model_without_attention(name):
  found = {
    path: roles.role_of(path)
    for path in ("embed/kernel", "hidden/kernel", "hidden/bias", "head/kernel")
  }
  has = manifolds_of(name, found, every=False)
  mlp = NAMED[name].get("mlp", "adamw")
  wanted = mlp if isinstance(mlp, str) else mlp["manifold"]
  assert has.pop("hidden/kernel") == wanted
  assert set(has.values()) == {"adamw"}


@pytest.mark.parametrize(
  ("pattern", "matched"),
  [
    ("mlp", KERNELS[2:]),
    ("mlp/up", KERNELS[2:3]),
    ("*/o", KERNELS[1:2]),
    ("blocks/mlp/down/kernel", KERNELS[3:]),
    ("blocks/*", KERNELS),
    ("*/[!q]/kernel", KERNELS[1:2]),
    ("m?p", KERNELS[2:]),
  ],
)
def test_a_pattern_is_of_module_projection_or_path(pattern, matched):
  has = manifolds_of({pattern: "oblique", "*": "adamw"})
  got = {path for path, name in has.items() if name == "oblique"}
  assert got == {f"blocks/{kernel}/kernel" for kernel in matched}


def test_the_first_match_wins_and_vectors_and_tables_fall_through():
  has = manifolds_of({"mlp/up": "oblique", "*": "stiefel", "*e*": "adamw"})
  assert has["blocks/mlp/up/kernel"] == "oblique"
  assert has["blocks/mlp/down/kernel"] == has["head/kernel"] == "stiefel"
  for path in PATHS[:4]:
    assert has[path] == "adamw"


def test_a_case_counts():
  assert error_of({"MLP": "dgram", "*": "adamw"}).startswith(
    "rule 'MLP': dgram matches no parameter; there are embed, "
  )


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (
      {"attention": "stiefel", "mlp": "dgram"},
      "no rule claims parameter embed/tokens, embed/positions, "
      "blocks/attention_norm/scale, blocks/attention/qkv/bias, head/kernel; "
      "end with '*': 'adamw'",
    ),
    (
      {"blocks/*": "adamw", "mlp": "dgram", "*": "adamw"},
      "rule 'mlp': dgram claims nothing: blocks/mlp/up/kernel, "
      "blocks/mlp/down/kernel doubly claimed, and earlier by rule 'blocks/*': "
      "adamw; the first match wins",
    ),
    (
      {"*/up": "dgram", "*/down": "stiefel", "mlp": "dgram", "*": "adamw"},
      "earlier by rule '*/up': dgram and '*/down': stiefel;",
    ),
    (
      {"norm": "stiefel", "*": "adamw"},
      "rule 'norm': stiefel matches only blocks/attention_norm/scale: a "
      "manifold takes kernels",
    ),
    (
      {"atention": "stiefel", "*": "adamw"},
      "rule 'atention': stiefel matches no parameter; did you mean attention?",
    ),
    (
      {"mlp/upp": "stiefel", "*": "adamw"},
      "matches no parameter; did you mean mlp/up?",
    ),
    ({}, "an assignment needs rules; there are none"),
  ],
)
def test_rules_that_do_not_fit_the_parameters(given, said):
  assert said in error_of(given)


def test_a_last_star_may_be_left_with_nothing():
  found = {"hidden/kernel": roles.role_of("hidden/kernel")}
  given = {"mlp": "stiefel", "*": "adamw"}
  assert manifolds_of(given, found) == {"hidden/kernel": "stiefel"}
  again = {"*": "adamw", "hidden/*": "adamw"}
  assert "claims nothing" in error_of(again, found)


@pytest.mark.parametrize(
  ("given", "said"),
  [
    ("heterro", "assignment 'heterro' is none of unconstrained, all_stiefel, "),
    ("heterro", "; did you mean hetero?"),
    (
      {"mlp": "steifel"},
      "rule 'mlp': manifold 'steifel' is none of euclidean, stiefel, dgram, "
      "oblique, adamw; did you mean stiefel?",
    ),
    (
      {"mlp": {"manifold": "dgram", "weight_decy": 0.1}},
      "rule 'mlp': option of dgram 'weight_decy' is none of weight_decay, "
      "lr_factor, solver, orientation, fused, shape_scaling, retraction; did "
      "you mean weight_decay?",
    ),
    (
      {"mlp": {"manifold": "stiefel", "retraction": "column"}},
      "option of stiefel 'retraction' is none of",
    ),
    ({"mlp": {"manifold": "dgram", "c": 2}}, "option of dgram 'c' is none of"),
    (
      {"mlp": {"manifold": "adamw", "solver": "auto"}},
      "option of adamw 'solver' is none of weight_decay, lr_factor",
    ),
    ({"mlp": {"weight_decay": 0.1}}, "rule 'mlp': lacks 'manifold', has weigh"),
    ({"mlp": 3}, "rule 'mlp': should be a manifold, adamw, or a mapping"),
    ({3: "dgram"}, "rule 3: a pattern should be text"),
    (
      {"mlp": {"manifold": "stiefel", "weight_decay": 0.1}},
      "rule 'mlp': weight decay 0.1 leaves the manifold stiefel, which is no",
    ),
    (
      {"mlp": {"manifold": "oblique", "weight_decay": 0.1}},
      "leaves the manifold oblique",
    ),
    (
      {"mlp": {"manifold": "dgram", "retraction": "colum"}},
      "rule 'mlp': retraction 'colum' is none of column, procrustes, sorted",
    ),
    (
      {"mlp": {"manifold": "dgram", "retraction": 3}},
      "retraction 3 is no name",
    ),
    (
      {"mlp": {"manifold": "dgram", "solver": "irsl"}},
      "solver 'irsl' is none of auto, irls, irls_clip, dual_ascent, projected; "
      "did you mean irls?",
    ),
    (
      {"mlp": {"manifold": "dgram", "orientation": "out"}},
      "orientation 'out' is none of short, input, output",
    ),
    (
      {"mlp": {"manifold": "dgram", "shape_scaling": 1}},
      "shape_scaling 1 is none of none, width, rms",
    ),
  ],
)
def test_a_mistake_in_a_rule(given, said):
  assert said in error_of(given)


NUMBER = "is no number that is"


@pytest.mark.parametrize(
  ("option", "value", "said"),
  [
    ("weight_decay", -0.1, f"weight_decay -0.1 {NUMBER} at least 0"),
    ("weight_decay", True, f"weight_decay True {NUMBER} at least 0"),
    ("weight_decay", "0.1", f"weight_decay '0.1' {NUMBER} at least 0"),
    ("lr_factor", 0, f"lr_factor 0 {NUMBER} positive"),
    ("lr_factor", float("nan"), f"lr_factor nan {NUMBER} positive"),
    ("lr_factor", float("inf"), f"lr_factor inf {NUMBER} positive"),
    ("fused", 0, "fused 0 is none of split, whole, a number of matrices"),
    ("fused", (), "fused () is none of"),
    ("fused", (3, 0), "fused (3, 0) is none of"),
    ("fused", (3, "a"), "fused (3, 'a') is none of"),
    ("fused", True, "fused True is none of"),
    ("fused", 1.5, "fused 1.5 is none of"),
    ("fused", "splitt", "did you mean split?"),
  ],
)
def test_a_senseless_value(option, value, said):
  given = {"mlp": {"manifold": "euclidean", option: value}}
  assert said in error_of(given)


def test_options_are_kept_and_none_is_no_option():
  given = {
    "manifold": "dgram", "weight_decay": 0, "lr_factor": 2, "solver": None,
    "orientation": "output", "fused": [4, 2], "shape_scaling": "rms",
    "retraction": "procrustes",
  }  # fmt: skip
  (rule,) = parse({"mlp": given})
  assert rule == Rule(
    "mlp", "dgram", 0.0, 2.0, None, "output", (4, 2), "rms", "procrustes"
  )
  (rule,) = parse({"mlp": {"manifold": "stiefel", "c": 2, "weight_decay": 0}})
  assert rule == Rule("mlp", "stiefel", weight_decay=0.0, c=2.0)
  assert "solver" in given  # What was given is left as it was.


def test_make_manifold():
  assert rules.make_manifold("stiefel", c=2.0).name == "stiefel(2)"
  assert rules.make_manifold("dgram", retraction="sorted_svd").lapack
  assert not rules.make_manifold("dgram").lapack
  with pytest.raises(ValueError, match="c = -1"):
    rules.make_manifold("stiefel", c=-1.0)

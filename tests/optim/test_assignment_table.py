"""The rows of an assignment, its table and its fingerprint."""

import jax
import jax.numpy as jnp
import pytest

from geom import record
from geom.optim.assignment import assign
from geom.optim.assignment_table import format_table

LAYERS, WIDTH = 2, 8


def shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.float32)


def gpt(qkv=3 * WIDTH):
  """Shapes of a small network as GPT-2."""
  return {
    "embed": {"tokens": shape(32, WIDTH), "positions": shape(16, WIDTH)},
    "blocks": {
      "attention_norm": {"scale": shape(LAYERS, WIDTH)},
      "attention": {
        "qkv": {"kernel": shape(LAYERS, WIDTH, qkv)},
        "o": {"kernel": shape(LAYERS, WIDTH, WIDTH)},
      },
      "mlp_norm": {"scale": shape(LAYERS, WIDTH)},
      "mlp": {
        "up": {"kernel": shape(LAYERS, WIDTH, 32)},
        "down": {"kernel": shape(LAYERS, 32, WIDTH)},
      },
    },
    "final_norm": {"scale": shape(WIDTH)},
  }


def llama():
  """Shapes of a small network as Llama, without layers of one shape."""
  kernels = {
    "attention": {"q": 8, "k": 4, "v": 4},
    "mlp": {"gate": 20, "up": 20},
  }
  blocks = {
    module: {
      name: {"kernel": shape(LAYERS, WIDTH, n)} for name, n in of.items()
    }
    for module, of in kernels.items()
  }
  blocks["attention"]["o"] = {"kernel": shape(LAYERS, 8, WIDTH)}
  blocks["mlp"]["down"] = {"kernel": shape(LAYERS, 20, WIDTH)}
  return {
    "embed": {"tokens": shape(32, WIDTH)},
    "blocks": blocks | {"mlp_norm": {"scale": shape(LAYERS, WIDTH)}},
    "norm": {"scale": shape(WIDTH)},
    "head": {"kernel": shape(WIDTH, 32)},
  }


def rows_of(params, assignment, **settings):
  table = assign(params, assignment, **settings).table
  return {row.parameter: row for row in table}


def test_the_table_of_a_transformer():
  text = format_table(assign(gpt(), "hetero").table)
  assert text.splitlines() == [
    "parameter                    shape       role             manifold  "
    "matrices    side    solver  decay  rate",
    "blocks/attention/o/kernel    (2, 8, 8)   attention/o      stiefel   "
    "(8, 8)      input   auto    0      lr",
    "blocks/attention/qkv/kernel  (2, 8, 24)  attention/qkv    stiefel   "
    "3 x (8, 8)  input   auto    0      lr",
    "blocks/attention_norm/scale  (2, 8)      norm/norm        adamw     "
    "-           -       -       0      adamw_lr",
    "blocks/mlp/down/kernel       (2, 32, 8)  mlp/down         dgram     "
    "(32, 8)     output  auto    0      lr",
    "blocks/mlp/up/kernel         (2, 8, 32)  mlp/up           dgram     "
    "(8, 32)     input   auto    0      lr",
    "blocks/mlp_norm/scale        (2, 8)      norm/norm        adamw     "
    "-           -       -       0      adamw_lr",
    "embed/positions              (16, 8)     embed/positions  adamw     "
    "-           -       -       0.1    adamw_lr",
    "embed/tokens                 (32, 8)     embed/tokens     adamw     "
    "-           -       -       0.1    adamw_lr",
    "final_norm/scale             (8)         norm/norm        adamw     "
    "-           -       -       0      adamw_lr",
  ]


def test_what_is_not_usual_is_in_the_table():
  given = {
    "attention/qkv": {"manifold": "stiefel", "c": 2, "fused": (8, 16)},
    "attention/o": {
      "manifold": "dgram", "retraction": "sorted_svd", "weight_decay": 0.1,
      "orientation": "output", "lr_factor": 0.5, "shape_scaling": "width",
    },
    "mlp": {"manifold": "euclidean", "solver": "projected", "fused": (2, 2, 4)},
    "*": {"manifold": "adamw", "lr_factor": 2, "weight_decay": 0.3},
  }  # fmt: skip
  params = gpt()
  del params["blocks"]["mlp"]["up"]
  lines = format_table(assign(params, given).table).splitlines()
  cells = [tuple(c for c in line.split("  ") if c) for line in lines]
  cells = {row[0]: tuple(c.strip() for c in row[3:]) for row in cells}
  assert cells["blocks/attention/qkv/kernel"] == (
    "stiefel c=2", "(8, 8) (8, 16)", "input", "auto", "0", "lr",
  )  # fmt: skip
  assert cells["blocks/attention/o/kernel"] == (
    "dgram sorted_svd", "(8, 8)", "output", "auto", "0.1", "0.5 lr, width",
  )  # fmt: skip
  assert cells["blocks/mlp/down/kernel"] == (
    "euclidean", "(32, 2) (32, 2) (32, 4)", "-", "projected", "0", "lr",
  )  # fmt: skip
  assert cells["embed/tokens"][-2:] == ("0.3", "2 adamw_lr")
  assert cells["final_norm/scale"][-2:] == ("0", "2 adamw_lr")


def test_equal_sizes_are_a_number_of_matrices():
  given = {"attention/qkv": {"manifold": "stiefel", "fused": (8, 8, 8)},
           "*": "adamw"}  # fmt: skip
  assert "  3 x (8, 8)  input" in format_table(assign(gpt(), given).table)


def test_fused_kernels():
  qkv, down = "blocks/attention/qkv/kernel", "blocks/mlp/down/kernel"
  assert rows_of(gpt(), "hetero")[qkv].fused == 3
  assert rows_of(gpt(), "hetero")[down].fused is None
  assert rows_of(gpt(), "hetero", fused="whole")[qkv].fused is None
  for fused, found in (("whole", None), (1, None), (2, 2), ((20, 4), (20, 4))):
    given = {"attention": {"manifold": "dgram", "fused": fused}, "*": "adamw"}
    params = gpt()
    del params["blocks"]["attention"]["o"]
    assert rows_of(params, given)[qkv].fused == found


def test_gates_are_split_whatever_their_size():
  params = {"blocks": {"mlp": {"gate_up": {"kernel": shape(LAYERS, 8, 20)}}}}
  (row,) = assign(params, "hetero").table
  assert row.fused == 2


@pytest.mark.parametrize("qkv", [WIDTH + 4, 6 * WIDTH])
def test_fewer_heads_of_keys_must_be_said(qkv):
  with pytest.raises(ValueError, match=r"qkv/kernel'.* is not 3 square matri"):
    assign(gpt(qkv), "hetero")
  assign(gpt(qkv), "adamw")


def test_sizes_that_do_not_fit():
  given = {"attention/qkv": {"manifold": "dgram", "fused": 5}, "*": "adamw"}
  with pytest.raises(ValueError, match="axis of 24 is not 5 fused matrices"):
    assign(gpt(), given)


def test_every_parameter_of_a_llama_has_a_row():
  rows = rows_of(llama(), "hetero")
  manifolds = {row.role: row.manifold for row in rows.values()}
  assert manifolds == {
    "attention/q": "stiefel", "attention/k": "stiefel",
    "attention/v": "stiefel", "attention/o": "stiefel", "mlp/gate": "dgram",
    "mlp/up": "dgram", "mlp/down": "dgram", "norm/norm": "adamw",
    "embed/tokens": "adamw", "head/head": "adamw",
  }  # fmt: skip
  assert rows["head/kernel"].weight_decay == 0.1


def test_faithful():
  rows = rows_of(gpt(), "hetero", faithful=True)
  for name in ("attention/qkv", "attention/o", "mlp/up", "mlp/down"):
    row = rows[f"blocks/{name}/kernel"]
    assert (row.solver, row.orientation) == ("dual_ascent", "short")
    assert row.fused is None
    dgram = "sorted_svd" if name.startswith("mlp") else None
    assert row.retraction == dgram
  other = {"mlp": {"manifold": "dgram", "retraction": "column",
                   "solver": "irls"}, "*": "adamw"}  # fmt: skip
  row = rows_of(gpt(), other, faithful=True)["blocks/mlp/up/kernel"]
  assert (row.retraction, row.solver) == ("column", "irls")


@pytest.mark.parametrize(
  "setting", [{"solver": "irls"}, {"orientation": "input"}, {"fused": "whole"}]
)
def test_faithful_leaves_no_choice(setting):
  with pytest.raises(ValueError, match="faithful chooses solver, orientat"):
    assign(gpt(), "hetero", faithful=True, **setting)


@pytest.mark.parametrize(
  ("setting", "said"),
  [
    ({"solver": "atuo"}, "^solver 'atuo' is none .*; did you mean auto"),
    ({"orientation": "inputs"}, "^orientation 'inputs' is none"),
    ({"fused": "no"}, "^fused 'no' is none"),
  ],
)
def test_a_setting_of_all(setting, said):
  with pytest.raises(ValueError, match=said):
    assign(gpt(), "hetero", **setting)


def test_a_parameter_without_a_role():
  params = gpt() | {"router": {"kernel": shape(3, 3)}}
  with pytest.raises(ValueError, match=r"^no role for parameter .router/kern"):
    assign(params, "hetero")
  with pytest.raises(ValueError, match="no parameters"):
    assign({"router": {"kernel": None}}, "hetero")


def differing(a, b):
  plain = [record.plain(x.fingerprint) for x in (a, b)]
  assert plain == [x.fingerprint for x in (a, b)]  # JSON has no more.
  return record.differing(*plain, "run.assignment")


def test_the_fingerprint_names_what_changed():
  hetero = assign(gpt(), "hetero")
  assert differing(hetero, assign(gpt(), "hetero", lr=0.02, clip=1.0)) == []
  assert differing(hetero, assign(gpt(), "all_stiefel")) == [
    f"run.assignment.blocks/mlp/{name}/kernel.{what}"
    for name in ("down", "up")
    for what in ("manifold ('dgram' there, 'stiefel' now)", "retraction")
  ]
  # The same in other words.
  given = {"mlp/*": {"manifold": "dgram", "weight_decay": 0},
           "blocks/*": "stiefel", "*": "adamw"}  # fmt: skip
  assert differing(hetero, assign(gpt(), given)) == []


@pytest.mark.parametrize(
  ("setting", "parameters", "key"),
  [
    ({"lr": 0.1}, 4, "lr (0.02 there, 0.1 now)"),
    ({"lr": lambda count: 0.1}, 4, "lr (0.02 there, 'schedule' now)"),
    ({"momentum": 0.9}, 4, "momentum (0.95 there, 0.9 now)"),
    ({"nesterov": False}, 4, "nesterov (True there, False now)"),
    ({"solver": "irls"}, 4, "solver ('auto' there, 'irls' now)"),
    ({"orientation": "output"}, 4, "orientation ('short' there, 'output' now)"),
    ({"fused": "whole"}, 1, "fused"),
    ({"adamw_lr": 0.1}, 5, "lr (0.0006 there, 0.1 now)"),
    ({"adamw_betas": (0.9, 0.9)}, 5, "betas ([0.9, 0.95] there, [0.9, 0.9] no"),
    ({"adamw_weight_decay": 0.0}, 2, "weight_decay (0.1 there, 0.0 now)"),
    ({"clip": None}, 9, "clip (1.0 there, None now)"),
  ],
)
def test_every_setting_is_in_it(setting, parameters, key):
  found = differing(assign(gpt(), "hetero"), assign(gpt(), "hetero", **setting))
  assert len(found) == parameters
  assert all(f".{key}" in entry for entry in found)

"""geom.roles: every parameter has a role, and the stacks are found by it."""

import jax
import jax.numpy as jnp
import pytest

from geom import roles
from geom.models.resmlp import NORMS, resmlp
from geom.roles import Role

WIDTH, DEPTH = 4, 3


def params_of(norm="layernorm", bias=True):
  model = resmlp(
    width=WIDTH,
    depth=DEPTH,
    activation="relu",
    radius=1.0,
    residual=True,
    form="post",
    norm=norm,
    bias=bias,
    init="he",
    gain=1.0,
    inputs=5,
    outputs=2,
  )
  return jax.eval_shape(model.init, jax.random.key(0))


# module, projection, reads and writes the stream, nonlinearity, axes.
STREAM, LAYERS = ("in", "out"), ("layer", "in", "out")
NORM = Role("norm", "norm", True, False, False, ("layer", "in"))
ROLES = {
  "embed/kernel": Role("embed", "embed", False, True, False, STREAM),
  "embed/bias": Role("embed", "bias", False, True, False, ("out",)),
  "hidden/kernel": Role("mlp", "hidden", True, True, True, LAYERS),
  "hidden/bias": Role("mlp", "hidden", False, True, True, ("layer", "out")),
  "hidden/norm/scale": NORM,
  "hidden/norm/bias": NORM,
  "head/kernel": Role("head", "head", True, False, False, STREAM),
  "head/bias": Role("head", "bias", False, False, False, ("out",)),
}


@pytest.mark.parametrize("path", ROLES)
def test_roles_of_the_residual_mlp(path):
  assert roles.role_of(path) == ROLES[path]


def test_that_is_all_there_is_in_a_residual_mlp():
  assert set(roles.paths(params_of())) == set(ROLES)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_has_a_role_and_a_name_for_each_axis(norm, bias):
  for path, x in roles.paths(params_of(norm, bias)).items():
    role = roles.role_of(path)
    assert len(role.axes) == x.ndim
    sizes = dict(zip(role.axes, x.shape, strict=True))
    assert sizes.get("layer", DEPTH) == DEPTH
    if role.reads_residual:
      assert sizes["in"] == WIDTH
    if role.writes_residual:
      assert sizes["out"] == WIDTH


# Kernels of the blocks of transformers, and several maps in one.
BLOCKS = {
  "attention/qkv": Role("attention", "qkv", True, False, False, LAYERS, 3),
  "attention/q": Role("attention", "q", True, False, False, LAYERS),
  "attention/k": Role("attention", "k", True, False, False, LAYERS),
  "attention/v": Role("attention", "v", True, False, False, LAYERS),
  "attention/o": Role("attention", "o", False, True, False, LAYERS),
  "mlp/up": Role("mlp", "up", True, False, True, LAYERS),
  "mlp/gate": Role("mlp", "gate", True, False, True, LAYERS),
  "mlp/gate_up": Role("mlp", "gate_up", True, False, True, LAYERS, 2),
  "mlp/down": Role("mlp", "down", False, True, False, LAYERS),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_roles_in_the_blocks_of_a_transformer(name):
  assert roles.role_of(f"blocks/{name}/kernel") == BLOCKS[name]
  bias = BLOCKS[name]._replace(axes=("layer", "out"))
  assert roles.role_of(f"blocks/{name}/bias") == bias


@pytest.mark.parametrize(
  ("path", "role"),
  [
    ("embed/tokens", Role("embed", "tokens", False, True, False,
                          ("token", "out"))),
    ("embed/positions", Role("embed", "positions", False, True, False,
                             ("position", "out"))),
    ("blocks/attention_norm/scale", NORM),
    ("blocks/norm2/bias", NORM),
    ("blocks/attention/q_norm/scale",
     Role("norm", "head_norm", False, False, False, ("layer", "in"))),
    ("final_norm/scale", NORM._replace(axes=("in",))),
    ("norm/bias", NORM._replace(axes=("in",))),
  ],
)  # fmt: skip
def test_roles_around_them(path, role):
  assert roles.role_of(path) == role


@pytest.mark.parametrize(
  ("path", "is_kernel", "is_matrix"),
  [
    ("hidden/kernel", True, True),
    ("head/kernel", True, True),
    ("embed/tokens", False, True),
    ("embed/positions", False, True),
    ("hidden/bias", False, False),
    ("head/bias", False, False),
    ("final_norm/scale", False, False),
    ("blocks/attention/qkv/bias", False, False),
  ],
)
def test_kernels_and_matrices(path, is_kernel, is_matrix):
  role = roles.role_of(path)
  assert (role.is_kernel, role.is_matrix) == (is_kernel, is_matrix)


def test_stacks_of_a_transformer_are_its_kernels_by_projection():
  params = {"embed": {"tokens": 0}, "final_norm": {"scale": 1}}
  params["blocks"] = {
    "attention": {name: {"kernel": name} for name in ("qkv", "o")},
    "mlp": {name: {"kernel": name, "bias": 0} for name in ("up", "down")},
    "mlp_norm": {"scale": 0},
  }
  names = ("qkv", "o", "up", "down")
  assert roles.stacks(params) == {name: name for name in names}


def test_paths_lists_leaves_by_path():
  tree = {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
  assert roles.paths(tree) == {"a/b/c": 1, "a/d": 2, "e": 3}


@pytest.mark.parametrize(
  "path",
  [
    "hidden/gate",
    "",
    "my/hidden/kernel",
    "hidden/kernel/ema",
    "hidden/norm",
    "blocks/attention/kernel",
    "blocks/mlp/o/kernel",
    "blocks/norm/kernel",
    "attention/q/kernel",
    "other/final_norm/scale",
  ],
)
def test_an_unknown_path_is_named(path):
  with pytest.raises(KeyError, match=f"no role for parameter '{path}'"):
    roles.role_of(path)


def test_the_first_match_decides(monkeypatch):
  first, second = ROLES["embed/kernel"], ROLES["head/kernel"]
  table = {r"a/\d": first, r"a/.": second}
  monkeypatch.setattr(roles, "TABLE", table)
  assert roles.role_of("a/1") is first
  assert roles.role_of("a/x") is second


def test_stacks_are_the_hidden_kernels_only():
  params = params_of()
  stacks = roles.stacks(params)
  assert list(stacks) == ["hidden"]
  assert stacks["hidden"] is params["hidden"]["kernel"]
  assert stacks["hidden"].shape == (DEPTH, WIDTH, WIDTH)


def test_stacks_of_gradients():
  kernel = jnp.ones((DEPTH, WIDTH, WIDTH))
  params = {"hidden": {"kernel": kernel}, "head": {"kernel": kernel[0]}}
  grads = jax.grad(lambda p: jnp.sum(p["hidden"]["kernel"] ** 3))(params)
  stacks = roles.stacks(grads)
  assert list(stacks) == ["hidden"]
  assert jnp.array_equal(stacks["hidden"], 3 * kernel)


def test_stacks_refuse_a_parameter_without_a_role():
  params = params_of()
  params["hidden"]["gate"] = jnp.ones(2)
  with pytest.raises(KeyError, match="'hidden/gate'"):
    roles.stacks(params)


@pytest.mark.parametrize(
  ("axes", "is_stack"),
  [
    (("layer", "in", "out"), True),
    (("layer", "out"), False),
    (("in", "out"), False),
    (("head", "in", "out"), False),
    (("layer", "head", "in", "out"), False),
  ],
)
def test_a_stack_has_layers_first_and_two_axes_more(axes, is_stack):
  assert ROLES["hidden/kernel"]._replace(axes=axes).is_stack is is_stack

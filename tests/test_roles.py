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


def test_paths_lists_leaves_by_path():
  tree = {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
  assert roles.paths(tree) == {"a/b/c": 1, "a/d": 2, "e": 3}


@pytest.mark.parametrize(
  "path",
  ["hidden/gate", "", "my/hidden/kernel", "hidden/kernel/ema", "hidden/norm"],
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

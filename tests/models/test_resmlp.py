"""geom.models.resmlp against a forward pass in numpy, and its symmetries."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import roles
from geom.models.resmlp import FORMS, INITS, NORMS, resmlp

WIDTH, DEPTH, INPUTS, OUTPUTS = 6, 3, 5, 4
OPTIONS = {
  "width": WIDTH,
  "depth": DEPTH,
  "activation": "relu",
  "radius": 2.0,
  "residual": True,
  "form": "post",
  "norm": "none",
  "bias": False,
  "init": "he",
  "gain": 1.0,
  "inputs": INPUTS,
  "outputs": OUTPUTS,
}

FUNCTIONS = {
  "relu": lambda x: np.maximum(x, 0),
  "silu": lambda x: x / (1 + np.exp(-x)),
  "identity": lambda x: x,
  "radial": lambda x: (
    x * np.tanh(np.linalg.norm(x, axis=-1, keepdims=True) / 2)
  ),
}


def model_of(**changes):
  return resmlp(**{**OPTIONS, **changes})


def examples(*shape, seed=0):
  x = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(x, jnp.float32)


def drawn(model, seed=1):
  """Parameters of the model's shapes, none of them at its initial value."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree.map(
    lambda x: jnp.asarray(0.6 * rng.standard_normal(x.shape), x.dtype), shapes
  )


def run(model, params, x):
  """Op by op: a model that is run once is not worth its compilation."""
  with jax.disable_jit():
    return model.apply(params, x)


def forward(params, x, *, activation, residual, form, norm, **_):
  """Logits and taps in float64, layer by layer."""
  params = {k: np.asarray(v, float) for k, v in roles.paths(params).items()}
  act = FUNCTIONS[activation]

  def normalise(h, layer):
    if norm == "none":
      return h
    if norm == "rmsnorm":
      return h / np.sqrt(np.mean(h * h, -1, keepdims=True) + 1e-6)
    n = h - h.mean(-1, keepdims=True)
    n = n / np.sqrt(np.mean(n * n, -1, keepdims=True) + 1e-6)
    if norm == "layernorm":
      n = n * params["hidden/norm/scale"][layer]
      n = n + params["hidden/norm/bias"][layer]
    return n

  h = np.asarray(x, float) @ params["embed/kernel"]
  h = h + params.get("embed/bias", 0)
  stream_rms, preact_norm = [], []
  for layer, kernel in enumerate(params["hidden/kernel"]):
    b = params["hidden/bias"][layer] if "hidden/bias" in params else 0
    n = normalise(h, layer)
    given = n if form == "pre" else n @ kernel + b
    if form == "outer" and residual:
      given = given + h
    stream_rms.append(np.sqrt(np.mean(h**2)))
    preact_norm.append(np.linalg.norm(given, axis=-1).mean())
    new = act(given) @ kernel + b if form == "pre" else act(given)
    h = h + new if residual and form != "outer" else new
  logits = h @ params["head/kernel"] + params.get("head/bias", 0)
  return logits, {"stream_rms": stream_rms, "preact_norm": preact_norm}


CASES = [
  (*case, activation)
  for case, activation in zip(
    itertools.product(FORMS, [True, False], NORMS, [True, False]),
    itertools.cycle(["relu", "silu", "radial"]),
    strict=False,
  )
]


@pytest.mark.parametrize(
  ("form", "residual", "norm", "bias", "activation"), CASES
)
def test_forward_and_taps_are_those_of_numpy(
  form, residual, norm, bias, activation
):
  options = {
    "form": form,
    "residual": residual,
    "norm": norm,
    "bias": bias,
    "activation": activation,
  }
  model = model_of(**options)
  params, x = drawn(model), examples(7, INPUTS)
  logits, taps = run(model, params, x)
  wanted, wanted_taps = forward(params, x, **options)
  assert logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, wanted, rtol=2e-4, atol=2e-5)
  assert set(taps) == set(wanted_taps)
  for name, value in taps.items():
    np.testing.assert_allclose(value, wanted_taps[name], rtol=1e-4)


@pytest.mark.parametrize("shape", [(INPUTS,), (2, 3, INPUTS)])
def test_any_batch_axes(shape):
  options = {"form": "post", "residual": True, "norm": "layernorm"}
  options |= {"activation": "silu", "bias": True}
  model = model_of(**options)
  params, x = drawn(model), examples(*shape)
  logits, taps = jax.jit(model.apply)(params, x)
  wanted, wanted_taps = forward(params, x, **options)
  assert logits.shape == (*shape[:-1], OUTPUTS)
  np.testing.assert_allclose(logits, wanted, rtol=2e-4, atol=2e-5)
  for name, value in taps.items():
    assert value.shape == (DEPTH,)
    np.testing.assert_allclose(value, wanted_taps[name], rtol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_parameters(norm, bias):
  wanted = {
    "embed/kernel": (INPUTS, WIDTH),
    "hidden/kernel": (DEPTH, WIDTH, WIDTH),
    "head/kernel": (WIDTH, OUTPUTS),
  }
  if bias:
    wanted |= {
      "embed/bias": (WIDTH,),
      "hidden/bias": (DEPTH, WIDTH),
      "head/bias": (OUTPUTS,),
    }
  if norm == "layernorm":
    wanted |= {
      "hidden/norm/scale": (DEPTH, WIDTH),
      "hidden/norm/bias": (DEPTH, WIDTH),
    }
  init = model_of(norm=norm, bias=bias).init
  params = jax.eval_shape(init, jax.random.key(0))
  assert type(params) is dict and type(params["hidden"]) is dict
  leaves = roles.paths(params)
  assert {path: x.shape for path, x in leaves.items()} == wanted
  assert {x.dtype for x in leaves.values()} == {jnp.dtype(jnp.float32)}


def test_examples_are_images_and_digits_unless_said():
  options = {k: v for k, v in OPTIONS.items() if k not in ("inputs", "outputs")}
  params = jax.eval_shape(resmlp(**options).init, jax.random.key(0))
  assert params["embed"]["kernel"].shape == (784, WIDTH)
  assert params["head"]["kernel"].shape == (WIDTH, 10)


@functools.cache
def compiled_init(**changes):
  big = {"width": 128, "inputs": 500, "outputs": 60}
  return jax.jit(model_of(**{**big, **changes}).init)


def initial(seed=0, **changes):
  return roles.paths(compiled_init(**changes)(jax.random.key(seed)))


def assert_uniform(kernel, deviation):
  """Entries uniform in +- sqrt(3) standard deviations."""
  bound = np.sqrt(3) * deviation
  np.testing.assert_allclose(np.std(kernel), deviation, rtol=0.03)
  assert 0.98 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
  assert abs(np.mean(kernel)) < 0.03 * deviation


@pytest.mark.parametrize(
  ("init", "gain", "variance"),
  [("scaled", 0.3, 0.09 / 128), ("he", 0.3, 2 / 128)],
)
def test_initial_kernels(init, gain, variance):
  params = initial(init=init, gain=gain)
  for kernel in params["hidden/kernel"]:
    assert_uniform(kernel, np.sqrt(variance))
  assert_uniform(params["embed/kernel"], 1 / np.sqrt(500))
  assert_uniform(params["head/kernel"], 1 / np.sqrt(128))


def test_a_gain_of_zero_starts_at_zero():
  hidden = initial(init="scaled", gain=0.0, width=2)["hidden/kernel"]
  np.testing.assert_array_equal(hidden, 0)


def test_biases_start_at_zero_and_scales_at_one():
  for path, x in initial(norm="layernorm", bias=True, width=2).items():
    if "kernel" not in path:
      np.testing.assert_array_equal(x, "scale" in path)


def test_layers_and_keys_are_independent():
  first, again, other = (
    initial(seed, init="he", gain=0.3)["hidden/kernel"] for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  flat = np.stack([*first, *other]).reshape(2 * DEPTH, -1)
  correlation = np.corrcoef(flat) - np.eye(2 * DEPTH)
  assert np.abs(correlation).max() < 0.05


@pytest.mark.parametrize(
  ("option", "names"),
  [
    ("form", FORMS),
    ("norm", NORMS),
    ("init", INITS),
    ("activation", ("relu",)),
  ],
)
def test_an_unknown_name_is_named(option, names):
  with pytest.raises(ValueError, match="'sideways' is none of .*" + names[-1]):
    model_of(**{option: "sideways"})


def rotation(seed=2):
  rng = np.random.default_rng(seed)
  q, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
  return jnp.asarray(q, jnp.float32)


def change_under_rotation(**options):
  """Largest change of a logit when the stream is h R where it was h."""
  model, r = model_of(**options), rotation()
  params, x = drawn(model), examples(8, INPUTS)
  turned = {
    "embed": {"kernel": params["embed"]["kernel"] @ r},
    "hidden": {
      "kernel": jnp.stack([r.T @ k @ r for k in params["hidden"]["kernel"]])
    },
    "head": {"kernel": r.T @ params["head"]["kernel"]},
  }
  change = run(model, turned, x)[0] - run(model, params, x)[0]
  return float(jnp.abs(change).max())


EQUIVARIANT = list(
  itertools.product(["identity", "radial"], ["none", "rmsnorm"])
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("activation", "norm"), EQUIVARIANT)
def test_rotating_the_stream_changes_nothing(form, residual, activation, norm):
  options = {"form": form, "residual": residual, "norm": norm}
  assert change_under_rotation(activation=activation, **options) < 1e-4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
  ("activation", "norm"),
  [("relu", "none"), ("gelu", "none"), ("silu", "rmsnorm")],
)
def test_rotation_shows_in_an_elementwise_activation(form, activation, norm):
  options = {"form": form, "activation": activation, "norm": norm}
  assert change_under_rotation(**options) > 1e-2


@pytest.mark.parametrize(
  ("norm", "commutes"),
  [
    ("none", True),
    ("rmsnorm", True),
    ("layernorm", False),
    ("layernorm_free", False),
  ],
)
def test_which_norms_commute_with_rotations(norm, commutes):
  """Of one layer without activation all that is left is its norm."""
  model = model_of(
    activation="identity",
    residual=False,
    norm=norm,
    depth=1,
    inputs=WIDTH,
    outputs=WIDTH,
  )
  eye = jnp.eye(WIDTH)
  params = {"embed": eye, "hidden": eye[None], "head": eye}
  params = {name: {"kernel": kernel} for name, kernel in params.items()}
  if norm == "layernorm":
    ones = jnp.ones((1, WIDTH))
    params["hidden"]["norm"] = {"scale": ones, "bias": 0 * ones}
  x, r = examples(4, WIDTH) + 1, rotation()
  error = run(model, params, x @ r)[0] - run(model, params, x)[0] @ r
  error = jnp.abs(error).max()
  assert error < 1e-5 if commutes else error > 0.1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_logits_depend_on_their_own_example_only(form, norm):
  model = model_of(form=form, norm=norm, activation="silu")
  params = drawn(model)
  logits = jax.jacrev(lambda x: run(model, params, x)[0])
  jacobian = np.abs(logits(examples(3, INPUTS))).sum((1, 3))
  np.testing.assert_array_equal(jacobian > 0, np.eye(3, dtype=bool))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("residual", [True, False])
def test_every_parameter_has_a_gradient(form, residual):
  model = model_of(
    form=form,
    residual=residual,
    norm="layernorm",
    bias=True,
    activation="silu",
  )
  x = examples(3, INPUTS)
  grad_of = jax.grad(lambda params: jnp.std(run(model, params, x)[0]))
  for path, grad in roles.paths(grad_of(drawn(model))).items():
    layers = grad if path.startswith("hidden") else [grad]
    for layer in layers:
      assert np.linalg.norm(layer) > 1e-5, path

"""The residual MLP of arXiv 2605.04971: one square kernel a layer."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.models.activations import Activation
from geom.models.activations import activation as activation_of
from geom.models.base import Model, Params, Taps

FORMS = ("post", "outer", "pre")
NORMS = ("none", "layernorm", "layernorm_free", "rmsnorm")
INITS = ("scaled", "he")


def resmlp(
  *,
  width: int,
  depth: int,
  activation: str = "relu",
  radius: float = 1.0,
  residual: bool = True,
  form: str = "post",
  norm: str = "none",
  bias: bool = False,
  init: str = "scaled",
  gain: float = 0.1,
  inputs: int = 784,
  outputs: int = 10,
) -> Model:
  """A residual MLP: embed, `depth` hidden layers under a scan, head.

  With `n = norm(h)` a hidden layer of kernel K, bias b maps the stream h to

  | form    | residual            | not residual   |
  | ------- | ------------------- | -------------- |
  | `post`  | h + act(n @ K + b)  | act(n @ K + b) |
  | `outer` | act(h + n @ K + b)  | act(n @ K + b) |
  | `pre`   | h + act(n) @ K + b  | act(n) @ K + b |

  Args:
    width: width of the residual stream.
    depth: number of hidden layers L; their kernels are one array
      `(L, width, width)`, `hidden/kernel`.
    activation: a name of `geom.models.activations.NAMES`.
    radius: of the radial activation, in units of the stream's norm.
    residual: whether h is added.
    form: a name of `FORMS`.
    norm: a name of `NORMS`; `layernorm_free` and `rmsnorm` have no
      parameters, so that `rmsnorm` commutes with rotations.
    bias: whether embed, hidden layers and head have biases (at 0 first).
    init: of hidden kernels. `scaled`: uniform with standard deviation
      `gain / sqrt(width)`; `he`: uniform with `sqrt(2 / width)`. Embed and
      head: uniform with `1 / sqrt(fan_in)`.
    gain: for `scaled`; `he` does not read it.
    inputs: numbers in an example.
    outputs: classes.

  Returns:
    A Model: `apply(params, x)` takes x of shape `(*b, inputs)` and returns
    logits `(*b, outputs)` and the taps `stream_rms` `(L,)`, the rms entry of
    the stream that each hidden layer reads, and `preact_norm` `(L,)`, the
    mean over examples of the Euclidean norm of what the activation is given.

  Raises:
    ValueError: a name is unknown.
  """
  for value, allowed in ((form, FORMS), (norm, NORMS), (init, INITS)):
    if value not in allowed:
      raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
  module = _ResMLP(
    width=width,
    depth=depth,
    act=activation_of(activation, radius),
    residual=residual,
    form=form,
    norm=norm,
    bias=bias,
    scale=2.0 if init == "he" else gain**2,
    outputs=outputs,
  )

  def init_params(key: Any) -> Params:
    return module.init(key, jnp.zeros((1, inputs)))["params"]

  def apply(
    params: Params, x: Float[Array, "*b inputs"]
  ) -> tuple[Float[Array, "*b outputs"], Taps]:
    return module.apply({"params": params}, x)

  return Model(init_params, apply)


def _uniform(scale: float) -> nn.initializers.Initializer:
  """Uniform of variance `scale / fan_in`."""
  return nn.initializers.variance_scaling(scale, "fan_in", "uniform")


class _Layer(nn.Module):
  """One hidden layer, in the form that `nn.scan` wants."""

  width: int
  act: Activation
  residual: bool
  form: str
  norm: str
  bias: bool
  scale: float

  @nn.compact
  def __call__(
    self, h: Float[Array, "*b d"], _: None
  ) -> tuple[Float[Array, "*b d"], Taps]:
    kernel = self.param(
      "kernel", _uniform(self.scale), (self.width, self.width)
    )
    b = (
      self.param("bias", nn.initializers.zeros, (self.width,))
      if self.bias
      else jnp.zeros(self.width)
    )
    shift = jnp.expand_dims(b, tuple(range(h.ndim - 1)))
    n = self.normalise(h)
    skip = h if self.residual else jnp.zeros_like(h)
    if self.form == "post":
      z = n @ kernel + shift
      out = skip + self.act(z)
    elif self.form == "outer":
      z = skip + n @ kernel + shift
      out = self.act(z)
    else:
      z = n
      out = skip + self.act(z) @ kernel + shift
    taps = {
      "stream_rms": jnp.sqrt(jnp.mean(h * h)),
      "preact_norm": jnp.mean(jnp.linalg.norm(z, axis=-1)),
    }
    return out, taps

  def normalise(self, h: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    if self.norm == "none":
      return h
    if self.norm == "rmsnorm":
      return nn.RMSNorm(use_scale=False, name="norm")(h)
    free = self.norm == "layernorm_free"
    return nn.LayerNorm(use_bias=not free, use_scale=not free, name="norm")(h)


class _ResMLP(nn.Module):
  width: int
  depth: int
  act: Activation
  residual: bool
  form: str
  norm: str
  bias: bool
  scale: float
  outputs: int

  @nn.compact
  def __call__(
    self, x: Float[Array, "*b i"]
  ) -> tuple[Float[Array, "*b o"], Taps]:
    def dense(features: int, name: str) -> nn.Dense:
      return nn.Dense(
        features, use_bias=self.bias, kernel_init=_uniform(1.0), name=name
      )

    layers = nn.scan(
      _Layer,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      length=self.depth,
    )
    h = dense(self.width, "embed")(x)
    h, taps = layers(
      width=self.width,
      act=self.act,
      residual=self.residual,
      form=self.form,
      norm=self.norm,
      bias=self.bias,
      scale=self.scale,
      name="hidden",
    )(h, None)
    return dense(self.outputs, "head")(h), taps

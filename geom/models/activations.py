"""Activations, by the name a config gives them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activation = Callable[[Float[Array, "*b d"]], Float[Array, "*b d"]]


def identity(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
  """No activation: commutes with every linear map."""
  return x


def radial(radius: float) -> Activation:
  """`x tanh(||x|| / radius)`: nonlinear, yet it commutes with rotations.

  arXiv 2605.04971 uses radius 1. The factor is curved only while ||x|| is of
  the order of the radius: above three radii it is 1 within 0.5 %, and the
  activation is nearly the identity. At x = 0 the value and the Jacobian are 0.
  """

  def activation(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    # sqrt has no derivative at 0: keep the gradient away from it there.
    norm = jnp.sqrt(jnp.where(square > 0, square, 1))
    return x * jnp.where(square > 0, jnp.tanh(norm / radius), 0)

  return activation


ELEMENTWISE: dict[str, Activation] = {
  "relu": jax.nn.relu,
  "gelu": jax.nn.gelu,
  "silu": jax.nn.silu,
}

NAMES = (*ELEMENTWISE, "identity", "radial")


def activation(name: str, radius: float) -> Activation:
  """The activation of that name; `radius` is read by `radial` only.

  Raises:
    ValueError: no activation has that name.
  """
  table = {**ELEMENTWISE, "identity": identity, "radial": radial(radius)}
  if name not in table:
    raise ValueError(f"activation {name!r} is none of {', '.join(table)}")
  return table[name]

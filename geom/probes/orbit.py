"""The SO(d) mechanism itself: does a network care how its frame is turned?

Turning the residual stream of a network by a rotation R, x -> x R, with every
parameter turned along (what writes the stream becomes K R, what reads it
R.T K), leaves a linear or rotation-equivariant network as it was: its loss is
flat along that orbit, and training is free to drift along it. An elementwise
activation or a LayerNorm is tied to the axes, and the loss changes: the frame
is fixed. Without residual connections one layer's frame can be turned alone
and made good by the next layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom import roles
from geom.linalg import matmul

Params = Any  # A tree of parameters with roles (`geom.roles`).


def generator(key: Array, d: int) -> Float[Array, "d d"]:
  """A random antisymmetric matrix whose largest angle speed is about 1.

  Entries are Gaussian of variance 1 / (4 d), so that the eigenvalues, pairs
  of +-i theta, have |theta| <= 1 up to a few per cent.
  """
  a = jax.random.normal(key, (d, d)) / jnp.sqrt(8.0 * d)
  return a - a.T


def rotation(
  generator: Float[Array, "d d"], angle: Float[Array, ""] | float
) -> Float[Array, "d d"]:
  """`exp(angle A)`: every plane turns by at most about `angle` radians."""
  return jax.scipy.linalg.expm(angle * generator)


def turn_stream(params: Params, r: Float[Array, "d d"]) -> Params:
  """The network with its stream turned by r everywhere.

  Biases that write the stream are turned with it; the scale of a norm is tied
  to the axes and stays.

  Args:
    params: a tree whose leaves have roles.
    r: a rotation of the residual stream.

  Raises:
    KeyError: a parameter has no role.
  """

  def turned(role: roles.Role, x: Array) -> Array:
    if _is_read(role):
      x = _before(r.T, x)
    return _after(x, r) if role.writes_residual else x

  return roles.map_with_role(turned, params)


def turn_between(
  hidden: Float[Array, "layer d d"], layer: int, r: Float[Array, "d d"]
) -> Float[Array, "layer d d"]:
  """The output of one layer turned, and turned back at the next one's input.

  Only without residual connections is this the same linear network.

  Raises:
    ValueError: the layer is the last, which has no next one.
  """
  if not 0 <= layer < hidden.shape[0] - 1:
    raise ValueError(f"layer {layer} of {hidden.shape[0]} has no next one")
  out = matmul(hidden[layer], r)
  following = matmul(r.T, hidden[layer + 1])
  return hidden.at[layer].set(out).at[layer + 1].set(following)


def drift_share(
  params: Params, step: Params, d: int, iterations: int = 20
) -> Float[Array, ""]:
  """The share of a displacement that lies along the orbit of the stream.

  The tangents of the orbit are the derivatives of `turn_stream` at the
  identity: for antisymmetric A, `K A` where the stream is written and `-A K`
  where it is read. The displacement is projected on them by conjugate
  gradient on the normal equations; the share is
  `||projection||^2 / ||step||^2`. Gradient descent on a loss that is flat
  along the orbit has a share of 0.

  Args:
    params: before the step.
    step: the displacement, a tree like params.
    d: dimension of the stream.
    iterations: of conjugate gradient; 20 are within 1e-3 of the limit for
      spectra as training makes them.

  Returns:
    In [0, 1]; NaN for a zero step, or parameters of zero. Chance: see
    `chance_share`.

  Raises:
    KeyError: a parameter has no role.
  """
  # The share depends on the scale of neither.
  params, size = _scaled(params)
  unit, largest = _scaled(step)

  def tangent(a: Float[Array, "d d"]) -> Params:
    def moved(role: roles.Role, x: Array) -> Array:
      out = _after(x, a) if role.writes_residual else jnp.zeros_like(x)
      return out - _before(a, x) if _is_read(role) else out

    return roles.map_with_role(moved, params)

  transpose = jax.linear_transpose(tangent, jnp.zeros((d, d)))

  def adjoint(t: Params) -> Float[Array, "d d"]:
    (g,) = transpose(t)
    return (g - g.T) / 2

  a, _ = jax.scipy.sparse.linalg.cg(
    lambda a: adjoint(tangent(a)), adjoint(unit), tol=1e-6, maxiter=iterations
  )
  defined = (largest > 0) & (size > 0)
  return jnp.where(defined, _square(tangent(a)) / _square(unit), jnp.nan)


def chance_share(d: int, size: int) -> float:
  """Mean `drift_share` of a random displacement of `size` numbers."""
  return d * (d - 1) / 2 / size


def _is_read(role: roles.Role) -> bool:
  """Whether it is a kernel whose input space is the stream."""
  return role.reads_residual and role.axes[-2:] == ("in", "out")


def _scaled(tree: Params) -> tuple[Params, Float[Array, ""]]:
  """A tree with largest entry 1, and that entry."""
  largest = jnp.max(
    jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(tree)])
  )
  return jax.tree.map(lambda x: x / largest, tree), largest


def _square(tree: Params) -> Float[Array, ""]:
  return sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))


def _after(x: Float[Array, "*s d"], r: Float[Array, "d d"]) -> Array:
  """x r, of every layer."""
  return jnp.einsum("...j,jk->...k", x, r, precision="highest")


def _before(r: Float[Array, "d d"], x: Float[Array, "*s d n"]) -> Array:
  """r x, of every layer."""
  return jnp.einsum("ij,...jk->...ik", r, x, precision="highest")

"""The SO(d) mechanism itself: does a network care how its frame is turned?

Turning the residual stream of a network by a rotation R, x -> x R, with every
matrix turned along (embed R, R.T K R for each hidden kernel, R.T head), leaves
a linear or rotation-equivariant network as it was: its loss is flat along that
orbit, and training is free to drift along it. An elementwise activation or a
LayerNorm is tied to the axes, and the loss rises: the frame is fixed.
Without residual connections one layer's frame can be turned alone and made
good by the next layer.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from geom.linalg import matmul

Kernels = Mapping[str, Float[Array, "..."]]


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


def turn_stream(
  embed: Float[Array, "i d"],
  hidden: Float[Array, "layer d d"],
  head: Float[Array, "d o"],
  r: Float[Array, "d d"],
) -> tuple[Float[Array, "i d"], Float[Array, "layer d d"], Float[Array, "d o"]]:
  """The network with its stream turned by r everywhere."""
  return (
    matmul(embed, r),
    _before(r.T, _after(hidden, r)),
    matmul(r.T, head),
  )


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
  embed: Float[Array, "i d"],
  hidden: Float[Array, "layer d d"],
  head: Float[Array, "d o"],
  step: Sequence[Float[Array, "..."]],
  iterations: int = 50,
) -> Float[Array, ""]:
  """The share of a displacement that lies along the orbit of the stream.

  The tangents of the orbit are `T(A) = (embed A, [K_l, A], -A head)` for
  antisymmetric A. The displacement is projected on them by conjugate gradient
  on the normal equations; the share is `||projection||^2 / ||step||^2`.

  Args:
    embed, hidden, head: kernels before the step.
    step: displacements of the same three.
    iterations: of conjugate gradient.

  Returns:
    In [0, 1]; NaN for a zero step. Chance for a random displacement of N
    numbers is `d (d - 1) / 2 / N`.
  """

  def tangent(a: Float[Array, "d d"]) -> tuple[Array, Array, Array]:
    turned = _after(hidden, a) - _before(a, hidden)
    return matmul(embed, a), turned, -matmul(a, head)

  def adjoint(t: Sequence[Array]) -> Float[Array, "d d"]:
    hidden_t = jnp.swapaxes(hidden, -1, -2)
    g = matmul(embed.T, t[0]) - matmul(t[2], head.T)
    g += jnp.sum(matmul(hidden_t, t[1]) - matmul(t[1], hidden_t), axis=0)
    return (g - g.T) / 2

  a, _ = jax.scipy.sparse.linalg.cg(
    lambda a: adjoint(tangent(a)), adjoint(step), tol=1e-6, maxiter=iterations
  )
  along = sum(jnp.sum(x**2) for x in tangent(a))
  return along / sum(jnp.sum(x**2) for x in step)


def _after(
  stack: Float[Array, "layer d d"], r: Float[Array, "d d"]
) -> Float[Array, "layer d d"]:
  """K_l r of every layer."""
  return jnp.einsum("lij,jk->lik", stack, r, precision="highest")


def _before(
  r: Float[Array, "d d"], stack: Float[Array, "layer d d"]
) -> Float[Array, "layer d d"]:
  """r K_l of every layer."""
  return jnp.einsum("ij,ljk->lik", r, stack, precision="highest")

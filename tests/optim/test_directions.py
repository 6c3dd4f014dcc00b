"""The numbers of directions against those taken with LAPACK."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import manifolds
from geom.optim.assignment import assign
from geom.optim.directions import directions, momentum
from geom.optim.solvers import SOLVERS, quality, solve

RNG = np.random.default_rng(0)
WIDTH, LAYERS = 8, 2


def kernels(**shapes):
  return {
    name: {"kernel": jnp.asarray(RNG.normal(size=shape), jnp.float32)}
    for name, shape in shapes.items()
  }


def tree():
  return {
    "blocks": {
      "attention": kernels(
        qkv=(LAYERS, WIDTH, 3 * WIDTH), o=(LAYERS, WIDTH, WIDTH)
      ),
      "mlp": kernels(up=(LAYERS, WIDTH, 2 * WIDTH)),
    },
    "embed": {"tokens": jnp.zeros((4, WIDTH))},
  }


@pytest.fixture(scope="module")
def trained():
  """The numbers' function, and parameters, gradient, state after a step."""
  assignment = assign(
    tree(),
    {"attention": "stiefel", "mlp": "dgram", "*": "adamw"},
    solver="projected",
    lr=0.1,
    clip=None,
  )
  params, _ = assignment.project(tree())
  grads = tree()
  state = assignment.tx.init(params)
  updates, state = jax.jit(assignment.tx.update)(grads, state, params)
  of = jax.jit(lambda p, m: directions(assignment.table, p, m))
  return of, optax.apply_updates(params, updates), grads, state


def test_momentum_is_by_path_and_of_kernels_on_manifolds_only(trained):
  _, _, grads, state = trained
  found = momentum(state)
  assert sorted(found) == [
    "blocks/attention/o/kernel",
    "blocks/attention/qkv/kernel",
    "blocks/mlp/up/kernel",
  ]
  # Of a first step, from an empty buffer.
  np.testing.assert_allclose(
    found["blocks/mlp/up/kernel"], grads["blocks"]["mlp"]["up"]["kernel"]
  )


def test_numbers_of_each_projection(trained):
  of, params, _, state = trained
  buffers = momentum(state)
  found = of(params, buffers)
  assert sorted(found) == ["k", "o", "q", "up", "v"]
  w = params["blocks"]["attention"]["qkv"]["kernel"][..., WIDTH : 2 * WIDTH]
  g = buffers["blocks/attention/qkv/kernel"][..., WIDTH : 2 * WIDTH]
  # Square matrices are constrained on the input side: the rows.
  w, g = jnp.swapaxes(w, -1, -2), jnp.swapaxes(g, -1, -2)
  manifold = manifolds.stiefel()
  a = solve(SOLVERS["projected"](), manifold, w, g)
  exact = quality(manifold, w, g, a)
  np.testing.assert_allclose(found["k"]["tangency"], exact.tangency, atol=1e-5)
  np.testing.assert_allclose(
    found["k"]["alignment"], exact.alignment, rtol=0.02
  )
  assert np.all(found["k"]["violation"] < 1e-5)
  assert all(x.shape == (LAYERS,) for n in found.values() for x in n.values())


def test_weights_off_the_manifold_are_seen(trained):
  of, params, _, state = trained
  params = jax.tree.map(lambda x: 1.1 * x, params)
  found = of(params, momentum(state))
  assert np.all(found["o"]["violation"] > 0.05)  # Stiefel.
  assert np.all(found["up"]["violation"] < 1e-4)  # A cone.


def test_no_momentum_is_no_direction(trained):
  of, params, _, state = trained
  empty = jax.tree.map(jnp.zeros_like, momentum(state))
  found = of(params, empty)
  assert np.all(np.isnan(found["q"]["alignment"]))
  assert np.all(found["q"]["violation"] < 1e-4)


def test_alignment_is_with_the_gradient(trained):
  """Not with the direction itself."""
  of, params, _, state = trained
  buffers = momentum(state)
  path = "blocks/mlp/up/kernel"
  found = of(params, buffers)["up"]
  manifold = manifolds.dgram()
  # Wide kernels are constrained by rows, as their transposes by columns.
  w = jnp.swapaxes(params["blocks"]["mlp"]["up"]["kernel"], -1, -2)
  g = jnp.swapaxes(buffers[path], -1, -2)
  a = solve(SOLVERS["projected"](), manifold, w, g)
  exact, own = quality(manifold, w, g, a), quality(manifold, w, a, a)
  off, off_own = (abs(found["alignment"] - x.alignment) for x in (exact, own))
  assert np.all(off < off_own / 4)

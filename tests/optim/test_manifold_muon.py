"""Manifold Muon is an optax transformation like any other."""

import functools
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax.contrib import MuonDimensionNumbers

from geom import manifolds
from geom.optim import layout, solvers
from geom.optim import manifold_muon as mm

MANIFOLDS = {
  "euclidean": manifolds.euclidean(),
  "stiefel": manifolds.stiefel(),
  "dgram": manifolds.dgram(),
  "oblique": manifolds.oblique(),
}
# Where the solver does not matter, the one that compiles fastest.
QUICK = solvers.projected(steps=6)
every_manifold = pytest.mark.parametrize(
  "name",
  [
    "stiefel",
    "dgram",
    pytest.param("euclidean", marks=pytest.mark.slow),
    pytest.param("oblique", marks=pytest.mark.slow),
  ],
)


def kernels(manifold, seed=0):
  """A stack of tall kernels and a wide one, on the manifold."""
  shapes = {"tall": (3, 12, 8), "deep": {"wide": (6, 10)}}
  keys = iter(jax.random.split(jax.random.key(seed), 2))
  params = jax.tree.map(
    lambda shape: jax.random.normal(next(keys), shape),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  return mm.project(params, manifold)[0]


def gradients(params, seed=1):
  keys = iter(
    jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params)))
  )
  return jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), params)


def same(a, b, tolerance=0.0):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def after(tx, params, steps=3, change=lambda g, step: g):
  state = tx.init(params)
  step = jax.jit(tx.update)
  for i in range(steps):
    updates, state = step(change(gradients(params, i), i), state, params)
    params = optax.apply_updates(params, updates)
  return params


class Compiled(NamedTuple):
  """An optimizer whose compiled update all tests share."""

  init: Any
  update: Any


@functools.cache
def muon(name):
  """With the default solver, at a learning rate that is a parameter."""
  tx = optax.inject_hyperparams(mm.manifold_muon)(
    learning_rate=0.1, manifold=MANIFOLDS[name]
  )
  return Compiled(tx.init, jax.jit(tx.update))


def at_rate(state, lr):
  hyper = {**state.hyperparams, "learning_rate": jnp.float32(lr)}
  return state._replace(hyperparams=hyper)


def off(manifold, params):
  return max(
    float(jnp.max(manifolds.distance(manifold, x)))
    for x in (params["tall"], params["deep"]["wide"])
  )


@every_manifold
def test_parameters_stay_on_the_manifold(name):
  params = after(muon(name), kernels(MANIFOLDS[name]), steps=20)
  assert off(MANIFOLDS[name], params) < 1e-6


def test_the_alias_is_the_chain_of_its_links():
  manifold = MANIFOLDS["dgram"]
  chain = optax.chain(
    optax.trace(0.9, nesterov=True),
    mm.steepest_descent(manifold, solver=QUICK),
    optax.scale_by_learning_rate(0.1),
    mm.retract(manifold),
  )
  params = kernels(manifold)
  alias = mm.manifold_muon(0.1, manifold, momentum=0.9, solver=QUICK)
  same(after(alias, params), after(chain, params))


@every_manifold
def test_steps_go_downhill_at_the_learning_rate(name):
  params = kernels(MANIFOLDS[name])
  g = gradients(params)
  state = at_rate(muon(name).init(params), 1e-3)
  updates, _ = muon(name).update(g, state, params)
  for u, x in zip(jax.tree.leaves(updates), jax.tree.leaves(g), strict=True):
    assert jnp.sum(u * x) < 0
    longest = np.linalg.norm(u, 2, axis=(-1, -2))
    np.testing.assert_allclose(longest, 1e-3, rtol=0.05)


@every_manifold
def test_at_learning_rate_zero_nothing_changes_by_a_bit(name):
  params = kernels(MANIFOLDS[name])
  state = at_rate(muon(name).init(params), 0.0)
  for _ in range(2):
    updates, state = muon(name).update(gradients(params), state, params)
    same(updates, jax.tree.map(jnp.zeros_like, params))


@every_manifold
def test_a_layer_without_gradient_stays_as_it_is(name):
  def first_layer_zero(g, step):
    return {**g, "tall": g["tall"].at[0].set(0.0)}

  params = kernels(MANIFOLDS[name])
  moved = after(muon(name), params, 4, first_layer_zero)
  same(moved["tall"][0], params["tall"][0])
  free = after(muon(name), params, 4)
  same(moved["tall"][1:], free["tall"][1:], 1e-6)
  assert np.all(np.isfinite(moved["tall"]))


@every_manifold
def test_nan_in_one_matrix_is_seen_there_and_nowhere_else(name):
  params = kernels(MANIFOLDS[name])
  g = gradients(params)
  g["tall"] = g["tall"].at[1, 2, 3].set(jnp.nan)
  updates, _ = muon(name).update(g, muon(name).init(params), params)
  assert np.all(np.isnan(updates["tall"][1]))
  assert np.all(np.isfinite(updates["tall"][::2]))
  assert np.all(np.isfinite(updates["deep"]["wide"]))


def test_apply_if_finite_keeps_everything_where_there_is_a_nan():
  manifold = MANIFOLDS["dgram"]
  params = kernels(manifold)
  tx = optax.apply_if_finite(mm.manifold_muon(0.1, manifold, solver=QUICK), 5)
  state = tx.init(params)
  g = gradients(params)
  g["deep"]["wide"] = g["deep"]["wide"].at[0, 0].set(jnp.nan)
  updates, after_nan = jax.jit(tx.update)(g, state, params)
  same(updates, jax.tree.map(jnp.zeros_like, params))
  same(after_nan.inner_state, state.inner_state)


def test_multi_steps_emits_zeros_until_it_steps():
  manifold = MANIFOLDS["stiefel"]
  params = kernels(manifold)
  tx = optax.MultiSteps(mm.manifold_muon(0.1, manifold, solver=QUICK), 3)
  state, step = tx.init(params), jax.jit(tx.update)
  # A parameter off the manifold would be moved by a retraction.
  params = jax.tree.map(lambda x: 1.5 * x, params)
  for i in range(2):
    updates, state = step(gradients(params, i), state, params)
    same(updates, jax.tree.map(jnp.zeros_like, params))
  updates, state = step(gradients(params, 2), state, params)
  assert all(jnp.any(u != 0) for u in jax.tree.leaves(updates))


def test_partition_leaves_the_rest_to_another_optimizer():
  manifold = MANIFOLDS["stiefel"]
  params = {"kernel": kernels(manifold)["tall"], "bias": jnp.zeros(4)}
  tx = optax.partition(
    {
      "muon": mm.manifold_muon(0.1, manifold, solver=QUICK),
      "adam": optax.adam(0.1),
    },
    {"kernel": "muon", "bias": "adam"},
  )
  alone = after(
    mm.manifold_muon(0.1, manifold, solver=QUICK), {"kernel": params["kernel"]}
  )

  def with_bias(g, step):
    del step
    alone = gradients({"kernel": params["kernel"]}, 0)
    return {"kernel": alone["kernel"], "bias": g["bias"]}

  both = after(tx, params, 1, with_bias)
  first = after(
    mm.manifold_muon(0.1, manifold, solver=QUICK),
    {"kernel": params["kernel"]},
    1,
  )
  same(both["kernel"], first["kernel"])
  assert jnp.all(both["bias"] != 0)
  assert alone["kernel"].shape == params["kernel"].shape


def test_learning_rate_may_be_injected_and_changed():
  params = kernels(MANIFOLDS["dgram"])
  state = at_rate(muon("dgram").init(params), 0.0)
  updates, state = muon("dgram").update(gradients(params), state, params)
  same(updates, jax.tree.map(jnp.zeros_like, params))
  compiled = muon("dgram").update._cache_size()
  state = at_rate(state, 0.1)
  updates, _ = muon("dgram").update(gradients(params), state, params)
  assert all(jnp.any(u != 0) for u in jax.tree.leaves(updates))
  assert muon("dgram").update._cache_size() == compiled


def test_a_schedule_is_followed():
  manifold = MANIFOLDS["stiefel"]
  params = kernels(manifold)
  tx = mm.manifold_muon(
    lambda step: jnp.where(step < 2, 0.0, 0.1), manifold, solver=QUICK
  )
  same(after(tx, params, 2), params)
  assert jnp.any(after(tx, params, 3)["deep"]["wide"] != params["deep"]["wide"])


def test_functions_for_choices_are_refused_not_called_with_a_step():
  for choice in ("fused", "orientation", "dimension_numbers"):
    with pytest.raises(TypeError, match=choice):
      mm.manifold_muon(0.1, MANIFOLDS["dgram"], **{choice: lambda p: None})


def test_numbers_of_fused_matrices_are_no_hyperparameters():
  make = functools.partial(optax.inject_hyperparams, mm.manifold_muon)
  tx = make()(learning_rate=0.1, manifold=MANIFOLDS["stiefel"], fused=3)
  with pytest.raises(TypeError, match=r"fused.*static_args"):
    tx.init(jnp.zeros((8, 12)))
  make(static_args="fused")(
    learning_rate=0.1, manifold=MANIFOLDS["stiefel"], fused=3
  ).init(jnp.zeros((8, 12)))


def test_parameters_are_needed_and_must_be_matrices():
  tx = mm.manifold_muon(0.1, MANIFOLDS["stiefel"])
  params = kernels(MANIFOLDS["stiefel"])
  with pytest.raises(ValueError, match="needs the parameters"):
    tx.update(params, tx.init(params))
  with pytest.raises(ValueError, match=r"'head/bias'.*partition"):
    tx.init({"head": {"bias": jnp.zeros(3)}})


@pytest.mark.parametrize(
  "wrong",
  [{"solver": "newton"}, {"shape_scaling": "big"}, {"orientation": "left"}],
  ids=str,
)
def test_unknown_names_are_refused(wrong):
  (value,) = wrong.values()
  with pytest.raises(ValueError, match=value):
    mm.manifold_muon(0.1, MANIFOLDS["dgram"], **wrong).init(jnp.eye(3))


@every_manifold
def test_weight_decay_keeps_to_cones(name):
  manifold = MANIFOLDS[name]
  if not manifold.cone:
    with pytest.raises(ValueError, match="weight decay"):
      mm.manifold_muon(0.1, manifold, weight_decay=0.1, solver=QUICK)
    mm.manifold_muon(0.1, manifold, weight_decay=0.0, solver=QUICK)
    return
  params = kernels(manifold)
  tx = mm.manifold_muon(0.1, manifold, weight_decay=0.5, solver=QUICK)
  zero = after(tx, params, 1, lambda g, _: jax.tree.map(jnp.zeros_like, g))
  same(zero, jax.tree.map(lambda x: 0.95 * x, params), 1e-6)
  assert off(manifold, after(tx, params, 5)) < 1e-6


def test_init_needs_only_shapes_and_none_may_be_a_leaf():
  manifold = MANIFOLDS["stiefel"]
  params = kernels(manifold)
  tx = mm.manifold_muon(0.1, manifold, solver=QUICK)
  shapes = jax.eval_shape(lambda: params)
  same(tx.init(shapes), tx.init(params))
  params["none"] = None
  g = {**gradients({k: params[k] for k in ("tall", "deep")})}
  g["none"] = None
  updates, _ = tx.update(g, tx.init(params), params)
  assert updates["none"] is None


def test_a_second_step_does_not_compile_and_donation_works():
  manifold = MANIFOLDS["dgram"]
  params = kernels(manifold)
  tx = mm.manifold_muon(0.1, manifold)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(params, state, g):
    updates, state = tx.update(g, state, params)
    return optax.apply_updates(params, updates), state

  g, state = gradients(params), tx.init(params)
  copy = jax.tree.map(jnp.copy, params)
  for _ in range(3):
    copy, state = step(copy, state, g)
  assert step._cache_size() == 1


def test_a_link_after_retract_is_detected_if_asked_for():
  manifold = MANIFOLDS["stiefel"]
  params = kernels(manifold)
  fine = mm.manifold_muon(0.1, manifold, checked=True, solver=QUICK)
  after(fine, params, 3)
  for broken in (optax.chain(fine, optax.scale(1.5)),):
    with pytest.raises(Exception, match="off the manifold stiefel"):
      jax.block_until_ready(after(broken, params, 3))
  with pytest.raises(mm.ManifoldError, match="'deep/wide'"):
    fine.update(
      params, fine.init(params), jax.tree.map(lambda x: 2 * x, params)
    )


def test_stacks_with_gradients_of_other_scales_equal_single_matrices():
  scales = jnp.array([1.0, 1e-3, 1e3])[:, None, None]
  params = kernels(MANIFOLDS["dgram"])
  together = after(
    muon("dgram"), params, 3, lambda g, _: {**g, "tall": scales * g["tall"]}
  )
  tx = mm.manifold_muon(0.1, MANIFOLDS["dgram"])
  step = jax.jit(tx.update)
  for i in range(3):
    # The same gradients as in the stack, by themselves.
    alone = params["tall"][i]
    state = tx.init(alone)
    for k in range(3):
      g = (scales * gradients(params, k)["tall"])[i]
      updates, state = step(g, state, alone)
      alone = alone + updates
    same(alone, together["tall"][i], 1e-6)


@pytest.mark.parametrize(
  "name", ["dgram", pytest.param("stiefel", marks=pytest.mark.slow)]
)
def test_thin_and_empty_kernels(name):
  manifold = MANIFOLDS[name]
  shapes = [(1, 5), (5, 1), (1, 1), (7, 6), (0, 4), (2, 0, 3), (0, 4, 4)]
  keys = jax.random.split(jax.random.key(0), len(shapes))
  random = [
    jax.random.normal(key, shape)
    for key, shape in zip(keys, shapes, strict=True)
  ]
  params, _ = mm.project(random, manifold)
  moved = after(mm.manifold_muon(0.1, manifold), params)
  for x, before in zip(moved, params, strict=True):
    assert x.shape == before.shape
    assert np.all(np.isfinite(x))
    if x.size:
      assert jnp.all(manifolds.distance(manifold, x) < 1e-6)


def test_bfloat16_parameters_and_momentum():
  manifold = MANIFOLDS["stiefel"]
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), kernels(manifold))
  tx = mm.manifold_muon(
    0.1, manifold, momentum_dtype=jnp.bfloat16, solver=QUICK
  )
  moved = after(tx, half)
  assert {x.dtype for x in jax.tree.leaves(moved)} == {jnp.dtype(jnp.bfloat16)}
  assert off(manifold, moved) < 5e-3
  full = after(tx, kernels(manifold))
  assert off(manifold, full) < 1e-6
  trace = tx.init(full)[0].trace
  assert {x.dtype for x in jax.tree.leaves(trace)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_distances_before_step_0_have_no_scale_on_a_cone(scale):
  w = jax.random.normal(jax.random.key(0), (8, 6))
  _, moved = mm.project(scale * w, MANIFOLDS["dgram"])
  np.testing.assert_allclose(
    moved[""], manifolds.distance(MANIFOLDS["dgram"], w), rtol=1e-3
  )


@pytest.mark.parametrize("columns", [0, 3])
def test_a_kernel_of_deficient_rank_is_completed(columns):
  w = jnp.zeros((8, 6)).at[:, :columns].set(1.0)
  near, moved = mm.project(w, MANIFOLDS["stiefel"])
  assert 0.5 < moved[""] <= 1
  np.testing.assert_allclose(near.T @ near, np.eye(6), atol=1e-6)


def test_integers_are_refused():
  with pytest.raises(ValueError, match="int32, not a float"):
    mm.manifold_muon(0.1, MANIFOLDS["dgram"]).init(jnp.eye(3, dtype=int))


# The layout of kernels.


def columns(x):
  return x.T @ x


def rows(x):
  return x @ x.T


@pytest.mark.parametrize(
  "orientation, gram", [("short", rows), ("input", rows), ("output", columns)]
)
def test_orientation_of_a_square_kernel(orientation, gram):
  """`x @ K`: the input axis is the first, its Gram matrix is K K.T."""
  manifold = manifolds.oblique()
  k = jax.random.normal(jax.random.key(0), (6, 6))
  near, _ = mm.project(k, manifold, orientation=orientation)
  tx = mm.manifold_muon(0.1, manifold, orientation=orientation, solver=QUICK)
  for x in (near, after(tx, near)):
    np.testing.assert_allclose(jnp.diag(gram(x)), 1.0, atol=1e-6)


@pytest.mark.parametrize("fused", [3, {"q*": (4, 4, 4)}, (8, 2, 2)], ids=str)
def test_fused_kernels_are_their_parts(fused):
  manifold = MANIFOLDS["stiefel"]
  tx = mm.steepest_descent(manifold, solver=QUICK, fused=fused)
  params = {"qkv": jax.random.normal(jax.random.key(0), (2, 8, 12))}
  params, _ = mm.project(params, manifold, fused=fused)
  g = gradients(params)
  a, _ = jax.jit(tx.update)(g, tx.init(params), params)
  sizes = fused if isinstance(fused, tuple) else (4, 4, 4)
  ends = np.cumsum(sizes)[:-1]
  parts = [jnp.split(x["qkv"], ends, axis=-1) for x in (params, g, a)]
  for w, g, a in zip(*parts, strict=True):
    turn = w.shape[-1] == w.shape[-2]  # The input side of square ones.
    w, g, a = (jnp.swapaxes(x, -1, -2) if turn else x for x in (w, g, a))
    assert jnp.all(manifolds.distance(manifold, w) < 1e-6)
    same(
      a, jax.jit(functools.partial(solvers.solve, QUICK, manifold))(w, g), 1e-5
    )


def test_fused_that_does_not_fit_is_refused():
  for fused in (5, (4, 4), (12, 0)):
    with pytest.raises(ValueError, match=r"'qkv'.*fused"):
      mm.manifold_muon(0.1, MANIFOLDS["dgram"], fused=fused).init(
        {"qkv": jnp.zeros((8, 12))}
      )


def test_dimension_numbers_say_where_the_axes_are():
  """(heads, head size) are the output, the layers come last."""
  manifold = MANIFOLDS["stiefel"]
  numbers = MuonDimensionNumbers(reduction_axis=1, output_axis=(0, 2))
  x = jax.random.normal(jax.random.key(0), (4, 20, 3, 2))
  plain = jnp.transpose(x, (3, 1, 0, 2)).reshape(2, 20, 12)

  def back(y):
    return jnp.transpose(y.reshape(2, 20, 4, 3), (2, 1, 3, 0))

  near, _ = mm.project(x, manifold, dimension_numbers=numbers)
  plain_near, _ = mm.project(plain, manifold)
  same(near, back(plain_near), 1e-6)
  links = [
    mm.steepest_descent(manifold, solver=QUICK, dimension_numbers=n)
    for n in (numbers, None)
  ]
  ours, theirs = (
    jax.jit(tx.update)(w, tx.init(w), v)[0]
    for tx, w, v in zip(links, (x, plain), (near, plain_near), strict=True)
  )
  same(ours, back(theirs), 1e-5)


def test_dimension_numbers_that_do_not_fit_are_refused():
  for numbers in (
    MuonDimensionNumbers(0, 3),
    MuonDimensionNumbers(0, 0),
    MuonDimensionNumbers((0, 1), 1),
  ):
    with pytest.raises(ValueError, match="axes"):
      mm.manifold_muon(0.1, MANIFOLDS["dgram"], dimension_numbers=numbers).init(
        jnp.zeros((3, 4))
      )


@pytest.mark.parametrize("fused", [None, 3, (5, 4, 3)])
@pytest.mark.parametrize("orientation", layout.ORIENTATIONS)
def test_join_undoes_split(fused, orientation):
  how = layout.Layout(MuonDimensionNumbers((0, 2), 1), fused, orientation)
  x = jax.random.normal(jax.random.key(0), (2, 12, 3, 5))
  same(layout.join(layout.split(x, how), x, how), x)
  parts = layout.split(x, how)
  assert layout.fans(x.shape, how) == [
    (6, n) for n in ((12,) if fused is None else (4,) if fused == 3 else fused)
  ]
  assert all(p.shape[-2] == 6 for p in parts)


@pytest.mark.parametrize(
  "kind, factor", [("width", 2.0), ("rms", 0.2 * 40**0.5)]
)
def test_shape_scaling_is_a_factor_on_the_learning_rate(kind, factor):
  manifold = MANIFOLDS["dgram"]
  k, _ = mm.project(jax.random.normal(jax.random.key(0), (10, 40)), manifold)
  scaled = mm.manifold_muon(0.01, manifold, shape_scaling=kind, solver=QUICK)
  plain = mm.manifold_muon(0.01 * factor, manifold, solver=QUICK)
  same(after(scaled, k), after(plain, k), 1e-6)
  assert mm.shape_factor("width", 40, 10) == 1.0


# Against Muon as optax has it.


@pytest.mark.parametrize("nesterov", [False, True])
def test_euclidean_is_the_muon_of_optax_with_the_same_msign(
  nesterov, monkeypatch
):
  from geom.polar import MARGIN, polar_express

  steps = 5
  params = kernels(MANIFOLDS["euclidean"])["tall"]
  ours = mm.manifold_muon(
    0.1,
    MANIFOLDS["euclidean"],
    nesterov=nesterov,
    bias_correction=nesterov,
    solver=solvers.auto(steps=steps),
    shape_scaling="width",
  )
  # Schatten-4 norm in place of Frobenius in optax's.
  from optax.contrib import _muon

  real = _muon._base_ns_iterator

  def first_divided(i, x, coefficients):
    gram = jnp.linalg.norm(x @ x.T, ord="fro")
    return real(i, jnp.where(i == 0, x / jnp.sqrt(gram), x), coefficients)

  monkeypatch.setattr(_muon, "_base_ns_iterator", first_divided)
  theirs = optax.contrib.muon(
    0.1,
    ns_coeffs=polar_express(steps, margin=MARGIN),
    nesterov=nesterov,
    eps=0.0,
    muon_weight_dimension_numbers=MuonDimensionNumbers(1, 2),
  )
  a, b = after(ours, params, 20), after(theirs, params, 20)
  assert jnp.linalg.norm(a - b) < 1e-5 * jnp.linalg.norm(b)


# It optimizes.


@every_manifold
def test_least_squares_is_solved_on_the_manifold(name):
  """A target on the manifold is found from another point of it."""
  manifold = MANIFOLDS[name]
  w = kernels(manifold, 3)["tall"][0]
  target = kernels(manifold, 4)["tall"][0]
  x = jax.random.normal(jax.random.key(5), (64, 12))

  def loss(w):
    return jnp.mean((x @ (w - target)) ** 2)

  tx = mm.manifold_muon(optax.linear_schedule(0.2, 0.0, 300), manifold)
  state, start = tx.init(w), loss(w)

  @jax.jit
  def step(w, state):
    u, state = tx.update(jax.grad(loss)(w), state, w)
    return w + u, state

  for _ in range(300):
    w, state = step(w, state)
  assert loss(w) < 1e-4 * start


def test_a_quadratic_over_stiefel_finds_the_known_optimum():
  """min tr(W.T B W): the sum of the least eigenvalues."""
  b = jax.random.normal(jax.random.key(0), (20, 20))
  b = b @ b.T / 20
  w = manifolds.project(
    manifolds.stiefel(), jax.random.normal(jax.random.key(1), (20, 5))
  )
  tx = mm.manifold_muon(
    optax.exponential_decay(0.1, 400, 1e-4), manifolds.stiefel(), momentum=0.8
  )

  @jax.jit
  def step(w, state):
    u, state = tx.update(2 * b @ w, state, w)
    return w + u, state

  state = tx.init(w)
  for _ in range(400):
    w, state = step(w, state)
  best = np.sum(np.linalg.eigvalsh(b)[:5])
  np.testing.assert_allclose(jnp.trace(w.T @ b @ w), best, rtol=1e-3)


# Trees that are not dicts.


def by_rank(tree):
  return jax.tree.map(lambda x: "muon" if x.ndim > 1 else "adam", tree)


@pytest.mark.slow
def test_it_trains_an_equinox_module():
  manifold = MANIFOLDS["stiefel"]
  layer = equinox.nn.Linear(12, 5, key=jax.random.key(0))
  weight, _ = mm.project(layer.weight, manifold)
  layer = equinox.tree_at(lambda x: x.weight, layer, weight)
  muon = mm.manifold_muon(0.1, manifold, solver=QUICK)
  tx = optax.partition({"muon": muon, "adam": optax.adam(0.1)}, by_rank)
  params = equinox.filter(layer, equinox.is_array)
  g = jax.tree.map(jnp.ones_like, params)
  updates, _ = tx.update(g, tx.init(params), params)
  moved = equinox.apply_updates(layer, updates)
  assert jnp.any(moved.weight != layer.weight)
  assert manifolds.distance(manifold, moved.weight) < 1e-6


def test_it_trains_an_nnx_module():
  manifold = MANIFOLDS["stiefel"]
  layer = nnx.Linear(12, 5, rngs=nnx.Rngs(0))
  layer.kernel[...], _ = mm.project(layer.kernel[...], manifold)
  before = layer.kernel[...]
  muon = mm.manifold_muon(0.1, manifold, solver=QUICK)
  tx = optax.partition({"muon": muon, "adam": optax.adam(0.1)}, by_rank)
  optimizer = nnx.Optimizer(layer, tx, wrt=nnx.Param)

  def loss(layer):
    return jnp.sum(layer(jnp.ones((1, 12))) ** 2)

  optimizer.update(layer, nnx.grad(loss)(layer))
  assert jnp.any(layer.kernel[...] != before)
  assert manifolds.distance(manifold, layer.kernel[...]) < 1e-6

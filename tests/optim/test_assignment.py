"""One optimizer for a model: every parameter gets what its rule says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import manifolds, roles
from geom.optim.assignment import assign, warmup_cosine
from geom.optim.manifold_muon import manifold_muon
from geom.optim.solvers import dual_ascent

QKV, OUT = "blocks/attention/qkv/kernel", "blocks/attention/o/kernel"
UP, SCALE = "blocks/mlp/up/kernel", "blocks/mlp_norm/scale"
SHAPES = {
  "embed/tokens": (12, 6), QKV: (2, 6, 18), OUT: (2, 6, 6), UP: (2, 6, 10),
  SCALE: (2, 6), "head/kernel": (6, 12),
}  # fmt: skip


def nested(leaves):
  tree = {}
  for path, leaf in leaves.items():
    *folders, name = path.split("/")
    at = tree
    for folder in folders:
      at = at.setdefault(folder, {})
    at[name] = leaf
  return tree


def random(seed=0, size=1.0):
  rng = np.random.default_rng(seed)
  return nested(
    {
      path: jnp.asarray(size * rng.normal(size=shape), jnp.float32)
      for path, shape in SHAPES.items()
    }
  )


def start(found, params=None):
  params, _ = found.project(random() if params is None else params)
  return params, found.tx.init(params)


def stepped(found, steps=1, grads=None):
  """Parameters and updates by path, after some steps of random gradients."""
  params, state = start(found)
  update = jax.jit(found.tx.update)
  for i in range(steps):
    given = random(i + 1) if grads is None else grads
    updates, state = update(given, state, params)
    params = optax.apply_updates(params, updates)
  assert update._cache_size() == 1
  return roles.paths(params), roles.paths(updates)


def close(a, b, tolerance=1e-6):
  np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def parts(kernel):
  """q, k and v of a fused kernel."""
  return jnp.split(kernel, 3, axis=-1)


def test_parameters_stay_where_they_are_put():
  params, _ = stepped(assign(random(), "hetero", lr=0.1), steps=20)
  for kernel in (*parts(params[QKV]), jnp.swapaxes(params[OUT], -1, -2)):
    gram = jnp.einsum("lio,ljo->lij", kernel, kernel)
    close(gram, jnp.broadcast_to(jnp.eye(6), gram.shape), 3e-5)
  up = params[UP]
  gram = jnp.einsum("lio,ljo->lij", up, up)
  close(manifolds.off_diagonal(gram), jnp.zeros_like(gram), 1e-4)
  lengths = jnp.diagonal(gram, axis1=-2, axis2=-1)
  assert jnp.std(lengths) > 0.5  # Free, as those of no Stiefel matrix.


def one_by_one(found, assignment):
  """Updates of the first step, each parameter by an optimizer of its own."""
  params, _ = start(found)
  grads, updates = random(1), {}
  norm = optax.tree.norm(grads)
  grads = jax.tree.map(lambda g: g / norm, grads)  # The norm is above 1.
  grads, params = roles.paths(grads), roles.paths(params)
  for path in SHAPES:
    manifold = assignment[path]
    if manifold is None:
      decay = 0.1 if path != SCALE else 0.0
      tx = optax.adamw(3e-3, 0.9, 0.95, weight_decay=decay)
    else:
      fused = 3 if path == QKV else None
      tx = manifold_muon(0.05, manifold, fused=fused)
    state = tx.init(params[path])
    updates[path], _ = tx.update(grads[path], state, params[path])
  return updates


def test_is_manifold_muon_and_adamw_of_each_after_a_global_clip():
  found = assign(random(), "hetero", lr=0.05, adamw_lr=3e-3)
  _, updates = stepped(found)
  own = dict.fromkeys(SHAPES)
  own |= {QKV: manifolds.stiefel(), OUT: manifolds.stiefel()}
  own |= {UP: manifolds.dgram()}
  for path, wanted in one_by_one(found, own).items():
    close(updates[path], wanted)


@pytest.mark.parametrize("momentum", [0.0, None])
def test_clipping_comes_first_or_not_at_all(momentum):
  settings = {"lr": 0.05, "momentum": momentum, "adamw_betas": (0.0, 0.0)}
  params, state = start(assign(random(), "adamw", **settings))
  grads = random(1, size=100.0)
  # Adam's second moment remembers what it was given.
  for clip, norm in ((2.0, 2.0), (None, float(optax.tree.norm(grads)))):
    tx = assign(random(), "adamw", clip=clip, **settings).tx
    _, state = tx.update(grads, tx.init(params), params)
    seen = optax.tree.get_all_with_path(state, "nu")
    total = sum(float(optax.tree.sum(nu)) for _, nu in seen)
    close(total, norm**2, 1e-4)


def test_weight_decay_is_of_matrices_only():
  zero = jax.tree.map(jnp.zeros_like, random())
  given = {
    "attention": {"manifold": "euclidean", "weight_decay": 0.5},
    "mlp": {"manifold": "dgram", "weight_decay": 0.25}, "*": "adamw",
  }  # fmt: skip
  found = assign(random(), given, lr=0.1, adamw_lr=0.01)
  before, _ = start(found)
  after, _ = stepped(found, grads=zero)
  shrunk = {QKV: 0.95, OUT: 0.95, UP: 0.975, SCALE: 1.0}
  for path, w in roles.paths(before).items():
    factor = shrunk.get(path, 0.999)
    close(after[path], factor * w, 2e-6)


def test_factors_of_learning_rates():
  def sizes(lr, factor):
    given = {
      "attention": {"manifold": "euclidean", "lr_factor": factor},
      "mlp": "euclidean",
      "*": {"manifold": "adamw", "lr_factor": factor},
    }
    found = assign(random(), given, lr=lr, adamw_lr=lr, adamw_weight_decay=0.0)
    return stepped(found, steps=2)[1]

  plain = sizes(0.1, 1)
  for lr in (0.1, lambda count: 0.1 * (count == 1)):
    halved = sizes(lr, 0.5)
    close(halved[UP], plain[UP], 1e-5)
    for path in (QKV, OUT, "embed/tokens", SCALE):
      close(halved[path], plain[path] / 2, 1e-5)


def test_warm_up_and_cosine():
  rate = warmup_cosine(2.0, num_steps=100, warmup_steps=10)
  found = [float(rate(step)) for step in (0, 5, 10, 55, 100, 1000)]
  close(found, [0, 1, 2, 1.1, 0.2, 0.2], 1e-5)


def test_step_0_of_a_warm_up_moves_nothing():
  rate = warmup_cosine(0.1, num_steps=9, warmup_steps=3)
  found = assign(random(), "hetero", lr=rate, adamw_lr=rate)
  for steps, moves in ((1, False), (2, True)):
    _, updates = stepped(found, steps)
    for update in updates.values():
      assert bool(jnp.any(update != 0)) is moves


def test_shapes_are_enough_and_leaves_may_be_none():
  shapes = jax.eval_shape(random)
  assert assign(shapes, "hetero").table == assign(random(), "hetero").table
  shapes["blocks"]["attention"]["qkv"]["bias"] = None
  shapes["head"]["kernel"] = None
  found = assign(shapes, "hetero", lr=0.05)
  assert set(found.fingerprint) == set(SHAPES) - {"head/kernel"}

  def without(tree):
    tree["blocks"]["attention"]["qkv"]["bias"] = None
    return tree | {"head": {"kernel": None}}

  params, state = start(found, without(random()))
  updates, _ = jax.jit(found.tx.update)(without(random(1)), state, params)
  assert set(roles.paths(updates)) == set(found.fingerprint)


def test_project_moves_kernels_onto_their_manifolds_and_says_how_far():
  found = assign(random(), "hetero")
  before, (params, moved) = random(), found.project(random())
  before, params = roles.paths(before), roles.paths(params)
  assert set(moved) == {QKV, OUT, UP}
  for path in ("embed/tokens", "head/kernel", SCALE):
    assert params[path] is not None
    np.testing.assert_array_equal(params[path], before[path])
  off = [
    manifolds.distance(manifolds.stiefel(), jnp.swapaxes(part, -1, -2))
    for part in parts(before[QKV])
  ]
  close(moved[QKV], jnp.max(jnp.stack(off)), 1e-5)
  close(
    parts(params[QKV])[1],
    manifolds.project(manifolds.stiefel(), parts(before[QKV])[1]),
    1e-5,
  )
  _, moved = found.project(nested(params))
  assert all(off < 1e-5 for off in moved.values())
  with pytest.raises(ValueError, match="'other' is not in the assignment"):
    found.project({"other": jnp.ones((2, 2))})


def test_options_reach_the_manifold():
  given = {
    OUT: {"manifold": "stiefel", "c": 3, "orientation": "output"},
    UP: {"manifold": "dgram", "retraction": "sorted_svd"}, "*": "adamw",
  }  # fmt: skip
  params, _ = stepped(assign(random(), given, lr=0.1), steps=2)
  gram = jnp.einsum("lio,lij->loj", params[OUT], params[OUT])
  close(gram, jnp.broadcast_to(9 * jnp.eye(6), gram.shape), 1e-4)
  lengths = jnp.linalg.norm(params[UP], axis=-1)
  assert jnp.all(lengths[:, :-1] >= lengths[:, 1:])


@pytest.mark.parametrize("scaling", ["width", "rms"])
def test_shape_scaling(scaling):
  given = {UP: {"manifold": "euclidean"}, "*": "adamw"}
  _, plain = stepped(assign(random(), given, lr=0.1))
  given[UP]["shape_scaling"] = scaling
  _, scaled = stepped(assign(random(), given, lr=0.1))
  factor = {"width": (10 / 6) ** 0.5, "rms": 0.2 * 10**0.5}[scaling]
  close(scaled[UP], factor * plain[UP], 1e-5)


def test_the_paper_s_solver_of_euclidean_matrices_needs_one_iteration():
  _, updates = stepped(assign(random(), "unconstrained", faithful=True))
  given = random(1)
  given = jax.tree.map(lambda g: 1.95 * g / optax.tree.norm(given), given)
  params, _ = start(assign(random(), "unconstrained"))
  tx = manifold_muon(
    0.02,
    manifolds.euclidean(),
    momentum=None,
    solver=dual_ascent(),
    weight_decay=0.1,
  )
  own = {"up": params["blocks"]["mlp"]["up"]}
  g = {"up": given["blocks"]["mlp"]["up"]}
  wanted, _ = jax.jit(tx.update)(g, tx.init(own), own)
  close(updates[UP], wanted["up"]["kernel"], 1e-6)


def test_groups_that_call_lapack_take_turns():
  given = {
    "attention": {"manifold": "dgram", "weight_decay": 0.1},
    "mlp": {"manifold": "dgram", "weight_decay": 0.2}, "*": "adamw",
  }  # fmt: skip

  def barriers(assignment, **settings):
    found = assign(random(), assignment, **settings)
    params, state = start(found)
    text = str(jax.make_jaxpr(found.tx.update)(random(1), state, params))
    return text.count("optimization_barrier")

  # One between the kernels of attention, one between the groups.
  assert barriers(given, faithful=True) == 2
  assert barriers("all_dgram", faithful=True) == 2
  assert barriers("hetero", faithful=True) == barriers(given) == 0
  together, _ = stepped(assign(random(), given, faithful=True), steps=3)
  for rest, mine in (("mlp", (QKV, OUT)), ("attention", (UP,))):
    one = {**given, rest: {**given[rest], "retraction": "column"}}
    alone, _ = stepped(assign(random(), one, faithful=True), steps=3)
    for path in (*mine, SCALE, "embed/tokens"):
      close(together[path], alone[path], 1e-5)


def test_momentum_in_another_type():
  found = assign(random(), "hetero", momentum_dtype=jnp.bfloat16)
  _, state = start(found)
  traces = optax.tree.get_all_with_path(state, "trace")
  leaves = jax.tree.leaves([trace for _, trace in traces])
  assert len(leaves) == 3
  assert all(leaf.dtype == jnp.bfloat16 for leaf in leaves)


@pytest.mark.parametrize("checked", [False, True])
def test_checked_finds_parameters_that_were_not_projected(checked):
  found = assign(random(), "all_stiefel", checked=checked)
  params = random()
  state = found.tx.init(params)

  def update():
    jax.block_until_ready(found.tx.update(random(1), state, params))
    jax.effects_barrier()

  if checked:
    with pytest.raises(Exception, match="off the manifold stiefel"):
      update()
  else:
    update()

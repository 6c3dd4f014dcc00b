"""One optimizer for a model: every parameter gets what its rule says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import linalg, manifolds, roles
from geom.optim import assignment
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


def made(assignment, **settings):
  """With the solver that compiles fastest."""
  return assign(random(), assignment, **{"solver": "projected"} | settings)


def stepped(found, steps=1, grads=None, project=False):
  """Parameters and updates by path, after some steps of random gradients."""
  params = found.project(random())[0] if project else random()
  state, update = found.tx.init(params), jax.jit(found.tx.update)
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
  params, _ = stepped(made("hetero", lr=0.1), 20, project=True)
  for kernel in (*parts(params[QKV]), jnp.swapaxes(params[OUT], -1, -2)):
    gram = jnp.einsum("lio,ljo->lij", kernel, kernel)
    close(gram, jnp.broadcast_to(jnp.eye(6), gram.shape), 3e-5)
  up = params[UP]
  gram = jnp.einsum("lio,ljo->lij", up, up)
  close(manifolds.off_diagonal(gram), jnp.zeros_like(gram), 1e-4)
  lengths = jnp.diagonal(gram, axis1=-2, axis2=-1)
  assert jnp.std(lengths) > 0.5  # Free, as those of no Stiefel matrix.


def test_is_manifold_muon_and_adamw_of_each_after_a_global_clip():
  def one(path, manifold, decay):
    if manifold is None:
      return optax.adamw(3e-3, 0.9, 0.95, weight_decay=decay)
    fused = 3 if path == QKV else None
    return manifold_muon(0.05, manifold, fused=fused, solver="projected")

  own = dict.fromkeys(SHAPES) | {UP: manifolds.dgram()}
  own |= {QKV: manifolds.stiefel(), OUT: manifolds.stiefel()}
  txs = {p: one(p, m, 0.1 if p != SCALE else 0.0) for p, m in own.items()}
  params, grads = roles.paths(random()), random(1)
  norm = optax.tree.norm(grads)
  assert norm > 1
  grads = roles.paths(jax.tree.map(lambda g: g / norm, grads))

  @jax.jit
  def wanted():
    return {
      path: tx.update(grads[path], tx.init(params[path]), params[path])[0]
      for path, tx in txs.items()
    }

  found = made("hetero", lr=0.05, adamw_lr=3e-3)
  _, updates = stepped(found)
  for path, update in wanted().items():
    close(updates[path], update, 1e-5)  # Off the manifold rounding grows.


def test_clipping_comes_first_or_not_at_all():
  grads, params = random(1, size=100.0), random()
  for clip, norm in ((2.0, 2.0), (None, float(optax.tree.norm(grads)))):
    tx = assign(params, "adamw", clip=clip, adamw_betas=(0.0, 0.0)).tx
    _, state = jax.jit(tx.update)(grads, tx.init(params), params)
    # Adam's second moment remembers what it was given.
    seen = optax.tree.get_all_with_path(state, "nu")
    total = sum(float(optax.tree.sum(nu)) for _, nu in seen)
    close(total, norm**2, 1e-4)


def test_weight_decay_is_of_matrices_only():
  zero = jax.tree.map(jnp.zeros_like, random())
  given = {
    "attention": {"manifold": "euclidean", "weight_decay": 0.5},
    "mlp": {"manifold": "euclidean", "weight_decay": 0.25}, "*": "adamw",
  }  # fmt: skip
  found = made(given, lr=0.1, adamw_lr=0.01)
  before, (after, _) = random(), stepped(found, grads=zero)
  shrunk = dict.fromkeys(SHAPES, 0.999)
  shrunk |= {QKV: 0.95, OUT: 0.95, UP: 0.975, SCALE: 1.0}
  for path, w in roles.paths(before).items():
    close(after[path], shrunk[path] * w, 2e-6)


def test_factors_of_learning_rates():
  def updates(lr, factor):
    given = {
      OUT: {"manifold": "euclidean", "lr_factor": factor},
      UP: "euclidean",
      "*": {"manifold": "adamw", "lr_factor": factor},
    }
    found = made(given, lr=lr, adamw_lr=lr, adamw_weight_decay=0.0)
    return stepped(found, steps=2)[1]

  plain = updates(0.1, 1)
  for lr in (0.1, lambda count: 0.1 * (count == 1)):
    halved = updates(lr, 0.5)
    close(halved[UP], plain[UP], 1e-5)
    for path in (OUT, "embed/tokens", SCALE):
      close(halved[path], plain[path] / 2, 1e-5)


def test_warm_up_and_cosine():
  rate = warmup_cosine(2.0, num_steps=100, warmup_steps=10)
  found = [float(rate(step)) for step in (0, 5, 10, 55, 100, 1000)]
  close(found, [0, 1, 2, 1.1, 0.2, 0.2], 1e-5)


def test_step_0_of_a_warm_up_moves_nothing():
  rate = warmup_cosine(0.1, num_steps=9, warmup_steps=3)
  tx = made({UP: "oblique", "*": "adamw"}, lr=rate, adamw_lr=rate).tx
  state, update = tx.init(random()), jax.jit(tx.update)
  for moves in (False, True, True):
    updates, state = update(random(1), state, random())
    for leaf in jax.tree.leaves(updates):
      assert bool(jnp.any(leaf != 0)) is moves


def test_shapes_are_enough_and_leaves_may_be_none():
  shapes = jax.eval_shape(random)
  assert assign(shapes, "hetero").table == assign(random(), "hetero").table
  shapes["blocks"]["attention"]["qkv"]["bias"] = None
  shapes["head"]["kernel"] = None
  found = assign(shapes, "all_stiefel", lr=0.05, solver="projected")
  assert set(found.fingerprint) == set(SHAPES) - {"head/kernel"}

  def without(tree):
    tree["blocks"]["attention"]["qkv"]["bias"] = None
    return tree | {"head": {"kernel": None}}

  params, _ = found.project(without(random()))
  state = found.tx.init(params)
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
    QKV: {"manifold": "stiefel", "c": 3},
    OUT: {"manifold": "oblique", "orientation": "output"},
    UP: {"manifold": "dgram", "retraction": "sorted_svd"}, "*": "adamw",
  }  # fmt: skip
  found = made(given, lr=0.1)
  started = roles.paths(found.project(random())[0])
  params, _ = stepped(found, steps=2, project=True)
  for tree in (started, params):
    for part in parts(tree[QKV]):
      gram = jnp.einsum("lio,lij->loj", part, part)
      close(gram, jnp.broadcast_to(9 * jnp.eye(6), gram.shape), 1e-4)
    close(jnp.linalg.norm(tree[OUT], axis=-2), jnp.ones((2, 6)), 1e-5)
  lengths = jnp.linalg.norm(params[UP], axis=-1)
  assert jnp.all(lengths[:, :-1] >= lengths[:, 1:])


def test_shape_scaling():
  scaled = {"manifold": "euclidean", "shape_scaling": "width"}
  given = {UP: scaled, OUT: {**scaled, "shape_scaling": "rms"}, "*": "adamw"}
  _, found = stepped(made(given, lr=0.1))
  _, plain = stepped(made({UP: "euclidean", OUT: "euclidean", "*": "adamw"},
                          lr=0.1))  # fmt: skip
  close(found[UP], (10 / 6) ** 0.5 * plain[UP], 1e-5)
  close(found[OUT], 0.2 * 6**0.5 * plain[OUT], 1e-5)


def test_the_paper_s_solver_of_euclidean_matrices_needs_one_iteration():
  rules = {UP: "euclidean", "*": "adamw"}
  settings = {"momentum": None, "clip": None, "lr": 0.02}
  found = assign(random(), rules, faithful=True, **settings)
  _, updates = stepped(found)
  tx = manifold_muon(
    0.02, manifolds.euclidean(), momentum=None, solver=dual_ascent()
  )
  w, g = (roles.paths(random(seed))[UP] for seed in (0, 1))
  wanted, _ = jax.jit(tx.update)(g, tx.init(w), w)
  np.testing.assert_array_equal(updates[UP], wanted)
  jaxpr = jax.make_jaxpr(found.tx.update)
  text = str(jaxpr(random(1), found.tx.init(random()), random()))
  assert "length=20" not in text and "length=1\n" in text


def test_groups_that_call_lapack_take_turns(monkeypatch):
  svd = {"manifold": "dgram", "retraction": "sorted_svd"}
  given = {
    "attention": {**svd, "weight_decay": 0.1},
    "mlp": {**svd, "weight_decay": 0.2}, "*": "adamw",
  }  # fmt: skip

  waited = []

  def spy(x, *before):
    waited.append((x, before))
    return linalg.after(x, *before)

  monkeypatch.setattr(assignment, "after", spy)
  for rules, times in (({"mlp": svd, "*": "adamw"}, 0), (given, len(SHAPES))):
    tx = made(rules).tx
    jax.eval_shape(tx.update, random(1), tx.init(random()), random())
    assert len(waited) == times
  # Every parameter waits for all.
  assert all(len(before) == len(SHAPES) for _, before in waited)
  _, together = stepped(made(given))
  _, alone = stepped(made({k: given[k] for k in ("mlp", "*")}))
  for path in (UP, SCALE, "embed/tokens"):
    close(together[path], alone[path])


def test_momentum_in_another_type():
  found = made("hetero", momentum_dtype=jnp.bfloat16)
  state = found.tx.init(random())
  traces = optax.tree.get_all_with_path(state, "trace")
  leaves = jax.tree.leaves([trace for _, trace in traces])
  assert len(leaves) == 3
  assert all(leaf.dtype == jnp.bfloat16 for leaf in leaves)


def test_checked_finds_parameters_that_were_not_projected():
  found = made({UP: "oblique", "*": "adamw"}, checked=True)

  def update(params):
    jax.block_until_ready(
      jax.jit(found.tx.update)(random(1), found.tx.init(params), params)
    )
    jax.effects_barrier()

  update(found.project(random())[0])
  with pytest.raises(Exception, match=f"'{UP}' is off the manifold oblique"):
    update(random())

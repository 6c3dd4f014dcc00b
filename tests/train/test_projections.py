"""All projections at once are each projection alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import roles
from geom.linalg import exact_triplets
from geom.probes.continuity import adjacent_cosines
from geom.probes.heads import head_cosines, split
from geom.train import projections
from geom.train.assignments import say_table
from geom.train.state import new_state

RNG = np.random.default_rng(0)
SHAPES = {
  "attention/qkv": (3, 8, 24),
  "attention/o": (3, 8, 8),
  "mlp/down": (3, 12, 8),
}
HEADS = {"q": 2, "v": 2, "o": 2}
HOW = {
  "names": ("cosines", "flattened", "dominance"),
  "stacks": ("weights", "folded", "gradients", "updates"),
  "method": "gram",
  "k": 2,
}


def tree():
  out = {"blocks": {"attention": {}, "mlp": {}}, "embed": {}}
  for path, shape in SHAPES.items():
    module, projection = path.split("/")
    kernel = jnp.asarray(RNG.normal(size=shape), jnp.float32)
    out["blocks"][module][projection] = {"kernel": kernel}
  out["embed"]["tokens"] = jnp.ones((5, 8))
  gain = jnp.asarray(RNG.uniform(0.1, 2, size=(3, 8)), jnp.float32)
  out["blocks"]["attention_norm"] = {"scale": gain}
  return out


@pytest.fixture(scope="module")
def taken():
  start, now, grads = tree(), tree(), tree()
  reference = projections.reference_of(start, {"probe": HOW})
  state = new_state(now, optax.sgd(0.1), reference)
  probe = projections.make_probe(
    lambda params: (grads, {"beside": 7.0}), heads=HEADS, **HOW
  )
  numbers, after = jax.jit(probe)(state)
  return start, now, grads, numbers, after


def test_fused_kernels_are_taken_apart(taken):
  _, now, *_ = taken
  found = roles.projections(now)
  assert list(found) == ["o", "q", "k", "v", "down"]
  fused = now["blocks"]["attention"]["qkv"]["kernel"]
  for i, name in enumerate("qkv"):
    np.testing.assert_array_equal(found[name], fused[..., 8 * i : 8 * i + 8])


@pytest.mark.parametrize("projection", ["q", "v", "down"])
def test_numbers_are_those_of_the_stack_alone(taken, projection):
  start, now, grads, numbers, _ = taken
  start, now, grads = (
    roles.projections(x)[projection] for x in (start, now, grads)
  )
  for name, stack in (
    ("weights", now),
    ("gradients", grads),
    ("updates", now - start),
  ):
    triplets = exact_triplets(stack, 2)
    wanted = adjacent_cosines(triplets)
    of = f"{projection}/{name}"
    for side in ("cos_input", "cos_output"):
      np.testing.assert_allclose(
        numbers[f"{of}/{side}"], getattr(wanted, side), atol=1e-4
      )
    np.testing.assert_allclose(
      numbers[f"{of}/sigma_1"], triplets.values[..., 0], rtol=1e-5
    )
  np.testing.assert_allclose(
    numbers[f"{projection}/dominance/frobenius"],
    jnp.linalg.norm(now - start, axis=(1, 2))
    / jnp.linalg.norm(start, axis=(1, 2)),
    rtol=1e-5,
  )
  assert numbers["beside"] == 7


def test_folded_kernels_have_the_gain_of_the_norm_before_them(taken):
  _, now, _, numbers, _ = taken
  gain = now["blocks"]["attention_norm"]["scale"]
  kernels = roles.projections(now)
  folded = roles.folded(now)
  np.testing.assert_allclose(
    folded["k"][1], jnp.diag(gain[1]) @ kernels["k"][1], rtol=1e-5
  )
  for name in ("o", "down"):  # No norm before them.
    np.testing.assert_array_equal(folded[name], kernels[name])
  wanted = adjacent_cosines(exact_triplets(folded["k"], 2))
  np.testing.assert_allclose(
    numbers["k/folded/cos_input"], wanted.cos_input, atol=1e-4
  )


@pytest.mark.parametrize("projection", HEADS)
@pytest.mark.parametrize("stack", ["weights", "gradients"])
def test_heads_are_slices_of_each_projection(taken, projection, stack):
  _, now, grads, numbers, _ = taken
  kernel = roles.projections(now if stack == "weights" else grads)[projection]
  axis = "in" if projection == "o" else "out"
  slices = split(kernel, HEADS[projection], axis)
  triplets = exact_triplets(slices, 2)
  for side in ("input", "output"):
    for way, wanted in head_cosines(triplets, side).items():
      key = f"{projection}/heads/{stack}/{way}_{side}"
      np.testing.assert_allclose(numbers[key], wanted, atol=1e-4)
      mean = float(numbers[f"{key}_mean"])
      assert mean == pytest.approx(float(jnp.mean(wanted)), abs=1e-4)
  assert f"k/heads/{stack}/best_input" not in numbers


def test_the_reference_stays_what_it_was(taken):
  start, *_, after = taken
  for name, stack in roles.projections(start).items():
    np.testing.assert_array_equal(after[name]["weights"], stack)


def test_a_table_is_said_once_and_kept(tmp_path, capsys):
  say_table([], "arm", tmp_path)
  say_table([], "arm", tmp_path)
  assert capsys.readouterr().err.count("arm:") == 1
  assert (tmp_path / "assignments" / "arm.txt").exists()

"""Probes of a training state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from geom import roles
from geom.models.resmlp import resmlp
from geom.optim import observe
from geom.probes import suite
from geom.train import probing
from geom.train.state import new_state
from geom.train.step import make_step

MODEL = resmlp(width=12, depth=3, inputs=6, outputs=4)
RNG = np.random.default_rng(0)
BATCH = {
  "x": jnp.asarray(RNG.normal(size=(16, 6)), jnp.float32),
  "y": jnp.asarray(RNG.integers(0, 4, size=16)),
}


def loss(params, batch):
  logits, _ = MODEL.apply(params, batch["x"])
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
  return losses.mean(), {}


def hidden(params):
  return roles.stacks(params)["hidden"]


TX = optax.chain(
  observe.sum_of("gradient_sum", hidden),
  optax.adam(1e-2),
  observe.last("optimizer_updates", hidden),
)


def gradients(params):
  return jax.grad(loss, has_aux=True)(params, BATCH)[0], {"beside": 7.0}


@pytest.fixture(scope="module")
def states():
  """At steps 0 to 3."""
  params = MODEL.init(jax.random.key(0))
  how = {"names": ("drift",), "method": "gram"}
  sections = {"probe": how, "full_probe": how}
  reference = probing.reference_of(params, "hidden", sections)
  state, step = new_state(params, TX, reference), jax.jit(make_step(loss, TX))
  states = [state]
  for _ in range(3):
    state, _ = step(state, BATCH)
    states.append(state)
  return states


def probe(state, names=("cosines",), method="gram", k=2, **more):
  taken = probing.make_probe(
    gradients, "hidden", names=names, method=method, k=k, **more
  )
  return jax.jit(taken)(state)


def test_stacks_are_what_they_are_called(states):
  numbers, _ = probe(states[3], stacks=probing.STACKS, names=("flattened",))
  grads, _ = gradients(states[3].params)
  before = [gradients(s.params)[0] for s in states[:3]]
  wanted = {
    "weights": hidden(states[3].params),
    "gradients": hidden(grads),
    "updates": hidden(states[3].params) - hidden(states[0].params),
    "gradient_sum": sum(hidden(g) for g in before),
    "optimizer_updates": hidden(states[3].params) - hidden(states[2].params),
  }
  for name, stack in wanted.items():
    expected = suite.flattened(suite.decompose({name: stack}, k=2))
    key = f"{name}/flattened_cosine"
    np.testing.assert_allclose(numbers[key], expected[key], atol=2e-3)
  assert numbers["beside"] == 7


def test_gradients_are_not_taken_if_nobody_asks(states):
  def fails(params):
    raise AssertionError("gradients were taken")

  taken = probing.make_probe(
    fails, "hidden", names=("cosines",), stacks=("weights",),
    method="gram", k=2,
  )  # fmt: skip
  numbers, _ = taken(states[1])
  assert "beside" not in numbers


def test_dominance_is_of_the_weights_at_step_0(states):
  numbers, _ = probe(states[3], stacks=("updates",), names=("dominance",))
  start, now = hidden(states[0].params), hidden(states[3].params)
  expected = np.linalg.norm(now - start, 2, (1, 2)) / np.linalg.norm(
    start, 2, (1, 2)
  )
  np.testing.assert_allclose(numbers["dominance/spectral"], expected, rtol=1e-4)


def test_drift_is_since_the_probe_before(states):
  how = {"stacks": ("weights",), "names": ("drift",)}
  first, reference = probe(states[2], **how)
  again, _ = probe(states[2]._replace(reference=reference), **how)
  assert (first["drift/input"] > 1e-3).all()
  assert (again["drift/input"] < 1e-3).all()
  # Each probe has its own.
  state = states[2]._replace(reference=reference)
  other, _ = probe(state, name="full_probe", **how)
  np.testing.assert_array_equal(other["drift/input"], first["drift/input"])


def test_only_drift_moves_what_drift_is_measured_from(states):
  _, reference = probe(states[2], stacks=("weights",))
  jax.tree.map(np.testing.assert_array_equal, reference, states[2].reference)


@pytest.mark.parametrize(
  "changes, said",
  [
    ({"names": ("dominance",)}, "dominance needs updates"),
    ({"names": ("drift",), "stacks": ("updates",)}, "drift needs weights"),
    ({"names": ("transfer",)}, "needs updates or gradient_sum too"),
    ({"names": ("ranks",)}, "ranks needs the whole spectrum"),
    ({"names": ("aligned",)}, "aligned needs the whole spectrum"),
    ({"stacks": ()}, "probes cosines need stacks"),
    ({"method": "power"}, "'power' is none of gram, svd, warm"),
    ({"method": "warm", "k": None}, r"warm takes k in 2\.\.16, got None"),
    ({"method": "warm", "k": 17}, r"warm takes k in 2\.\.16, got 17"),
  ],
)
def test_what_cannot_be_taken_is_refused(changes, said):
  how = {
    "names": ("cosines",),
    "stacks": ("weights",),
    "method": "gram",
    "k": 2,
  }
  probing.require(**how)
  with pytest.raises(ValueError, match=said):
    probing.require(**{**how, **changes})


WARM = {
  "names": ("cosines", "dominance"),
  "stacks": ("weights", "updates"),
  "method": "warm",
  "k": 2,
}


def with_warm(state, *names):
  """The state with the reference of warm probes of those names."""
  params = MODEL.init(jax.random.key(0))
  sections = {name: WARM for name in names}
  reference = probing.reference_of(params, "hidden", sections)
  return state._replace(reference=reference)


def test_warm_numbers_are_those_of_gram(states):
  state = with_warm(states[0], "probe")
  for step, now in enumerate(states):
    state = now._replace(reference=state.reference)
    numbers, reference = probe(state, **WARM)
    assert reference["warm"]["probe"].count == step + 1
    assert reference["warm"]["probe"].basis.shape == (2, 3, 12, 12)
    assert numbers["warm/exact"] >= numbers["warm/fell_back"]
    expected, _ = probe(state, **{**WARM, "method": "gram"})
    for key, value in expected.items():
      np.testing.assert_allclose(numbers[key], value, atol=2e-3, err_msg=key)
    state = state._replace(reference=reference)
  assert numbers["warm/residual"] < 1e-3


def test_each_warm_probe_has_its_own(states):
  state = with_warm(states[2], "probe", "full_probe")
  _, reference = probe(state, name="full_probe", **WARM)
  assert reference["warm"]["full_probe"].count == 1
  jax.tree.map(
    np.testing.assert_array_equal,
    reference["warm"]["probe"],
    state.reference["warm"]["probe"],
  )


def test_without_warm_the_reference_is_what_it_was(states):
  assert states[0].reference["warm"] == {}
  params = MODEL.init(jax.random.key(0))
  assert probing.reference_of(params, "hidden")["before"] == {}


def test_the_reference_holds_no_array_twice():
  params = MODEL.init(jax.random.key(0))
  sections = {"probe": WARM, "full_probe": WARM}
  reference = probing.reference_of(params, "hidden", sections)
  leaves = jax.tree.leaves(reference)
  pointers = {x.unsafe_buffer_pointer() for x in leaves}
  assert len(pointers) == len(leaves)
  assert all(isinstance(x, jnp.ndarray) for x in leaves)


def test_measuring_again_keeps_the_start_of_the_run():
  params = MODEL.init(jax.random.key(0))
  other = MODEL.init(jax.random.key(1))
  new, saved = (probing.reference_of(p, "hidden") for p in (params, other))
  found = probing.with_start(new, saved)
  for key in ("weights", "sigma_1"):
    np.testing.assert_array_equal(found[key], saved[key])
  assert found["before"] is new["before"] and found.keys() == new.keys()


@pytest.mark.parametrize("method", ["gram", "warm"])
def test_nothing_is_measured_of_no_stacks(method):
  how = {"names": (), "stacks": (), "method": method, "k": 2}
  probing.require(**how)
  weights = jnp.asarray(RNG.normal(size=(3, 4, 4)), jnp.float32)
  reference = probing.reference_of_stack(weights, {"probe": how})
  names, k = how["names"], how["k"]
  numbers, after = probing.of_stacks(
    {}, reference, names=names, method=method, k=k, name="probe"
  )
  assert numbers == {}
  assert after == reference

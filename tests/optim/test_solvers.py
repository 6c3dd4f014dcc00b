"""geom.optim.solvers: directions that are tangent, long enough and good."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geom import manifolds as mf
from geom.optim import solvers
from geom.optim.solvers import quality, solve

MANIFOLDS = {
  "euclidean": mf.euclidean(),
  "stiefel": mf.stiefel(),
  "dgram": mf.dgram(),
  "oblique": mf.oblique(),
}
SOLVERS = {name: make() for name, make in solvers.SOLVERS.items()}
MOSTLY_SLOW = [
  "auto",
  *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in SOLVERS
    if name != "auto"
  ),
]
SCALE_FREE = [name for name in SOLVERS if name != "dual_ascent"]
SHAPES = [(48, 48), (64, 48), (96, 48), (96, 24)]
SPECTRA = (
  "gaussian",
  "power",
  "steep",
  "exponential",
  "rank one",
  "low rank",
  "two levels",
  "normal",
)


@functools.cache
def compiled(solver, manifold):
  made = SOLVERS[solver], MANIFOLDS[manifold]
  return jax.jit(lambda w, g: solve(*made, w, g))


@functools.cache
def measured(manifold):
  return jax.jit(functools.partial(quality, MANIFOLDS[manifold]))


def orthonormal(rng, m, n):
  return np.linalg.qr(rng.standard_normal((m, n)))[0]


def gradient(rng, w, spectrum):
  m, n = w.shape
  if spectrum == "gaussian":
    return rng.standard_normal((m, n))
  if spectrum == "normal":
    s = rng.standard_normal((n, n))
    s = w @ (s + s.T)
    noise = rng.standard_normal((m, n))
    return s + 1e-3 * np.linalg.norm(s) / np.linalg.norm(noise) * noise
  i = np.arange(n)
  values = {
    "power": (i + 1.0) ** -1,
    "steep": (i + 1.0) ** -2,
    "exponential": np.exp(-i / (n / 12)),
    "rank one": 1.0 * (i < 1),
    "low rank": 1.0 * (i < max(1, n // 24)),
    "two levels": np.where(i < n // 4, 1, 0.01),
  }[spectrum]
  return orthonormal(rng, m, n) * values @ orthonormal(rng, n, n).T


def weights(rng, manifold, shape, spread=1):
  """On the manifold; of dgram with columns of that spread."""
  if manifold in ("euclidean", "oblique"):
    w = rng.standard_normal(shape)
    return w / np.linalg.norm(w, axis=0)
  w = orthonormal(rng, *shape)
  if manifold == "dgram":
    w = w * np.exp(rng.uniform(0, np.log(spread), shape[1]))
  return w


@functools.cache
def pairs(manifold, shape, spread=1, spectra=SPECTRA, seed=0):
  """A stack of weights, and one of gradients of those spectra, in float64."""
  rng = np.random.default_rng([seed, *shape])
  w = [weights(rng, manifold, shape, spread) for _ in spectra]
  g = [gradient(rng, *x) for x in zip(w, spectra, strict=True)]
  return np.stack(w), np.stack([x / np.linalg.norm(x) for x in g])


def f32(*arrays):
  return tuple(jnp.asarray(x, jnp.float32) for x in arrays)


def directions(solver, manifold, w, g):
  return np.asarray(compiled(solver, manifold)(*f32(w, g)), np.float64)


# In float64.


def tangent64(manifold, w, a):
  if manifold == "euclidean":
    return a
  d = np.linalg.norm(w, axis=0)
  s = w.T @ a + a.T @ w
  if manifold == "stiefel":
    return a - w @ s / 2
  if manifold == "oblique":
    return a - w * np.sum(w * a, axis=0) / d**2
  x = s / (2 * (d[:, None] ** 2 + d**2))
  return a - 2 * w @ (x - np.diag(np.diag(x)))


def nuclear(a):
  return np.linalg.svd(a, compute_uv=False).sum()


def quality64(manifold, w, g, a):
  a_t = tangent64(manifold, w, a)
  tangency = np.linalg.norm(a - a_t) / np.linalg.norm(a)
  best = max(1, np.linalg.norm(a_t, 2)) * nuclear(tangent64(manifold, w, g))
  return tangency, np.sum(g * a_t) / best, np.linalg.norm(a, 2)


def optimum64(manifold, w, g, rounds=60):
  """The least `||G + 2 W X||_*`, by reweighting with a line search."""

  def gram(s):
    return s if manifold == "stiefel" else s - np.diag(np.diag(s))

  k = w.T @ w
  d = np.diag(k)
  x = -gram(w.T @ g + g.T @ w) / (2 * (d[:, None] + d))
  best = nuclear(g + 2 * w @ x)
  for i in range(rounds):
    u, s, v_t = np.linalg.svd(g + 2 * w @ x, full_matrices=False)
    eps = max(1e-3 * 0.7**i, 1e-8) * s[0]
    y = 1 / np.sqrt(s**2 + eps**2)
    z = w.T @ (u * (s * y)) @ v_t
    y = (v_t.T * y) @ v_t
    pre = d[:, None] * np.diag(y) + np.diag(y)[:, None] * d
    e, r = np.zeros_like(x), -gram(z + z.T) / 2
    p = q = r / pre
    for _ in range(40):
      kp = k @ p @ y
      kp = gram(kp + kp.T)
      step = np.sum(r * q) / np.sum(p * kp)
      e, r, before = e + step * p, r - step * kp, np.sum(r * q)
      q = r / pre
      p = q + np.sum(r * q) / before * p
      if np.linalg.norm(r) < 1e-3 * np.linalg.norm(z):
        break
    t = 1.0
    while t > 1e-3 and nuclear(g + 2 * w @ (x + t * e)) > best:
      t /= 2
    new = nuclear(g + 2 * w @ (x + t * e))
    if new < best:
      x = x + t * e
    if i > 10 and new > best * (1 - 1e-6):
      break
    best = min(best, new)
  return best


def gap(manifold, w, g, a, best):
  """Of the tangent part, made no longer than 1."""
  a_t = tangent64(manifold, w, a)
  return 1 - np.sum(g * a_t) / max(1, np.linalg.norm(a_t, 2)) / best


# What a direction is measured by.


@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_quality_is_that_of_float64(manifold):
  w, g = pairs(manifold, (12, 8), 5)
  a = np.random.default_rng(0).standard_normal(w.shape) / 3
  for scale in (1e-30, 1, 1e30):
    found = measured(manifold)(*f32(w, scale * g, a))
    wanted = [quality64(manifold, *x) for x in zip(w, g, a, strict=True)]
    for mine, exact in zip(found, np.transpose(wanted), strict=True):
      np.testing.assert_allclose(mine, exact, rtol=1e-3, atol=1e-5)


# Every solver.


@pytest.mark.parametrize("manifold", ["stiefel", "dgram"])
@pytest.mark.parametrize("solver", ["irls", "irls_clip", "projected"])
def test_no_direction_is_longer_than_one(solver, manifold):
  w, g = pairs(manifold, (64, 48), 5)
  a = directions(solver, manifold, w, g)
  assert np.linalg.norm(a, 2, axis=(1, 2)).max() < 1.01
  for one in zip(w, g, a, strict=True):
    assert quality64(manifold, *one)[1] > 0


@pytest.mark.parametrize(
  "manifold, shape",
  [
    *(("dgram", shape) for shape in SHAPES),
    ("stiefel", (64, 48)),
    ("oblique", (48, 48)),
  ],
)
def test_auto_is_tangent(manifold, shape):
  for spread in (1, 5, 30) if manifold == "dgram" else (1,):
    w, g = pairs(manifold, shape, spread)
    a = directions("auto", manifold, w, g)
    for spectrum, *one in zip(SPECTRA, w, g, a, strict=True):
      tangency, _, norm = quality64(manifold, *one)
      assert norm < 1.01, (spread, spectrum)
      assert tangency < 0.025, (spread, spectrum)


def test_auto_is_msign_without_a_constraint():
  w, g = pairs("euclidean", (12, 8), spectra=("gaussian",) * 3)
  u, _, v_t = np.linalg.svd(g, full_matrices=False)
  np.testing.assert_allclose(
    directions("auto", "euclidean", w, g), u @ v_t, atol=1e-4
  )


@pytest.mark.parametrize("n", [3, 5, 48])
def test_auto_of_square_stiefel_is_the_closed_form(n):
  """Odd too, where the skew part that is tangent has a null space."""
  w, g = pairs("stiefel", (n, n))
  a = directions("auto", "stiefel", w, g)
  for one in zip(w, g, a, strict=True):
    tangency, alignment, norm = quality64("stiefel", *one)
    assert tangency < 1e-4
    assert norm < 1 + 1e-5
    assert alignment > 1 - 1e-3


@pytest.mark.parametrize("manifold", ["dgram", "stiefel"])
def test_auto_is_nearer_to_the_optimum_than_dual_ascent(manifold):
  spectra = ("power", "steep", "exponential", "low rank") * 2
  w, g = pairs(manifold, (32, 24), 5, spectra, seed=1)
  gaps = []
  for solver in ("auto", "dual_ascent"):
    a = directions(solver, manifold, w, g)
    gaps.append(
      [
        gap(manifold, *one, optimum64(manifold, *one[:2]))
        for one in zip(w, g, a, strict=True)
      ]
    )
  assert np.all(np.array(gaps) > -1e-3)
  assert np.median(np.divide(*gaps)) < 0.65


@pytest.mark.parametrize("solver", SCALE_FREE)
@pytest.mark.parametrize("manifold", ["dgram"])
def test_the_scale_of_gradients_does_not_matter(manifold, solver):
  """Each of a stack has its own."""
  w, g = pairs(manifold, (24, 16), 5, ("power",))
  scales = np.array([1, 1e-30, 1e-8, 1e-3, 1e3, 1e6, 1e30])[:, None, None]
  w = np.repeat(w, len(scales), axis=0)
  a = directions(solver, manifold, w, scales * g)
  np.testing.assert_allclose(a, a[:1].repeat(len(a), 0), atol=2e-3)
  tangency, alignment, _ = measured(manifold)(*f32(w, g.repeat(len(a), 0), a))
  np.testing.assert_allclose(tangency, tangency[0], rtol=0.05, atol=1e-5)
  np.testing.assert_allclose(1 - alignment, 1 - alignment[0], rtol=0.05)


@pytest.mark.parametrize("solver", SCALE_FREE)
def test_the_scale_of_a_cone_does_not_matter(solver):
  w, g = pairs("dgram", (24, 16), 5, ("power",) * 3)
  one = directions(solver, "dgram", w, g)
  scaled = directions(solver, "dgram", w * [[[1]], [[5.3]], [[30]]], g)
  both = [measured("dgram")(*f32(w, g, a)) for a in (one, scaled)]
  np.testing.assert_allclose(both[0].tangency, both[1].tangency, rtol=0.05)
  np.testing.assert_allclose(
    1 - both[0].alignment, 1 - both[1].alignment, rtol=0.05
  )


@pytest.mark.parametrize(
  "solver, manifold, tolerance",
  [
    ("auto", "stiefel", 1e-6),
    ("auto", "dgram", 1e-6),
    ("projected", "dgram", 5e-6),
    # Conjugate gradients stop where they are near enough.
    ("irls_clip", "dgram", 1e-4),
  ],
)
def test_a_stack_is_its_matrices(solver, manifold, tolerance):
  w, g = pairs(manifold, (12, 8), 5, ("gaussian",) * 3)
  g = g * np.array([1, 1e-3, 1e3])[:, None, None]
  a = directions(solver, manifold, w, g)
  for i in range(3):
    alone = directions(solver, manifold, w[i : i + 1], g[i : i + 1])
    np.testing.assert_allclose(a[i], alone[0], atol=tolerance)


@pytest.mark.parametrize("solver", MOSTLY_SLOW)
def test_a_wide_matrix_is_its_transpose(solver):
  w, g = pairs("dgram", (12, 8), 5, ("gaussian",) * 3)
  wide = directions(solver, "dgram", w.swapaxes(1, 2), g.swapaxes(1, 2))
  np.testing.assert_allclose(
    wide.swapaxes(1, 2), directions(solver, "dgram", w, g), atol=1e-6
  )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("manifold", ["dgram"])
def test_zero_gives_zero_and_a_nan_is_seen_in_its_matrix(manifold, solver):
  w, g = pairs(manifold, (12, 8), 5, ("gaussian",) * 3)
  sound = directions(solver, manifold, w, g)
  zero = directions(solver, manifold, w, g * [[[1]], [[0]], [[1]]])
  np.testing.assert_array_equal(zero[1], 0)
  for bad in (np.nan, np.inf):
    for broken in ("w", "g"):
      x = {"w": w.copy(), "g": g.copy()}
      x[broken][1, 11, 7] = bad
      a = directions(solver, manifold, **x)
      assert np.isnan(a[1]).all()
      np.testing.assert_allclose(a[::2], sound[::2], atol=1e-6)


@pytest.mark.parametrize("solver", SCALE_FREE)
@pytest.mark.parametrize("manifold", ["dgram", "oblique"])
def test_a_gradient_normal_to_the_manifold_gives_zero(manifold, solver):
  w, _ = pairs(manifold, (12, 8), 5, ("gaussian",) * 3)
  s = np.random.default_rng(0).standard_normal((8, 8))
  s = np.asarray(MANIFOLDS[manifold].gram(*f32(s + s.T)))
  np.testing.assert_array_equal(directions(solver, manifold, w, w @ s), 0)


def test_auto_starts_from_where_the_gradient_says_something():
  """From G of low rank; from G_T where the normal part of G outweighs it."""
  (w,), (low_rank,) = pairs("dgram", (96, 24), 1, ("rank one",))
  _, (power,) = pairs("dgram", (96, 24), 1, ("power",))
  s = np.random.default_rng(0).standard_normal((24, 24))
  normal = w @ (s + s.T - np.diag(2 * np.diag(s)))
  mixed = 0.1 * power + normal / np.linalg.norm(normal)
  w, g = np.stack([w, w]), np.stack([low_rank, mixed])
  a = directions("auto", "dgram", w, g)
  gaps = [
    gap("dgram", *one, optimum64("dgram", *one[:2]))
    for one in zip(w, g, a, strict=True)
  ]
  assert np.max(gaps) < 0.1


# One by one.


def test_dual_ascent_is_the_algorithm_of_the_paper():
  """With an exact polar factor in place of msign."""
  iterations, alpha, tolerance = 20, 0.1, 1e-6
  solver = solvers.dual_ascent(dtype=jnp.float32)
  for name in ("stiefel", "dgram"):
    w, g = pairs(name, (12, 8), 2, ("gaussian", "power"))
    found = solve(solver, MANIFOLDS[name], *f32(w, g))
    for w1, g1, mine in zip(w, g, found, strict=True):

      def project(s, name=name):
        return s if name == "stiefel" else s - np.diag(np.diag(s))

      x = -project(w1.T @ g1 + g1.T @ w1) / 4
      for k in range(iterations):
        u, _, v_t = np.linalg.svd(g1 + 2 * w1 @ x, full_matrices=False)
        a = u @ v_t
        h = project(w1.T @ a + a.T @ w1)
        if np.sqrt(np.mean(h**2)) >= tolerance:
          x = x - alpha * (1 - k / iterations) * h
      np.testing.assert_allclose(mine, a, atol=2e-3)


def test_dual_ascent_stays_where_it_is_tangent():
  w, g = pairs("stiefel", (8, 8), 1, ("gaussian",))
  exact = solvers.dual_ascent(dtype=jnp.float32, tolerance=1e-4, alpha=100.0)
  a = np.asarray(solve(exact, mf.stiefel(), *f32(w, g)), np.float64)
  np.testing.assert_allclose(a, directions("auto", "stiefel", w, g), atol=1e-4)


@pytest.mark.slow
def test_irls_lowers_the_dual():
  """Every round leaves a multiplier with less of it: a smaller gap."""
  w, g = pairs("dgram", (32, 24), 5, ("power", "exponential", "gaussian"))
  best = [optimum64("dgram", *x) for x in zip(w, g, strict=True)]
  gaps = []
  for rounds in (1, 3, 8):
    a = solve(solvers.irls(rounds=rounds), mf.dgram(), *f32(w, g))
    a = np.asarray(a, np.float64)
    gaps.append([gap("dgram", *x) for x in zip(w, g, a, best, strict=True)])
  assert np.all(np.diff(gaps, axis=0) < 0)
  assert np.max(gaps[-1]) < 0.1


@pytest.mark.parametrize("solver", MOSTLY_SLOW)
@pytest.mark.parametrize("shape", [(1, 5), (1, 1), (6, 5)])
def test_small_shapes(solver, shape):
  for manifold in ("stiefel", "dgram"):
    tall = max(shape), min(shape)
    w, g = pairs(manifold, tall, 2, ("gaussian",))
    if shape != tall:
      w, g = w.swapaxes(1, 2), g.swapaxes(1, 2)
    a = directions(solver, manifold, w, g)
    assert a.shape == (1, *shape)
    assert np.isfinite(a).all()
    if shape == (1, 1):
      # A sphere of two points has no tangent; a line is one.
      wanted = 0 if manifold == "stiefel" else np.sign(g)
      if solver != "dual_ascent":
        np.testing.assert_allclose(a, wanted, atol=0.01)


@pytest.mark.parametrize("solver", MOSTLY_SLOW)
def test_types_stay_and_empty_stacks_stay_empty(solver):
  w, g = f32(*pairs("dgram", (12, 8), 2, ("gaussian",)))
  half = compiled(solver, "dgram")(w, g.astype(jnp.bfloat16))
  assert half.dtype == jnp.bfloat16
  none = jnp.zeros((0, 12, 8))
  assert solve(SOLVERS[solver], mf.dgram(), none, none).shape == none.shape


def test_shapes_that_differ_are_refused():
  # By name by ourselves; before that by the types that tests check.
  with pytest.raises((ValueError, TypeError), match=r"shapes differ|'g'"):
    solve(SOLVERS["auto"], mf.dgram(), jnp.ones((3, 2)), jnp.ones((4, 2)))


ONE_DEVICE = """
import jax
from geom import manifolds
from geom.optim import solvers
from geom.optim.manifold_muon import manifold_muon, project

shapes = {"a": (4, 48, 32), "b": (3, 40, 40)}
params = {
  name: jax.random.normal(jax.random.key(0), shape)
  for name, shape in shapes.items()
}
manifold = manifolds.dgram("sorted_svd")
params, _ = project(params, manifold)
tx = manifold_muon(0.01, manifold, solver=solvers.irls(rounds=2))
state, update = tx.init(params), jax.jit(tx.update)
for _ in range(5):
  updates, state = update(params, state, params)
  jax.block_until_ready(updates)
print("done")
"""


def test_lapack_for_several_parameters_does_not_hang_on_one_device(run_python):
  done = run_python("-c", ONE_DEVICE, timeout=100, JAX_PLATFORMS="cpu")
  assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("values", [[1, 0, 0], [3, 2, 1], [1, 1, 1]])
def test_the_spectral_norm_is_from_below_and_near(values):
  rng = np.random.default_rng(0)
  a = orthonormal(rng, 9, 3) * np.array(values) @ orthonormal(rng, 3, 3).T
  found = solvers.spectral_norm(*f32(a))
  assert 0.98 * values[0] < found < values[0] * (1 + 1e-5)
  assert solvers.spectral_norm(jnp.zeros((2, 3, 2))).tolist() == [0, 0]

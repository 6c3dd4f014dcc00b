"""Manifold Muon in the experiment on the residual MLP, at a tiny size."""

import jax
import numpy as np
import pytest

from experiments import continuity_mlp, continuity_optim
from geom import config as cfg
from geom import record, roles
from geom.models.resmlp import resmlp

TINY = (
  ("model.width", "8"), ("model.depth", "2"), ("train.num_steps", "2"),
  ("eval.every", "none"), ("probe.names", "()"), ("full_probe.names", "()"),
  ("seeds", "0,1"),
)  # fmt: skip


def tiny(mlp):
  config = cfg.load("configs/resmlp.py:stiefel")
  overrides = (*TINY, ("conditions.stiefel.optim.assignment.mlp", mlp))
  for path, text in overrides:
    cfg.override(config, path, text)
  return continuity_mlp.check(config)


# A config in the same workdir is refused earlier; the checkpoint is the last
# to know. In a plain process: the experiment gives numpy where types say jax.
SCRIPT = """
import pathlib, runpy, sys
from experiments import continuity_mlp
from geom.data import fetch
from geom.train.checkpoint import ResumeError

tiny = runpy.run_path("tests/test_continuity_optim.py")["tiny"]
continuity_mlp.report = lambda workdir: {}
for mlp in ("stiefel", "stiefel", "oblique"):
  print("run", mlp, file=sys.stderr)
  try:
    continuity_mlp.run(
      tiny(mlp),
      workdir=pathlib.Path(sys.argv[1]),
      data_dir=fetch.data_dir(None),
      profile=False,
    )
  except ResumeError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_run_under_another_assignment_is_not_resumed(run_python, tmp_path):
  done = run_python("-c", SCRIPT, tmp_path)
  assert done.returncode == 0, done.stderr
  _, first, again, other = done.stderr.split("run ")
  table = (tmp_path / "assignments" / "stiefel.txt").read_text()
  assert "hidden/kernel  (2, 8, 8)  mlp/hidden   stiefel   (8, 8)" in table
  assert table in first  # Said once.
  assert table not in again and "done before" in again
  assert "is of another run" in done.stdout and "done before" not in other
  assert (
    "run.assignment.hidden/kernel.manifold ('stiefel' there, 'oblique' now)"
    in done.stdout
  )

  # What was moved before step 0 is on file.
  rows = record.read(tmp_path / "metrics.jsonl")
  moved = [row for row in rows if row.get("event") == "projected"]
  assert [(row["seed"], row["step"]) for row in moved] == [(0, 0), (1, 0)]
  init = resmlp(width=8, depth=2).init
  for row in moved:
    kernel = init(jax.random.key(row["seed"]))["hidden"]["kernel"]
    s = np.linalg.svd(np.asarray(kernel), compute_uv=False)
    off = np.sqrt(np.sum((s - 1) ** 2, -1) / np.sum(s**2, -1))
    np.testing.assert_allclose(
      row["moved/hidden/kernel"], np.max(off), rtol=1e-4
    )


def test_nothing_decays_and_nothing_is_clipped():
  config = tiny("stiefel")
  change = config["conditions"]["stiefel"]
  settings = {**config, "optim": {**config["optim"], **change["optim"]}}
  _, found = continuity_optim.optimizer(settings)
  for path, how in found.fingerprint.items():
    assert (how["weight_decay"], how["clip"]) == (0.0, None)
    muon = path == "hidden/kernel"
    assert how["lr"] == settings["optim"]["lr" if muon else "adam_lr"]
  assert found.fingerprint["head/kernel"]["betas"] == [0.9, 0.999]
  assert found.fingerprint["hidden/kernel"]["momentum"] == 0.95
  assert set(found.fingerprint) == set(
    roles.paths(jax.eval_shape(resmlp(width=8, depth=2).init,
                               jax.random.key(0)))
  )  # fmt: skip

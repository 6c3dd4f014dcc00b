"""Strict tests: eight CPU devices, shapes and types checked, warnings errors.

Warnings are made errors in pyproject.toml. What must hold with ONE device and
the default environment is tested in subprocesses; `run_python` starts them.
"""

import os
import pathlib
import subprocess
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Programs here run for a moment and are compiled for seconds: LLVM's level 0
# takes a third off the whole. Runs in subprocesses are compiled as users' are.
os.environ["XLA_FLAGS"] = (
  "--xla_backend_optimization_level=0 "
  + os.environ.get("XLA_FLAGS", "")
  + " --xla_force_host_platform_device_count=8"
)

import jax
import jaxtyping
import pytest
import threadpoolctl

# For libraries that a plugin of pytest has loaded before the line above.
threadpoolctl.threadpool_limits(1, user_api="blas")
jaxtyping.install_import_hook("geom", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")

ROOT = pathlib.Path(__file__).parents[1]


def plain_environment(**changes: str) -> dict[str, str]:
  """The environment of a user's shell: nothing that this conftest has set."""
  ours = ("XLA_FLAGS", "OPENBLAS_NUM_THREADS")
  kept = {k: v for k, v in os.environ.items() if k not in ours}
  return {**kept, **changes}


@pytest.fixture(scope="session")
def run_python():
  """Runs `python ARGS` in the project's root as a user would; returns it."""

  def run(*args: object, timeout: float = 120, **environment: str):
    return subprocess.run(
      [sys.executable, *map(str, args)],
      cwd=ROOT,
      env=plain_environment(**environment),
      capture_output=True,
      text=True,
      timeout=timeout,
      check=False,
    )

  return run

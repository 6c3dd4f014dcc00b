"""Freed memory stays in the process."""

import platform

import pytest

FAULTS = """
import resource
import numpy as np
from geom.train.memory import keep_freed_memory

assert keep_freed_memory()
def faults():
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  np.ones(2**21)  # 16 MB.
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
assert faults() < 100, faults()
"""


@pytest.mark.skipif(
  platform.libc_ver()[0] != "glibc", reason="there is no mallopt to tell"
)
def test_memory_is_not_asked_for_again(run_python):
  done = run_python("-c", FAULTS)
  assert done.returncode == 0, done.stderr

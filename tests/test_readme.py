"""What the README shows runs as it stands."""

import pathlib
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def path(tmp_path):
  """A file of weights, for what the README shows of those."""
  q = np.random.default_rng(0).standard_normal((20, 20), np.float32)
  tensors = {f"layers.{i}.self_attn.q_proj.weight": q for i in range(2)}
  save_file(tensors, tmp_path / "a.safetensors")
  return tmp_path / "a.safetensors"


def test_its_python_runs(capsys, path):
  blocks = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
  assert len(blocks) == 11
  kernels = jax.random.normal(jax.random.key(0), (4, 20, 30))
  names = {"kernels": kernels, "path": path}
  for block in blocks:
    exec(compile(block, "README.md", "exec"), names)
  assert "weights/effective_rank" in capsys.readouterr().out
  assert names["state"].step == 1


def test_its_links_lead_somewhere():
  for link in re.findall(r"\]\(([^)#:]+)\)", README):
    assert (pathlib.Path(__file__).parents[1] / link).exists(), link

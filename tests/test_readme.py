"""What the README shows runs as it stands."""

import pathlib
import re

import jax

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


def test_its_python_runs(capsys):
  blocks = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
  assert len(blocks) == 10
  kernels = jax.random.normal(jax.random.key(0), (4, 20, 30))
  names = {"kernels": kernels}
  for block in blocks:
    exec(compile(block, "README.md", "exec"), names)
  assert "weights/effective_rank" in capsys.readouterr().out
  assert names["state"].step == 1


def test_its_links_lead_somewhere():
  for link in re.findall(r"\]\(([^)#:]+)\)", README):
    assert (pathlib.Path(__file__).parents[1] / link).exists(), link

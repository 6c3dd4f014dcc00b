"""A model that others trained, against LAPACK in float64."""

import numpy as np
import pytest

from geom import record
from geom.data import fetch, smollm2
from geom.report import pretrained_rows as data
from geom.weights import families
from geom.weights.kernels import read_kernel
from geom.weights.opening import open_source

EXPECTED = {
  ("q", "input"): 0.42,
  ("k", "input"): 0.57,
  ("gate", "input"): 0.67,
  ("up", "input"): 0.39,
  ("o", "output"): 0.39,
  ("down", "output"): 0.76,
}


@pytest.mark.slow
def test_smollm2_by_every_kernel_s_svd(analyse):
  path = smollm2.prepare(fetch.data_dir(None))
  workdir = analyse(path, k=64, ks=(8, 64), workers=2)
  of = data.digest(record.read(workdir / "metrics.jsonl"))
  found = families.recognise(open_source(path))
  for p, stack in found.matrices.items():
    svds = [np.linalg.svd(np.float64(read_kernel(m)), False) for m in stack]
    for side in ("input", "output"):
      got = data.matrix(of, p, side)
      leads = np.array(
        [u[:, 0] if side == "input" else vt[0] for u, _, vt in svds]
      )
      clear = [i for i, (_, s, _) in enumerate(svds) if s[0] / s[1] > 1.05]
      exact = np.abs(leads @ leads.T)
      np.testing.assert_allclose(
        got[np.ix_(clear, clear)], exact[np.ix_(clear, clear)], atol=1e-4
      )
      mean = data.mean(data.adjacent(of, p, side))
      if (p, side) in EXPECTED:
        assert mean == pytest.approx(EXPECTED[p, side], abs=0.02)
      if p == "v":
        assert mean <= 0.10
    for row, (_, s, _) in zip(of.kernels[p], svds, strict=True):
      np.testing.assert_allclose(row["s"], s[:65], rtol=1e-4)

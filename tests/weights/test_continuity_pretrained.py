"""The analysis of a checkpoint, the whole way, against float64 SVDs."""

import json
import os
import shutil

import numpy as np
import pytest
import scipy.stats

from geom import record
from geom.config import ConfigError
from geom.report import pretrained_rows as data
from geom.train.checkpoint import ResumeError
from geom.train.stop import Stopped
from geom.weights import streaming
from geom.weights.source import SourceError

SIDES = {"q": "input", "k": "input", "v": "input", "gate": "input",
         "up": "input", "o": "output", "down": "output"}  # fmt: skip


def digest(workdir):
  return data.digest(record.read(workdir / "metrics.jsonl"))


def exact(made, p, side, gained=False):
  """|cos| of all pairs of layers, and s, by SVD in float64."""
  leads, values = [], []
  for i in range(made.layers):
    kernel = np.float64(made.kernels[p, i])
    if gained:
      key = "q+k+v" if p in "qkv" else "gate+up"
      kernel = np.float64(made.gains[key, i])[:, None] * kernel
    u, s, vt = np.linalg.svd(kernel)
    leads.append(u[:, 0] if side == "input" else vt[0])
    values.append(s)
  return np.abs(np.array(leads) @ np.array(leads).T), values


def everything(workdir):
  """What a report is made of, without times."""
  of = digest(workdir)
  kernels = {p: list(rows) for p, rows in of.kernels.items()}
  for rows in kernels.values():
    for row in rows:
      row.pop("version")
  shares = sorted(str(row) for rows in of.shares.values() for row in rows)
  return json.dumps([kernels, of.cosines, shares], sort_keys=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_number_against_float64(tmp_path, made, save, analyse, workers):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  of = digest(analyse(path, workers=workers))
  assert list(of.kernels) == ["q", "k", "v", "o", "gate", "up", "down"]
  for p, side in SIDES.items():
    assert of.sides[p] == side
    for on in ("input", "output"):
      cosines, values = exact(made, p, on)
      np.testing.assert_allclose(data.matrix(of, p, on), cosines, atol=1e-4)
      if p not in ("o", "down"):
        folded, _ = exact(made, p, on, gained=True)
        got = data.matrix(of, p, on, "folded_")
        np.testing.assert_allclose(got, folded, atol=1e-4)
    for row, s in zip(of.kernels[p], values, strict=True):
      np.testing.assert_allclose(row["s"], s[:9], rtol=1e-4)
      assert row["gap"] == pytest.approx(s[0] / s[1], rel=1e-4)
      share = s**2 / np.sum(s**2)
      assert row["rank"] == pytest.approx(
        np.exp(scipy.stats.entropy(share)), rel=1e-3
      )
      assert row["own"]["2"] == pytest.approx(share[:2].sum(), rel=1e-4)
  assert data.matrix(of, "o", "input", "folded_") is None


def test_the_report_has_its_tables_and_pictures(tmp_path, made, save, analyse):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  workdir = analyse(path, report=True)
  text = (workdir / "report.md").read_text()
  for name in ("pairs", "all_pairs", "depth", "sharing"):
    assert f"figures/{name}.png" in text
    assert (workdir / "figures" / f"{name}.png").stat().st_size > 5000
  cosines, _ = exact(made, "q", "input")
  mean = np.diagonal(cosines, 1).mean()
  line = next(x for x in text.splitlines() if x.startswith("| q | (32, 32)"))
  assert f"{mean:.2f} ±" in line
  assert "reproduce" in text and "NaN" not in text
  summary = record.read_json(workdir / "summary.json")
  assert summary["projections"]["q"]["cos_input"] == pytest.approx(
    mean, abs=1e-4
  )
  assert not (workdir / "vectors" / "q" / "sum.npz").exists()


@pytest.mark.parametrize("after", [1, 3, 4, 11, 34])
def test_an_analysis_that_was_broken_off_goes_on_to_the_same(
  tmp_path, made, save, analyse, monkeypatch, after
):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  whole = everything(analyse(path, "whole"))
  seen = 0
  measured = streaming._row

  def stopping(*args):
    nonlocal seen
    seen += 1
    if seen > after:
      raise Stopped("enough", 75)
    return measured(*args)

  monkeypatch.setattr(streaming, "_row", stopping)
  with pytest.raises(Stopped):
    analyse(path, "broken")
  monkeypatch.setattr(streaming, "_row", measured)
  again = []
  monkeypatch.setattr(
    streaming,
    "_row",
    lambda done, *more: again.append(done) or measured(done, *more),
  )
  assert everything(analyse(path, "broken")) == whole
  assert len(again) == 7 * made.layers - after


def test_what_is_whole_is_not_read_again(
  tmp_path, made, save, analyse, monkeypatch
):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  analyse(path)

  def never(*args):
    raise AssertionError("read again")

  monkeypatch.setattr(streaming, "_one", never)
  analyse(path)


@pytest.mark.parametrize(
  "name", ["layers.2.mlp.up_proj", "layers.1.input_layernorm"]
)
def test_other_weights_in_the_same_folder_are_refused(
  tmp_path, made, save, analyse, name
):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  analyse(path)
  tensors = made.tensors()
  tensors[f"model.{name}.weight"][-1] += 1
  save(path, tensors)
  with pytest.raises(ResumeError, match=name):
    analyse(path)


def test_a_file_that_was_cut_since_is_refused(tmp_path, made, save, analyse):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  workdir = analyse(path)
  before = everything(workdir)
  path.write_bytes(path.read_bytes()[:-2000])
  with pytest.raises(ResumeError, match="gone"):
    analyse(path)
  assert everything(workdir) == before


def test_a_copy_is_no_other_file(tmp_path, made, save, analyse, monkeypatch):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  analyse(path)
  os.utime(path, ns=(0, 0))
  monkeypatch.setattr(streaming, "_one", None)
  analyse(path)


def test_what_was_mended_is_measured(tmp_path, made, save, analyse):
  tensors = made.tensors()
  tensors["model.layers.1.self_attn.q_proj.weight"][3, 4] = np.nan
  tensors["model.layers.2.input_layernorm.weight"][0] = np.nan
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  analyse(path, "mended")
  save(path, made.tensors())
  whole = digest(analyse(path, "whole"))
  mended = digest(analyse(path, "mended"))
  assert mended.cosines == whole.cosines
  for key, rows in whole.shares.items():
    assert sorted(map(str, mended.shares[key])) == sorted(map(str, rows))


def test_what_stays_bad_is_not_read_again(
  tmp_path, made, save, analyse, monkeypatch
):
  tensors = made.tensors()
  tensors["model.layers.1.self_attn.q_proj.weight"][3, 4] = np.nan
  tensors["model.layers.2.input_layernorm.weight"][0] = np.nan
  del tensors["model.layers.2.mlp.up_proj.weight"]
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  analyse(path)
  monkeypatch.setattr(streaming, "_one", None)
  analyse(path)


def test_another_config_in_the_same_folder_is_refused(
  tmp_path, made, save, analyse
):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  analyse(path)
  with pytest.raises(Exception, match=r"analysis\.k"):
    analyse(path, k=7)


def test_bad_tensors_are_named_and_the_rest_is_analysed(
  tmp_path, made, save, analyse
):
  tensors = made.tensors()
  tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] = np.nan
  int8 = "model.layers.2.mlp.up_proj.weight"
  tensors[int8] = tensors[int8].astype(np.int8)
  del tensors["model.layers.3.self_attn.o_proj.weight"]
  tensors["model.layers.0.mlp.down_proj.weight"] = np.ones((3, 3), "f4")
  tensors["model.layers.0.input_layernorm.weight"] = np.ones(3, "f4")
  tensors["model.layers.4.self_attn.v_proj.weight"][:] = 0
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  workdir = analyse(path, report=True)
  text = (workdir / "report.md").read_text()
  assert "layers.4.self_attn.v_proj.weight: all zero" in text
  for name in (
    "layers.1.self_attn.q_proj",
    "layers.2.mlp.up_proj",
    "layers.3.self_attn.o_proj",
    "layers.0.mlp.down_proj",
    "layers.0.input_layernorm",
  ):
    assert f"* model.{name}" in text
  of = digest(workdir)
  cosines, _ = exact(made, "q", "input")
  got = data.matrix(of, "q", "input")
  there = [0, 2, 3, 4]
  np.testing.assert_allclose(
    got[np.ix_(there, there)], cosines[np.ix_(there, there)], atol=1e-4
  )
  assert np.isnan(got[1]).all()
  # Layer 0 has a gain that does not fit: folded alone is not there.
  folded, _ = exact(made, "q", "input", gained=True)
  got = data.matrix(of, "q", "input", "folded_")
  np.testing.assert_allclose(got[2:, 2:], folded[2:, 2:], atol=1e-4)
  assert np.isnan(got[0]).all()
  v = data.matrix(of, "v", "input")
  assert np.isnan(v[4]).all()  # A zero kernel has no direction.
  gate, _ = exact(made, "gate", "output")
  got = data.matrix(of, "gate", "output")
  np.testing.assert_allclose(got, gate, atol=1e-4)


def test_a_shard_that_comes_later_completes_the_analysis(
  tmp_path, made, shard, analyse
):
  folder = shard(tmp_path / "m", made.tensors())
  whole = everything(analyse(folder, "whole"))
  gone = folder / "model-00002-of-00002.safetensors"
  shutil.move(gone, tmp_path / "kept")
  workdir = analyse(folder, "later", report=True)
  assert "## Not read" in (workdir / "report.md").read_text()
  shutil.move(tmp_path / "kept", gone)
  assert everything(analyse(folder, "later", report=True)) == whole
  assert "## Not read" not in (workdir / "report.md").read_text()


def test_nothing_that_can_be_read_is_an_error(tmp_path, made, save, analyse):
  tensors = {n: np.full_like(t, np.nan) for n, t in made.tensors().items()}
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  with pytest.raises(SourceError, match="no kernel could be read"):
    analyse(path)


@pytest.mark.parametrize("layers", [1, 2])
def test_one_or_two_layers(tmp_path, made, save, analyse, layers):
  tensors = {
    n: t
    for n, t in made.tensors().items()
    if not any(f"layers.{i}." in n for i in range(layers, made.layers))
  }
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  workdir = analyse(path, report=True)
  of = digest(workdir)
  assert len(data.adjacent(of, "q", "input")) == layers - 1
  assert (workdir / "report.md").exists()


def test_equal_singular_values_have_no_cosine(tmp_path, made, save, analyse):
  tensors = made.tensors()
  for i in range(made.layers):
    name = f"model.layers.{i}.self_attn.q_proj.weight"
    tensors[name] = np.eye(32, dtype=np.float32)
  path = save(tmp_path / "m" / "a.safetensors", tensors)
  workdir = analyse(path, report=True)
  of = digest(workdir)
  assert np.isnan(data.matrix(of, "q", "input")).all()
  assert "4 of 4" in (workdir / "report.md").read_text()


def test_a_family_of_the_config(tmp_path, made, save, analyse):
  tensors = {
    f"bert.layer.{i}.query.weight": np.ascontiguousarray(made.kernels["q", i].T)
    for i in range(made.layers)
  }
  path = save(tmp_path / "m" / "a.safetensors", tensors, config=None)
  with pytest.raises(SourceError, match=r"layer\.\{l\}\.query\.weight"):
    analyse(path, "refused")
  family = {
    "layers": {"query": "layer.{l}.query.weight"},
    "stored": "out_in",
    "sides": {"query": "input"},
  }
  of = digest(analyse(path, family=family))
  cosines, _ = exact(made, "q", "input")
  np.testing.assert_allclose(
    data.matrix(of, "query", "input"), cosines, atol=1e-4
  )


def test_some_projections(tmp_path, made, save, analyse):
  path = save(tmp_path / "m" / "a.safetensors", made.tensors())
  of = digest(analyse(path, projections=("down", "q")))
  assert list(of.kernels) == ["q", "down"]
  with pytest.raises(ConfigError, match="no 'gatee'; there are q, k, v"):
    analyse(path, "other", projections=("gatee",))


def test_variants_whose_weights_lie_elsewhere_say_where(tmp_path, analyse):
  for variant in ("llama3_8b", "llama3_70b"):
    with pytest.raises(SourceError, match=r"weights/Llama-3\.1.*put there"):
      analyse("DATA_DIR/weights/Llama-3.1-8B", variant, variant)


@pytest.mark.parametrize(
  "changes, says",
  [
    ({"source": ""}, "config.source"),
    ({"analysis.k": 0}, "config.analysis.k"),
    ({"analysis.k": 65}, "config.analysis.k"),
    ({"analysis.ks": ()}, "config.analysis.ks"),
    ({"analysis.ks": (8, 8)}, "config.analysis.ks"),
    ({"analysis.k": 4}, "is above k, 4"),
    ({"analysis.windows": (1,)}, "config.analysis.windows"),
    ({"claims.matched_at_least": 2.0}, "config.claims.matched_at_least"),
  ],
)
def test_configs_that_are_refused(check, changes, says):
  with pytest.raises(ConfigError) as error:
    check(changes)
  assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
  "family, says",
  [
    ({"layer": {}}, "config.family"),
    ({"layers": {"q": "x.{i}.w"}}, "{l} once"),
    ({"layers": {"q": "x.{l}.w"}, "sides": {}}, "for q"),
    ({"layers": {}}, "names no projection"),
    ({"layers": {"q": "x.{l}.w"}, "rest": "("}, "config.family.rest"),
    ({"layers": {"q": "x.{l}.w"}, "stored": "inout"}, "config.family.stored"),
    ({"layers": {"q": "x.{l}.w"}, "sides": {"q": "left"}}, "sides"),
  ],
)
def test_families_that_are_refused(analyse, family, says):
  whole = {"stored": "out_in", "sides": {"q": "input"}} | family
  with pytest.raises(ConfigError) as error:
    analyse("somewhere", family=whole)
  assert says in str(error.value) and "\n" not in str(error.value)

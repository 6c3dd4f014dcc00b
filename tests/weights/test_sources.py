"""Files of weights as named tensors, whole and damaged."""

import json

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from geom.weights import families, source
from geom.weights.kernels import read_kernel
from geom.weights.opening import open_source

KINDS = [
  (gguf.GGMLQuantizationType.F32, 0),
  (gguf.GGMLQuantizationType.F16, 1e-3),
  (gguf.GGMLQuantizationType.BF16, 1e-2),
  (gguf.GGMLQuantizationType.Q8_0, 1e-2),
  (gguf.GGMLQuantizationType.Q4_0, 0.15),
]


def kernels_of(path):
  found = families.recognise(open_source(path))
  return {
    (p, m.layer): read_kernel(m) for p, of in found.matrices.items() for m in of
  }


def assert_kernels(path, made, tolerance=0.0):
  read = kernels_of(path)
  assert set(read) == set(made.kernels)
  for key, kernel in made.kernels.items():
    off = np.linalg.norm(read[key] - kernel) / np.linalg.norm(kernel)
    assert off <= tolerance, key


@pytest.mark.parametrize(
  "dtype, tolerance",
  [("f4", 0), ("f8", 0), ("f2", 1e-3), (ml_dtypes.bfloat16, 1e-2)],
)
def test_safetensors_of_every_float(tmp_path, made, save, dtype, tolerance):
  tensors = {n: t.astype(dtype) for n, t in made.tensors().items()}
  assert_kernels(save(tmp_path / "a.safetensors", tensors), made, tolerance)


def test_a_folder_with_an_index_a_folder_without_and_the_index_itself(
  tmp_path, made, save, shard
):
  folder = shard(tmp_path / "sharded", made.tensors())
  assert_kernels(folder, made)
  assert_kernels(folder / "model.safetensors.index.json", made)
  save(tmp_path / "one" / "some name.safetensors", made.tensors())
  assert_kernels(tmp_path / "one", made)


@pytest.mark.parametrize("kind, tolerance", KINDS)
def test_gguf_in_several_quantisations(
  tmp_path, made, save_gguf, kind, tolerance
):
  assert_kernels(save_gguf(tmp_path / "a.gguf", made, kind), made, tolerance)


def test_rows_are_those_of_the_whole_whatever_the_chunk(
  tmp_path, made, save, monkeypatch
):
  path = save(tmp_path / "a.safetensors", made.tensors())
  monkeypatch.setattr(source, "CHUNK_BYTES", 300)
  tensor = open_source(path).tensors["model.layers.2.mlp.down_proj.weight"]
  assert len(source.chunks(tensor)) > 10
  whole = made.kernels["down", 2].T
  np.testing.assert_array_equal(source.read(tensor), whole)
  np.testing.assert_array_equal(source.rows(tensor, 5, 9), whole[5:9])
  assert_kernels(path, made)


def test_a_missing_shard_leaves_the_rest(tmp_path, made, shard):
  folder = shard(tmp_path / "m", made.tensors())
  gone = folder / "model-00002-of-00002.safetensors"
  gone.unlink()
  opened = open_source(folder)
  assert len(opened.problems) == 1 and gone.name in opened.problems[0]
  good = [t for t in opened.tensors.values() if t.problem is None]
  assert 0 < len(good) < len(opened.tensors)
  assert set(opened.tensors) == set(made.tensors())
  for tensor in good:
    np.testing.assert_array_equal(
      source.read(tensor), made.tensors()[tensor.name]
    )


def test_no_shard_at_all_is_one_line(tmp_path, made, shard):
  folder = shard(tmp_path / "m", made.tensors())
  for file in folder.glob("*.safetensors"):
    file.unlink()
  with pytest.raises(source.SourceError, match="no tensor can be read"):
    open_source(folder)


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_a_truncated_file_keeps_what_is_whole(tmp_path, made, save, share):
  path = save(tmp_path / "a.safetensors", made.tensors())
  whole = path.read_bytes()
  path.write_bytes(whole[: int(share * len(whole))])
  opened = open_source(path)
  problems = {n for n, t in opened.tensors.items() if t.problem}
  assert 0 < len(problems) < len(opened.tensors)
  for name, tensor in opened.tensors.items():
    if name in problems:
      with pytest.raises(source.Unreadable, match="truncated"):
        source.read(tensor)
    else:
      np.testing.assert_array_equal(source.read(tensor), made.tensors()[name])


def test_a_truncated_gguf_keeps_what_is_whole(tmp_path, made, save_gguf):
  path = save_gguf(tmp_path / "a.gguf", made)
  whole = path.read_bytes()
  path.write_bytes(whole[: int(0.7 * len(whole))])
  found = families.recognise(open_source(path))
  assert found.problems and all("truncated" in p for p in found.problems)
  read = [m for of in found.matrices.values() for m in of if not m.problem]
  assert read
  for m in read:
    np.testing.assert_array_equal(
      read_kernel(m), made.kernels[m.projection, m.layer]
    )


@pytest.mark.parametrize("size", [0, 3, 9, 200])
@pytest.mark.parametrize("name", ["a.safetensors", "a.gguf"])
def test_a_file_cut_in_its_header_is_one_line(
  tmp_path, made, save, save_gguf, name, size
):
  path = tmp_path / name
  if name.endswith("gguf"):
    save_gguf(path, made)
  else:
    save(path, made.tensors())
  path.write_bytes(path.read_bytes()[:size])
  with pytest.raises(source.SourceError, match=name) as error:
    open_source(path)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["i1", "i8", "?"])
def test_other_dtypes_are_a_problem_of_that_tensor(tmp_path, made, save, dtype):
  tensors = made.tensors()
  name = "model.layers.1.mlp.up_proj.weight"
  tensors[name] = tensors[name].astype(dtype)
  opened = open_source(save(tmp_path / "a.safetensors", tensors))
  with pytest.raises(source.Unreadable, match=rf"{name}: dtype"):
    source.read(opened.tensors[name])
  problems = [n for n, t in opened.tensors.items() if t.problem]
  assert problems == [name]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_counted(tmp_path, made, save, bad):
  tensors = made.tensors()
  name = "model.layers.0.self_attn.q_proj.weight"
  tensors[name][3, :2] = bad
  opened = open_source(save(tmp_path / "a.safetensors", tensors))
  size = tensors[name].size
  with pytest.raises(source.Unreadable, match=f"{name}: 2 of {size} numbers"):
    source.read(opened.tensors[name])


@pytest.mark.parametrize(
  "change, says",
  [
    (lambda e: e.update(shape=[3, 5]), "cannot hold"),
    (lambda e: e.update(data_offsets=[8, 4]), "cannot hold"),
    (lambda e: e.update(data_offsets=[-8, 4]), "cannot hold"),
    (lambda e: e.pop("dtype"), "header is broken"),
    (lambda e: e.update(shape="x"), "header is broken"),
  ],
)
def test_a_header_that_lies(tmp_path, change, says):
  path = tmp_path / "a.safetensors"
  entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
  change(entry)
  header = json.dumps({"layers.0.w": entry}).encode()
  path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
  with pytest.raises((source.SourceError, source.Unreadable), match=says):
    source.read(open_source(path).tensors["layers.0.w"])


def test_what_is_no_weights(tmp_path):
  (tmp_path / "empty").mkdir()
  (tmp_path / "pytorch_model.bin").write_bytes(b"PK" + bytes(100))
  for path, says in (
    (tmp_path / "nowhere", "no such file"),
    (tmp_path / "empty", "holds no"),
    (tmp_path / "pytorch_model.bin", "pickle"),
  ):
    with pytest.raises(source.SourceError, match=says):
      open_source(path)


def test_an_index_that_points_out_of_its_folder_is_refused(tmp_path):
  save_file({"a": np.ones(2, np.float32)}, tmp_path / "a.safetensors")
  (tmp_path / "m").mkdir()
  index = {"weight_map": {"a": "../a.safetensors"}}
  (tmp_path / "m" / "model.safetensors.index.json").write_text(
    json.dumps(index)
  )
  with pytest.raises(source.SourceError, match="not a file of this folder"):
    open_source(tmp_path / "m")


def test_files_of_several_without_an_index_are_missed(tmp_path, made, shard):
  folder = shard(tmp_path / "m", made.tensors())
  (folder / "model.safetensors.index.json").unlink()
  assert_kernels(folder, made)
  (folder / "model-00002-of-00002.safetensors").unlink()
  (problem,) = open_source(folder).problems
  assert "model-00002-of-00002.safetensors" in problem


def test_gguf_of_doubles_and_of_single_numbers(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
  values = np.random.default_rng(0).standard_normal((3, 4))
  writer.add_tensor("blk.0.attn_q.weight", values)
  writer.add_tensor("scalar", np.float32(3).reshape(()))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  tensors = open_source(tmp_path / "a.gguf").tensors
  read = source.read(tensors["blk.0.attn_q.weight"])
  np.testing.assert_allclose(read, values, rtol=1e-6)
  assert tensors["scalar"].problem is not None


def test_a_folder_of_pickles_is_called_so(tmp_path):
  (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
  with pytest.raises(source.SourceError, match="pickle"):
    open_source(tmp_path)

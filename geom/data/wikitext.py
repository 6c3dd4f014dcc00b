"""WikiText-103 (arXiv 1609.07843): articles out of its raw or parquet files.

  downloads/wikitext-103-raw-v1/wiki.train.raw and wiki.valid.raw, or
  downloads/wikitext-103-raw-v1/train-*.parquet and validation-*.parquet

in the data folder are read; where neither are there, the parquet files are
fetched from Hugging Face, `Salesforce/wikitext` (CC BY-SA).
"""

import hashlib
import pathlib
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from geom.data import fetch

SOURCE = "wikitext103"
FOLDER = "wikitext-103-raw-v1"
URL = (
  "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/" + FOLDER
)
# By split the files there, and how many lines they have together.
PARQUET = {
  "train": (
    ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"),
    1_801_350,
  ),
  "validation": (("validation-00000-of-00001.parquet",), 3_760),
}
RAW = {"train": "wiki.train.raw", "validation": "wiki.valid.raw"}
_TIMEOUT_S = 30


class Splits(NamedTuple):
  """The files of each split."""

  train: list[pathlib.Path]
  validation: list[pathlib.Path]


def articles(lines: Iterable[str]) -> Iterator[str]:
  """The articles of WikiText, from heading to heading of the first level.

  A heading stands alone between blank lines, `= Title =`; `= = Part = =` is of
  a lower level. White space at the ends of lines and articles is left out, so
  that raw and parquet files give the same.

  Args:
    lines: of one split, with or without line ends.
  """
  article: list[str] = []
  before, current = "", None
  for following in _and_one_more(line.strip() for line in lines):
    if current is not None:
      if not before and not following and _is_title(current):
        yield from _whole(article)
        article = []
      article.append(current)
      before = current
    current = following
  yield from _whole(article)


def _and_one_more(lines: Iterable[str]) -> Iterator[str]:
  yield from lines
  yield ""


def _is_title(line: str) -> bool:
  return re.fullmatch(r"= (?!= ).*(?<! =) =", line) is not None


def _whole(article: list[str]) -> Iterator[str]:
  text = "\n".join(article).strip()
  if text:
    yield text


def documents(paths: Iterable[pathlib.Path]) -> Iterator[str]:
  """The articles of files of one split, read as they are asked for.

  Raises:
    DataError: a file is neither `.raw` nor `.parquet`, or cannot be read.
  """
  yield from articles(line for path in paths for line in _lines(path))


def _lines(path: pathlib.Path) -> Iterator[str]:
  try:
    if path.suffix == ".parquet":
      yield from _parquet_lines(path)
    elif path.suffix == ".raw":
      with open(path, encoding="utf-8", newline="\n") as file:
        yield from file
    else:
      raise fetch.DataError(f"{path} is neither .raw nor .parquet")
  except OSError as error:
    raise fetch.DataError(f"{path}: {error.strerror or error}") from error
  except UnicodeDecodeError as error:
    raise fetch.DataError(f"{path} is not UTF-8: {error}") from error


def _parquet_lines(path: pathlib.Path) -> Iterator[str]:
  from pyarrow import ArrowInvalid, parquet

  try:
    with parquet.ParquetFile(path) as file:
      for batch in file.iter_batches(columns=["text"]):
        yield from map(str, batch.column("text").to_pylist())
  except (ArrowInvalid, KeyError) as error:
    raise fetch.DataError(
      f"{path} is no parquet file with a column text: {error}"
    ) from error


def training(splits: Splits) -> Iterator[str]:
  """The training articles, without those that validation has too."""
  held_out = {_mark(text) for text in documents(splits.validation)}
  for text in documents(splits.train):
    if _mark(text) not in held_out:
      yield text


def _mark(text: str) -> bytes:
  return hashlib.sha256(" ".join(text.split()).encode()).digest()


def find(downloads: pathlib.Path) -> Splits | None:
  """The files of both splits in the folder for them, or None."""
  folder = downloads / FOLDER
  raw = {split: [folder / name] for split, name in RAW.items()}
  parquet = {
    split: sorted(folder.glob(f"{split}-*.parquet")) for split in PARQUET
  }
  for of in (raw, parquet):
    if all(of.values()) and all(p.is_file() for x in of.values() for p in x):
      _require_all_parts(of)
      return Splits(**of)
  return None


def _require_all_parts(of: dict[str, list[pathlib.Path]]) -> None:
  """Raises DataError where a part `x-of-y` is missing."""
  for paths in of.values():
    counts = {m[1] for p in paths if (m := re.search(r"-of-(\d+)", p.name))}
    if counts and counts != {f"{len(paths):05d}"}:
      raise fetch.DataError(
        f"{paths[0].parent} has {len(paths)} of the parts {paths[0].name} "
        "belongs to"
      )


def load(downloads: pathlib.Path) -> Splits:
  """The files of both splits, fetched unless they are there.

  Raises:
    DataError: they are not there and cannot be fetched, or are not what was
      asked for.
  """
  found = find(downloads)
  if found is None:
    folder = downloads / FOLDER
    for split, (names, count) in PARQUET.items():
      for name in names:
        _fetch(f"{URL}/{name}", folder / name)
      _require_lines([folder / name for name in names], count, split)
    found = find(downloads)
    assert found is not None
  return found


def _fetch(url: str, path: pathlib.Path) -> None:
  """Fetches a file unless it is there."""
  if path.is_file():
    return
  fetch.say(f"fetching {url}")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
      fetch.replacing(path) as temporary,
      urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response,
      open(temporary, "wb") as file,
    ):
      shutil.copyfileobj(response, file)
      expected = response.headers.get("Content-Length")
      if expected is not None and file.tell() != int(expected):
        raise OSError(f"{file.tell()} bytes of {expected}")
  except (OSError, urllib.error.URLError) as error:
    raise fetch.DataError(
      f"cannot fetch {url} ({error}): put {RAW['train']} and "
      f"{RAW['validation']}, or the parquet files of Salesforce/wikitext "
      f"{FOLDER}, into {path.parent}"
    ) from error


def _require_lines(paths: list[pathlib.Path], count: int, split: str) -> None:
  """Raises DataError, and forgets the files, unless they have so many lines."""
  from pyarrow import ArrowInvalid, parquet

  try:
    found = sum(parquet.read_metadata(path).num_rows for path in paths)
  except ArrowInvalid as error:
    found = str(error)
  if found != count:
    for path in paths:
      path.unlink()
    raise fetch.DataError(
      f"WikiText-103 as fetched is refused: its {split} files have {found} "
      f"lines, not {count}"
    )

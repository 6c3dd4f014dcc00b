"""The tokenizer that a GGUF file brings with it, where it is byte pairs."""

from collections.abc import Sequence
from typing import Any

from geom.data import fetch

# What GGUF calls the way that words are cut, and how the library does it.
_CUTS = ("gpt-2", "smollm")


def tokenizer(tokens: Sequence[str], merges: Sequence[str], pre: str) -> Any:
  """A `tokenizers.Tokenizer` of byte pairs, without special tokens.

  Args:
    tokens: by id; of GGUF's `tokenizer.ggml.tokens`.
    merges: pairs between a space; `tokenizer.ggml.merges`.
    pre: how words are cut; `tokenizer.ggml.pre`.

  Raises:
    DataError: words are cut in a way that is not known here.
  """
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers

  if pre not in _CUTS:
    raise fetch.DataError(
      f"the tokenizer cuts words as {pre!r}; known: {', '.join(_CUTS)}"
    )
  pairs = [tuple(merge.split(" ", 1)) for merge in merges]
  ids = {token: i for i, token in enumerate(tokens)}
  made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs))
  cuts = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
  if pre == "smollm":  # Digits stand alone.
    cuts.insert(0, pre_tokenizers.Digits(individual_digits=True))
  made.pre_tokenizer = pre_tokenizers.Sequence(cuts)
  made.decoder = decoders.ByteLevel()
  return made

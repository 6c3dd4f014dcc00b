"""What it costs in loss to share bases between layers, or to leave layers out.

A kernel that keeps `k` directions of its own is the same on either side, its
truncated SVD; what differs between sides is what a basis common to several
layers costs beside that.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jaxtyping import Int

from geom import record
from geom.data import corpora, fetch, gguf_tokenizer
from geom.models.base import Params
from geom.models.llama import llama
from geom.train.objectives import next_token_loss
from geom.train.stop import StopSignal
from geom.weights import editing, gguf_file, params
from geom.weights.families import Found
from geom.weights.source import Source, SourceError

_CHUNK = 512
_ATTENTION = ("q", "k", "v", "o")


def require(weights: Source, found: Found) -> None:
  """Raises SourceError where the loss of these weights cannot be had."""
  params.settings_of(weights, found)
  _tokenizer(weights)


def run(
  section: dict[str, Any],
  weights: Source,
  found: Found,
  writer: record.Writer,
  data_dir: pathlib.Path,
  stop: StopSignal,
) -> None:
  """Writes a row of kind `loss` for every edit that has none yet.

  Those of the projections in `found.sides`.
  """
  before = {_key(r) for r in record.read(writer.path) if r["kind"] == "loss"}
  edits = [e for e in _edits(section, weights, found) if _key(e) not in before]
  if not edits:
    return
  tokens = _tokens(section, weights, data_dir)
  model = llama(context=section["length"], **params.settings_of(weights, found))
  fetch.say(
    f"{len(edits)} losses of {tokens[:, 1:].size} tokens of {section['text']}"
  )
  loss = jax.jit(
    lambda p, t: next_token_loss(model, p, {"tokens": t}, chunk=_CHUNK)[0]
  )
  whole = params.params_of(weights, found)
  there = jax.tree.map(jnp.asarray, whole)
  with tqdm.tqdm(total=len(edits), desc="losses") as bar:
    for edit, edited in _edited(edits, whole, there):
      value = float(loss(edited, jnp.asarray(tokens)))
      del edited
      writer.write([{**edit, "loss": value, "tokens": tokens[:, 1:].size}])
      bar.update()
      stop.raise_if_received("between losses, what is done is kept")


def _edits(
  section: dict[str, Any], weights: Source, found: Found
) -> list[record.Row]:
  """Every edit as the row it will be, those of one basis side by side."""
  row = {"step": 0, "kind": "loss", "condition": "weights"}
  vocabulary = params.settings_of(weights, found)["vocabulary"]
  edits: list[record.Row] = [{**row, "edit": "none", "vocabulary": vocabulary}]
  edits += [{**row, "edit": "removed", "layer": i} for i in range(found.layers)]
  for projection, side in found.sides.items():
    shape = found.matrices[projection][0].shape
    for other in ("input", "output"):
      for window in section["shared"]:
        edits += [
          {
            **row,
            "edit": "shared",
            "projection": projection,
            "side": other,
            "matched": other == side,
            "window": window,
            "k": k,
            "of": shape[other == "output"],
          }
          for k in section["ks"]
          # One's own basis is the same on both sides.
          if k < shape[other == "output"] and (window != 1 or other == side)
        ]
  return edits


def _key(row: record.Row) -> tuple[Any, ...]:
  names = ("edit", "layer", "projection", "side", "window", "k")
  return tuple(row.get(n, None) for n in names)


def _edited(
  edits: list[record.Row], whole: Params, there: Params
) -> Iterator[tuple[record.Row, Params]]:
  """The parameters of every edit; bases are made once for all sizes."""
  made: tuple[Any, Any] = (None, None)
  grams: tuple[Any, Any] = (None, None)
  most = max((e["k"] for e in edits if "k" in e), default=0)
  for edit in edits:
    if edit["edit"] == "none":
      yield edit, there
      continue
    if edit["edit"] == "removed":
      yield edit, editing.without_layer(there, edit["layer"])
      continue
    p, side, window = edit["projection"], edit["side"], edit["window"]
    module = "attention" if p in _ATTENTION else "mlp"
    kernels = whole["blocks"][module][p]["kernel"]
    if grams[0] != (p, side):
      grams = (p, side), editing.unit_grams(kernels, side)
    if made[0] != (p, side, window):
      made = (p, side, window), editing.bases(grams[1], window, most)
    stack = editing.shared(kernels, made[1], window, side, edit["k"])
    blocks = dict(there["blocks"])
    blocks[module] = {**blocks[module], p: {"kernel": jnp.asarray(stack)}}
    yield edit, {**there, "blocks": blocks}


def _tokens(
  section: dict[str, Any], weights: Source, data_dir: pathlib.Path
) -> Int[np.ndarray, "b t"]:
  """Windows of validation documents, evenly spaced, one after another."""
  texts = corpora.documents(section["text"], data_dir / "downloads")
  held_out = [t for i, t in enumerate(texts) if corpora.is_validation(i)]
  length, n = section["length"] + 1, section["windows"]
  encoded = _tokenizer(weights).encode("\n\n".join(held_out)).ids
  if len(encoded) < n * length:
    raise SourceError(
      f"config.loss: {n} windows of {length} tokens are more than "
      f"{section['text']} has, {len(encoded)}"
    )
  starts = np.linspace(0, len(encoded) - length, n).astype(int)
  return np.array([encoded[s : s + length] for s in starts], np.int32)


def _tokenizer(weights: Source) -> Any:
  if weights.format == "gguf":
    names = [f"tokenizer.ggml.{x}" for x in ("tokens", "merges", "pre")]
    fields = gguf_file.fields_of(weights.path, *names)
    return gguf_tokenizer.tokenizer(*fields.values())
  import tokenizers

  folder = weights.path if weights.path.is_dir() else weights.path.parent
  try:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  except Exception as error:  # What the library raises has no class.
    raise SourceError(
      f"{folder}: a loss needs a tokenizer.json ({error})"
    ) from None

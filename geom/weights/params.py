"""Weights of a Llama as parameters of `geom.models.llama`."""

from typing import Any

import numpy as np
from jaxtyping import Float32

from geom.models.base import Params
from geom.weights import source
from geom.weights.families import Found, head_counts
from geom.weights.kernels import read_kernel
from geom.weights.source import Source, SourceError

_PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
_ATTENTION = ("q", "k", "v", "o")
_NORMS = {"attention_norm": "q", "mlp_norm": "gate"}
_EMBEDDINGS = (
  "token_embd.weight", "model.embed_tokens.weight", "tok_embeddings.weight",
)  # fmt: skip
_HEADS = ("output.weight", "lm_head.weight")
_LAST_NORMS = ("output_norm.weight", "model.norm.weight", "norm.weight")


def settings_of(weights: Source, found: Found) -> dict[str, Any]:
  """What `geom.models.llama.llama` has to be told, but for `context`.

  Raises:
    SourceError: it is no Llama, or the files do not say enough; biases, or a
      scaled rotary angle, which our model does not have, are refused too.
  """
  missing = [p for p in _PROJECTIONS if p not in found.matrices]
  if missing or found.problems:
    what = found.problems[0] if found.problems else f"no {', '.join(missing)}"
    raise SourceError(f"{weights.path}: no whole Llama: {what}")
  meta = weights.metadata
  architecture = meta.get("general.architecture")
  if architecture is not None:
    eps = meta.get(f"{architecture}.attention.layer_norm_rms_epsilon")
    base = meta.get(f"{architecture}.rope.freq_base", 1e4)
    scaled = any(key.startswith(f"{architecture}.rope.scaling") for key in meta)
    plain = architecture == "llama"
  else:
    eps, base = meta.get("rms_norm_eps"), meta.get("rope_theta", 1e4)
    scaled = meta.get("rope_scaling") is not None
    plain = meta.get("model_type") in ("llama", "mistral")
  heads, kv_heads = head_counts(meta)
  if eps is None or heads is None or not plain:
    raise SourceError(
      f"{weights.path}: a loss needs a Llama or Mistral with its config.json"
    )
  scaled |= "rope_freqs.weight" in weights.tensors
  biases = [n for n in weights.tensors if n.endswith(".bias")]
  if scaled or biases:
    what = biases[0] if biases else "scaled rotary angles"
    raise SourceError(f"{weights.path}: our Llama has no {what}")
  width, hidden = found.matrices["gate"][0].shape
  return {
    "vocabulary": _named(weights, _EMBEDDINGS).shape[0],
    "width": width,
    "depth": found.layers,
    "heads": heads,
    "kv_heads": kv_heads,
    "head_width": found.matrices["q"][0].shape[1] // heads,
    "hidden": hidden,
    "eps": float(eps),
    "rope_base": float(base),
    "tied": not any(n in weights.tensors for n in _HEADS),
  }


def params_of(weights: Source, found: Found) -> Params:
  """Its parameters, float32, in numpy.

  Raises:
    SourceError, Unreadable: see `settings_of`; a tensor cannot be read.
  """
  settings = settings_of(weights, found)
  counts = {"q": settings["heads"], "k": settings["kv_heads"]}
  turned = found.family.endswith("_gguf") or found.family == "llama_meta"

  def stacked(projection: str) -> Float32[np.ndarray, "l m n"]:
    kernels = []
    for matrix in found.matrices[projection]:
      kernel = read_kernel(matrix)
      if turned and projection in counts:
        kernel = _halves(kernel, counts[projection])
      kernels.append(kernel)
    return np.stack(kernels)

  def gains(projection: str) -> Float32[np.ndarray, "l d"]:
    try:
      tensors = [found.gains[projection, i] for i in range(found.layers)]
    except KeyError:
      raise SourceError(
        f"{weights.path}: a gain of {projection} is not there"
      ) from None
    return np.stack([source.read(t) for t in tensors])

  params: Params = {
    "embed": {"tokens": source.read(_named(weights, _EMBEDDINGS))},
    "norm": {"scale": source.read(_named(weights, _LAST_NORMS))},
    "blocks": {
      "attention": {p: {"kernel": stacked(p)} for p in _ATTENTION},
      "mlp": {
        p: {"kernel": stacked(p)} for p in _PROJECTIONS if p not in _ATTENTION
      },
      **{name: {"scale": gains(p)} for name, p in _NORMS.items()},
    },
  }
  if not settings["tied"]:
    params["head"] = {"kernel": source.read(_named(weights, _HEADS)).T}
  return params


def _halves(
  kernel: Float32[np.ndarray, "m n"], heads: int
) -> Float32[np.ndarray, "m n"]:
  """Rotary pairs (2i, 2i + 1) of a head to (i, i + half), along `out`.

  GGUF and Meta's files have the first, Hugging Face and our model the second.
  """
  m, n = kernel.shape
  pairs = kernel.reshape(m, heads, n // heads // 2, 2)
  return pairs.swapaxes(2, 3).reshape(m, n)


def _named(weights: Source, names: tuple[str, ...]) -> source.Tensor:
  for name in names:
    if name in weights.tensors:
      return weights.tensors[name]
  raise SourceError(f"{weights.path}: none of {', '.join(names)} is there")

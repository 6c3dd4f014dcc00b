"""Which tensor is which projection of which layer: a table of name patterns.

A family is data. Another one can be described in a config by the same keys;
see `geom.weights.family_table` for what they mean.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from geom.weights.family_table import FAMILIES
from geom.weights.kernels import Matrix, Piece
from geom.weights.source import Source, SourceError, Tensor, missing

_SHOWN = 8
_MOST_LAYERS = 10_000
_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")

KEYS = ("layers", "stored", "gains", "rest", "sides", "needs")


class Found(NamedTuple):
  """What was recognised in a source.

  Attributes:
    family: its name.
    matrices: by projection, in the order of layers; one that cannot be read
      has a problem.
    gains: `(projection, layer)` -> the gain of the norm that it reads.
    sides: of projections, where they meet the residual stream.
    layers: how many.
    problems: lines of what is not there but should be.
  """

  family: str
  matrices: dict[str, list[Matrix]]
  gains: dict[tuple[str, int], Tensor]
  sides: dict[str, str]
  layers: int
  problems: tuple[str, ...]


class _Seen(NamedTuple):
  kernels: dict[tuple[str, int], Tensor]  # By key of `layers`, and layer.
  gains: dict[tuple[str, int], Tensor]
  unknown: list[str]  # Names of a layer that the table does not have.


def recognise(source: Source, custom: Mapping[str, Any] | None = None) -> Found:
  """The projections of a source.

  Args:
    source: of which names, shapes and metadata are used, nothing is read.
    custom: a family described by the keys of `KEYS`; None or empty: the one of
      `FAMILIES` that has all of the source's kernels.

  Raises:
    SourceError: no family fits; the names that were not understood are in it.
  """
  families = {"custom": dict(custom)} if custom else FAMILIES
  tried = {}
  for name, family in families.items():
    seen = _match(source, family)
    if seen.kernels and _has_needed(seen, family):
      tried[name] = seen
  complete = [n for n, seen in tried.items() if not seen.unknown]
  if not complete:
    raise SourceError(_refusal(source, tried, custom))
  most = max(complete, key=lambda n: len(tried[n].kernels))
  found = _found(source, most, families[most], tried[most])
  if custom:
    return found
  # nanoGPT's names are those of GPT-2, its kernels are stored as nn.Linear's.
  stored = "in_out" if families[most]["stored"] == "out_in" else "out_in"
  other = families[most] | {"stored": stored}
  turned = _found(source, most, other, tried[most])
  best = min(
    found, turned, key=lambda f: (len(_widths(f)) > 1, len(f.problems))
  )
  if len(_widths(best)) > 1:
    each = {p: _widths(found, p) for p in found.matrices}
    said = ", ".join(f"{p} {max(w)}" for p, w in each.items() if w)
    raise SourceError(
      f"{source.path}: by the names of family {most} its projections meet "
      f"residual streams of several widths: {said}; describe it in "
      "config.family, see the README"
    )
  return best


def _pattern(text: str) -> re.Pattern[str]:
  escaped = re.escape(text).replace(re.escape("{l}"), r"(\d+)")
  return re.compile(rf"(?:.*[./])?{escaped}")


def _match(source: Source, family: Mapping[str, Any]) -> _Seen:
  patterns = [
    (kind, key, _pattern(text))
    for kind in ("layers", "gains")
    for key, text in family[kind].items()
  ]
  rest = re.compile(rf"(?:.*[./])?(?:{family['rest']})")
  found: dict[str, dict[tuple[str, int], Tensor]] = {"layers": {}, "gains": {}}
  unknown = []
  for name, tensor in source.tensors.items():
    for kind, key, pattern in patterns:
      match = pattern.fullmatch(name)
      if match:
        before = found[kind].setdefault((key, int(match[1])), tensor)
        if before is not tensor:
          unknown += [before.name, name]  # Of two stacks; which is meant?
        break
    else:
      # Embeddings and heads bear no number of a layer; vectors are no kernels.
      if (
        _NUMBER.search(name)
        and len(tensor.shape) != 1
        and not rest.fullmatch(name)
      ):
        unknown.append(name)
  return _Seen(found["layers"], found["gains"], list(dict.fromkeys(unknown)))


def _has_needed(seen: _Seen, family: Mapping[str, Any]) -> bool:
  there = {part for key, _ in seen.kernels for part in key.split("+")}
  return set(family.get("needs", ())) <= there


def _refusal(
  source: Source,
  tried: Mapping[str, _Seen],
  custom: Mapping[str, Any] | None,
) -> str:
  if tried:
    nearest = min(tried, key=lambda n: len(tried[n].unknown))
    names = tried[nearest].unknown
    what = f"nearest is family {nearest}, which does not have"
  else:
    # Matrices of layers tell most.
    names = [n for n, t in source.tensors.items() if len(t.shape) == 2]
    names = sorted(names, key=lambda n: not _NUMBER.search(n))
    names = names or list(source.tensors)
    what = "of no known family; its tensors:"
  names = list(dict.fromkeys(_NUMBER.sub("{l}", n, count=1) for n in names))
  more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
  do = "mend config.family" if custom else "describe it in config.family"
  return (
    f"{source.path}: {what} {', '.join(names[:_SHOWN]) or 'none'}{more}; {do}"
    ", see the README"
  )


def _found(
  source: Source, name: str, family: Mapping[str, Any], seen: _Seen
) -> Found:
  layers = 1 + max(layer for _, layer in seen.kernels)
  layers = max(layers, layer_count(source.metadata))
  if layers > _MOST_LAYERS:
    raise SourceError(f"{source.path}: names a layer {layers - 1}")
  used = list(dict.fromkeys(key for key, _ in seen.kernels))
  there = {part for key in used for part in key.split("+")}
  unsaid = sorted(there - set(family["sides"]))
  if unsaid:
    raise SourceError(
      f"config.family.sides: should say input or output for {', '.join(unsaid)}"
    )
  stored = family["stored"]
  matrices = {}
  for part in (p for p in family["sides"] if p in there):
    mine = [key for key in used if part in key.split("+")]
    stack = []
    for layer in range(layers):
      key = next((k for k in mine if (k, layer) in seen.kernels), mine[0])
      tensor = seen.kernels.get((key, layer))
      if tensor is None:
        absent = _named(seen, key, family["layers"][key], layer)
        tensor = missing(absent, f"{absent} is not there")
      piece = _piece(tensor, key.split("+"), part, stored, source.metadata)
      stack.append(Matrix(part, layer, tensor, piece, stored == "out_in"))
    matrices[part] = _alike(stack)
  gains = {
    (part, layer): tensor
    for (key, layer), tensor in seen.gains.items()
    for part in key.split("+")
    if plain_gains(source)
  }
  problems = [
    f"{source.path.name}: no layer has {p}"
    for p in family["sides"]
    if p not in there
  ]
  problems += [
    m.problem for of in matrices.values() for m in of if m.problem is not None
  ]
  sides = {p: family["sides"][p] for p in matrices}
  return Found(
    name, matrices, gains, sides, layers, tuple(dict.fromkeys(problems))
  )


def plain_gains(source: Source) -> bool:
  """Whether norms are where the table has them, and multiply by their gain.

  Gemma's multiply by 1 + gain; where blocks have a norm after the feed-forward
  too, names like `post_attention_layernorm` mean another place.
  """
  if str(source.metadata.get("model_type", "")).startswith("gemma"):
    return False
  after = ("post_feedforward", "post_ffw")
  return not any(x in name for name in source.tensors for x in after)


def _widths(found: Found, projection: str | None = None) -> set[int]:
  """Of the residual stream, by all projections or one."""
  return {
    m.shape[found.sides[p] == "output"]
    for p, of in found.matrices.items()
    for m in of
    if m.problem is None and projection in (None, p)
  }


def _named(seen: _Seen, key: str, pattern: str, layer: int) -> str:
  """The name that a kernel would have, with what others have before it."""
  other, tensor = next((i, t) for (k, i), t in seen.kernels.items() if k == key)
  end = len(pattern.replace("{l}", str(other)))
  return tensor.name[:-end] + pattern.replace("{l}", str(layer))


def _alike(stack: Sequence[Matrix]) -> list[Matrix]:
  """A layer of another shape than most is no part of the stack."""
  shapes = [m.shape for m in stack if m.problem is None]
  usual = max(shapes, key=shapes.count, default=None)
  return [
    m
    if m.problem is not None or m.shape == usual
    else m.with_problem(
      f"{m.tensor.name}: a kernel of {m.shape}, where {m.projection} is "
      f"{usual} elsewhere"
    )
    for m in stack
  ]


def _piece(
  tensor: Tensor,
  parts: Sequence[str],
  part: str,
  stored: str,
  metadata: Mapping[str, Any],
) -> Piece:
  """Where along `out` a part of a fused tensor lies."""
  if len(parts) == 1 or tensor.problem is not None or len(tensor.shape) != 2:
    return Piece(None)
  n_out, n_in = tensor.shape[:: 1 if stored == "out_in" else -1]
  weights = [1] * len(parts)
  if set(parts) == {"q", "k", "v"}:
    heads, kv_heads = head_counts(metadata)
    if heads and kv_heads:
      weights = [heads if p == "q" else kv_heads for p in parts]
    elif n_out != 3 * n_in:
      return Piece(
        None,
        f"{tensor.name}: how q, k and v share its {n_out} columns is not "
        "known; a config.json with num_attention_heads says it",
      )
  unit, left = divmod(n_out, sum(weights))
  if left:
    return Piece(None, f"{tensor.name}: {n_out} columns do not split {weights}")
  at = parts.index(part)
  start = unit * sum(weights[:at])
  return Piece((start, start + unit * weights[at]))


def layer_count(metadata: Mapping[str, Any]) -> int:
  """Layers that there should be, as the files say; 0 where they do not."""
  architecture = metadata.get("general.architecture", "")
  names = ("num_hidden_layers", "n_layer", f"{architecture}.block_count")
  found = [metadata[k] for k in names if isinstance(metadata.get(k), int)]
  return found[0] if found else 0


def head_counts(metadata: Mapping[str, Any]) -> tuple[int | None, int | None]:
  """Heads of queries, and of keys and values, as the files say; or None."""
  architecture = metadata.get("general.architecture", "")
  names = {
    "heads": ("num_attention_heads", "n_head", "heads",
              f"{architecture}.attention.head_count"),
    "kv": ("num_key_value_heads", "kv_heads",
           f"{architecture}.attention.head_count_kv"),
  }  # fmt: skip

  def first(keys: Sequence[str]) -> int | None:
    found = [metadata[k] for k in keys if isinstance(metadata.get(k), int)]
    return found[0] if found else None

  heads = first(names["heads"])
  return heads, first(names["kv"]) or heads

"""Files of token ids, memory-mapped; several files are one stream.

Two formats, told apart by the header, little-endian both: flat uint16, which
nanoGPT's `prepare.py` writes, and the shards of llm.c and modded-nanogpt: 256
int32 (20240520, the version 1, the number of tokens, zeros), then uint16. A
flat file cannot be taken for a shard: its first id would have to be 55432.
"""

import bisect
import contextlib
import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt16

from geom.data import fetch

MAGIC = 20240520
VERSION = 1
# llm.c's shards for Llama 3, of uint32.
_MAGIC_UINT32 = 20240801
_HEADER_BYTES = 256 * 4

# Files from this size on are scanned once and the result is kept.
_BIG_BYTES = 1 << 27
_CHUNK = 1 << 24
_SAMPLES, _SAMPLE = 64, 2048


class Stream:
  """Token ids in a row, read as int32.

  Args:
    parts: arrays of ids that follow each other.
    end_of_text: the id between documents, or None where it is not known.
  """

  def __init__(
    self,
    parts: Sequence[UInt16[np.ndarray, " _"]],
    end_of_text: int | None = None,
  ):
    self.end_of_text = end_of_text
    self._parts = list(parts)
    self._ends = list(itertools.accumulate(map(len, self._parts)))

  def __len__(self) -> int:
    return self._ends[-1] if self._ends else 0

  def __getitem__(self, index: slice) -> Int32[np.ndarray, " token"]:
    start, stop, step = index.indices(len(self))
    if step != 1:
      raise IndexError("a stream is sliced in steps of 1")
    return self.read(start, max(stop - start, 0))

  def read(self, start: int, count: int) -> Int32[np.ndarray, " token"]:
    """`count` ids from `start` on. Raises IndexError outside the stream."""
    out = np.empty(count, np.int32)
    self.read_into(out, start)
    return out

  def read_into(self, out: Int32[np.ndarray, " token"], start: int) -> None:
    """Fills `out` with the ids from `start` on; IndexError as `read`."""
    if not 0 <= start <= len(self) - len(out):
      raise IndexError(
        f"tokens {start} to {start + len(out)} of a stream of {len(self)}"
      )
    part, done = bisect.bisect_right(self._ends, start), 0
    while done < len(out):
      tokens = self._parts[part]
      begin = start + done - (self._ends[part] - len(tokens))
      piece = tokens[begin : begin + len(out) - done]
      out[done : done + len(piece)] = piece
      done += len(piece)
      part += 1

  def gather(
    self, starts: Integer[np.ndarray, " window"], length: int
  ) -> Int32[np.ndarray, "window length"]:
    """The windows of `length` ids that begin at `starts`."""
    out = np.empty((len(starts), length), np.int32)
    for row, start in zip(out, starts.tolist(), strict=True):
      self.read_into(row, start)
    return out

  @functools.cached_property
  def documents(self) -> Int64[np.ndarray, " document"] | None:
    """Where each document begins; None where `end_of_text` is not known.

    Where the stream begins with `end_of_text`, as the shards of llm.c do, so
    does every document; else every document ends with it. Found by reading
    the whole stream, once. Raises DataError where the id is not there.
    """
    if self.end_of_text is None:
      return None
    if len(self) * 2 >= _BIG_BYTES:
      fetch.say(f"looking for documents in {len(self):,} tokens")
    found, base = [], 0
    for part in self._parts:
      for at in range(0, len(part), _CHUNK):
        here = np.flatnonzero(part[at : at + _CHUNK] == self.end_of_text)
        found.append(here + (base + at))
      base += len(part)
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    if not len(ends):
      raise fetch.DataError(
        f"end_of_text {self.end_of_text} is not in the tokens: there are no"
        " documents to tell apart"
      )
    if ends[0] == 0:
      return ends.astype(np.int64)
    starts = np.concatenate([[0], ends + 1]).astype(np.int64)
    return starts[starts < len(self)]

  def fingerprint(self) -> str:
    """Names the ids: their number and blocks of them, evenly spaced, hashed.

    The same whatever files they are in. Up to 131,072 ids are hashed all.
    """
    h = hashlib.sha256(str(len(self)).encode())
    if len(self) <= _SAMPLES * _SAMPLE:
      h.update(self[:].astype("<i4").tobytes())
    else:
      last = len(self) - _SAMPLE
      for i in range(_SAMPLES):
        block = self.read(i * last // (_SAMPLES - 1), _SAMPLE)
        h.update(block.astype("<i4").tobytes())
    return h.hexdigest()[:16]


def open_files(
  paths: Sequence[str | pathlib.Path],
  *,
  vocabulary: int,
  notes: pathlib.Path,
  end_of_text: int | None = None,
) -> Stream:
  """The files as one stream, in the order given.

  Every id is looked at. For a big file this is done once: its largest id is
  kept in the folder `notes`, by path, size and time of change.

  Args:
    paths: files of either format.
    vocabulary: ids are below it.
    notes: made when it is needed.
    end_of_text: the id between documents, if known.

  Raises:
    DataError: a file is missing, empty, truncated, in no known format or has
      an id outside the vocabulary; or there is no file.
  """
  if not paths:
    raise fetch.DataError("no token files are given")
  parts = []
  for path in map(pathlib.Path, paths):
    try:
      tokens = _map(path)
      largest = _largest(path, tokens, notes)
    except OSError as error:
      reason = error.strerror or error
      raise fetch.DataError(f"token file {path}: {reason}") from error
    if largest >= vocabulary:
      raise fetch.DataError(
        f"{path} has the token {largest}, outside a vocabulary of {vocabulary}:"
        " it was made with another tokenizer, or is not a token file"
      )
    parts.append(tokens)
  return Stream(parts, end_of_text)


def _map(path: pathlib.Path) -> UInt16[np.ndarray, " token"]:
  """The ids of one file, not yet read. Raises DataError, OSError."""
  size = path.stat().st_size
  with open(path, "rb") as file:
    start = file.read(_HEADER_BYTES)
  if not size:
    raise fetch.DataError(f"{path} is empty")
  if size % 2:
    raise fetch.DataError(
      f"{path} has an odd number of bytes, {size}: it is truncated, or not"
      " tokens of 16 bits"
    )
  offset, count = 0, size // 2
  header = np.frombuffer(start[: len(start) // 4 * 4], "<i4")
  magic = int(header[0]) if len(header) else 0
  if magic == _MAGIC_UINT32:
    raise fetch.DataError(
      f"{path} is a shard of 32-bit tokens ({magic}): only 16 bits are read"
    )
  if magic == MAGIC:
    if len(start) < _HEADER_BYTES:
      raise fetch.DataError(f"{path} is truncated within its header")
    if header[1] != VERSION:
      raise fetch.DataError(
        f"{path} is a shard of version {header[1]}, not {VERSION}"
      )
    offset, count = _HEADER_BYTES, int(header[2])
    held = (size - offset) // 2
    if held != count:
      cause = "truncated" if held < count else "altered"
      raise fetch.DataError(
        f"{path} is {cause}: it holds {held} tokens, its header says {count}"
      )
    if not count:
      raise fetch.DataError(f"{path} is empty: its header says 0 tokens")
  mapped = np.memmap(path, "<u2", mode="r", offset=offset, shape=(count,))
  return np.asarray(mapped)


def _largest(
  path: pathlib.Path,
  tokens: UInt16[np.ndarray, " token"],
  notes: pathlib.Path,
) -> int:
  """The largest id; that of a big file is found once. Raises OSError."""
  stat = path.stat()
  big = stat.st_size >= _BIG_BYTES
  key = repr((str(path.resolve()), stat.st_size, stat.st_mtime_ns))
  note = notes / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
  if big:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
      return int(json.loads(note.read_text())["largest"])
    fetch.say(f"checking {len(tokens):,} tokens of {path}, once")
  largest = max(
    int(tokens[at : at + _CHUNK].max()) for at in range(0, len(tokens), _CHUNK)
  )
  if big:
    with contextlib.suppress(OSError):  # It is then checked every time.
      notes.mkdir(parents=True, exist_ok=True)
      with fetch.replacing(note) as temporary:
        temporary.write_text(json.dumps({"file": key, "largest": largest}))
  return largest

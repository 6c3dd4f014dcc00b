"""What a path holds, told by its content."""

import pathlib

from geom.weights import checkpoint, gguf_file, safetensors_file
from geom.weights.source import Source, SourceError

_GGUF = b"GGUF"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def open_source(path: str | pathlib.Path, *, seed_index: int = 0) -> Source:
  """Safetensors, GGUF or a checkpoint of ours; no tensor is read yet.

  Args:
    path: a folder of Hugging Face's, a file, or a checkpoint.
    seed_index: see `checkpoint.open_checkpoint`.

  Raises:
    SourceError: nothing is there, or nothing that can be read.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    if checkpoint.is_checkpoint(path):
      return checkpoint.open_checkpoint(path, seed_index=seed_index)
    return _open_folder(path)
  if not path.exists():
    raise SourceError(f"{path}: there is no such file or folder")
  try:
    with path.open("rb") as file:
      magic = file.read(4)
  except OSError as error:
    raise SourceError(f"{path}: {error.strerror}") from None
  if magic == _GGUF:
    return gguf_file.open_file(path)
  if path.name.endswith(".index.json"):
    return _open_folder(path.parent)
  if path.suffix in _PICKLES:
    raise _pickle(path)
  return safetensors_file.open_file(path)


def _pickle(path: pathlib.Path) -> SourceError:
  return SourceError(
    f"{path} is a pickle, which may run code when it is read; convert it to "
    "safetensors"
  )


def _open_folder(path: pathlib.Path) -> Source:
  found = safetensors_file.open_folder(path)
  if found is not None:
    return found
  files = sorted(path.glob("*.gguf"))
  first = [p for p in files if "-00001-of-" in p.name]
  if len(first or files) == 1:
    return gguf_file.open_file((first or files)[0])
  if files:
    names = ", ".join(p.name for p in files[:5])
    raise SourceError(f"{path} holds several GGUF files, name one: {names}")
  pickles = [p for p in path.iterdir() if p.suffix in _PICKLES]
  if pickles:
    raise _pickle(pickles[0])
  raise SourceError(
    f"{path} holds no *.safetensors, no *.gguf and no checkpoint of ours"
  )

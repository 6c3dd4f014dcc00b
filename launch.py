"""Runs an experiment: flags -> config -> experiment.

  python launch.py                       the main job, configs/resmlp.py:short
  python launch.py --config=configs/FILE.py:VARIANT --workdir=DIR
                   --config.section.key=value

Exit codes: 0 done; 1 a loss was not finite, or the data cannot be had;
2 a mistake in config, flags or workdir; 75 stopped by SIGTERM, saved, start
again; 130 stopped by Ctrl-C, saved.
"""

import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from experiments import (
  bench,
  continuity_lm,
  continuity_mlp,
  continuity_pretrained,
  module_manifolds,
)
from geom import config as cfg
from geom.data import fetch
from geom.launch.workdir import WorkdirError, claimed
from geom.record import RecordError
from geom.train.checkpoint import ResumeError
from geom.train.memory import keep_freed_memory
from geom.train.stop import Stopped, raise_stopped

EXPERIMENTS = {
  "bench": bench,
  "continuity_lm": continuity_lm,
  "continuity_mlp": continuity_mlp,
  "continuity_pretrained": continuity_pretrained,
  "module_manifolds": module_manifolds,
}

FLAGS = flags.FLAGS
flags.DEFINE_string(
  "config",
  "configs/resmlp.py:short",
  "FILE.py:VARIANT, or the config.json of a run; set entries with "
  "--config.section.key=value.",
)
flags.DEFINE_string(
  "workdir", None, "Where results go; runs/FILE-VARIANT if not given."
)
flags.DEFINE_string(
  "data_dir",
  None,
  "Where prepared data is; else $GEOM_DATA_DIR, else ~/.cache/geom.",
)
flags.DEFINE_bool(
  "profile", False, "Write a trace of a few steps to WORKDIR/profile."
)


def main(argv: Sequence[str]) -> int:
  signal.signal(signal.SIGTERM, raise_stopped)
  try:
    rest, overrides = cfg.split_overrides(argv)
    if {"--help", "-h", "--helpfull", "--helpshort"} & set(rest):
      print(f"{__doc__}\n{FLAGS.main_module_help()}")
      return 0
    unused = FLAGS(rest)[1:]
    if unused:
      raise cfg.ConfigError(f"what is {unused[0]!r}? flags begin with --")
    config = cfg.load(FLAGS.config, also=pathlib.Path(__file__).parent)
    for path, text in overrides:
      cfg.override(config, path, text)
    experiment = EXPERIMENTS[cfg.choice(config, "experiment", EXPERIMENTS)]
    config = experiment.check(config)
    if FLAGS.workdir == "":
      raise cfg.ConfigError("--workdir: needs a folder")
    workdir = FLAGS.workdir or _default_workdir(FLAGS.config)
    workdir = pathlib.Path(workdir).expanduser()
    with claimed(workdir, config, list(argv[1:])):
      return _run(experiment, config, workdir)
  except (cfg.ConfigError, WorkdirError, ResumeError, RecordError) as error:
    return _say(error, 2)
  except flags.Error as error:
    return _say(error, 2)
  except (fetch.DataError, OSError) as error:
    return _say(error, 1)
  except Stopped as error:
    return _say(error, error.exit_code)
  except KeyboardInterrupt:
    return _say("interrupted; the same command goes on", 130)


def _run(experiment: Any, config: dict[str, Any], workdir: pathlib.Path) -> int:
  # Whoever reads one large kernel after another gives its memory back.
  streams = experiment is continuity_pretrained
  if not streams and keep_freed_memory():
    fetch.say("freed memory stays with the process, for speed (glibc)")
  data_dir = fetch.data_dir(FLAGS.data_dir)
  if not jax.config.jax_compilation_cache_dir:
    jax.config.update("jax_compilation_cache_dir", str(data_dir / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  failed = experiment.run(
    config, workdir=workdir, data_dir=data_dir, profile=FLAGS.profile
  )
  print(f"report: {workdir / 'report.md'}", file=sys.stderr)
  for condition, seeds in failed.items():
    for seed, step in seeds.items():
      _say(
        f"{condition}, seed {seed}: loss or gradient not finite at step "
        f"{step}; the state before it is in {workdir}/checkpoints/{condition}",
        1,
      )
  return 1 if failed else 0


def _default_workdir(reference: str) -> str:
  path, variant = cfg.split_reference(reference)
  if path.suffix == ".json":
    raise cfg.ConfigError("--workdir: say where to run a config.json again")
  return f"runs/{'-'.join(filter(None, [path.stem, variant]))}"


def _say(error: object, code: int) -> int:
  print(f"launch.py: {' '.join(str(error).split())}", file=sys.stderr)
  return code


if __name__ == "__main__":
  sys.exit(main(sys.argv))

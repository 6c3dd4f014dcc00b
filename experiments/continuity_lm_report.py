"""The report of `experiments.continuity_lm`: what `geom.report` is told."""

import pathlib
from typing import Any

import jax

from experiments import continuity_lm_claims as claims
from experiments.continuity_lm_config import heads_of, shapes, shapes_of
from geom import record
from geom.probes.continuity import chance_cosine
from geom.probes.heads import WAYS, chance_best
from geom.report.continuity_lm import write_report

# What is drawn together.
TOGETHER = {
  "activation": ("silu", "gelu", "relu", "identity", "radial"),
  "attention": ("silu", "sigmoid_attention", "linear_attention", "value_silu"),
  "stream": ("silu", "layernorm", "nores"),
}


def report(workdir: pathlib.Path) -> dict[str, dict[int, int]]:
  """Writes figures, `report.md` and `summary.json` from what was measured.

  Returns:
    The failures: condition -> seed -> the step whose loss or gradient was
    not finite.
  """
  config = record.read_json(workdir / "config.json")["config"]
  rows = record.read(workdir / "metrics.jsonl")
  model = config["model"]
  levels = chances(config)
  numbers = sum(x.size for x in jax.tree.leaves(shapes(**model)))
  return write_report(
    workdir,
    rows,
    title="Geometric continuity, Llama-style transformer, "
    f"{model['depth']} layers of width {model['width']}, "
    f"{numbers / 1e6:.1f}M parameters",
    config=config,
    chances=levels,
    claims=claims.all_of(config["claims"], levels),
    group=config["claims"]["group"],
    together=TOGETHER,
    base=claims.BASE,
    notes=NOTES,
  )


def chances(settings: dict[str, Any]) -> dict[str, float]:
  """Chance levels of |cos|: of projections, and of heads three ways."""
  found = {}
  heads = heads_of(settings)
  for p, (_, m, n) in shapes_of(settings).items():
    found[f"{p}/input"] = chance_cosine(m)
    found[f"{p}/output"] = chance_cosine(n)
    if p not in heads:
      continue
    dims = {"input": m, "output": n}
    dims["input" if p == "o" else "output"] //= heads[p]
    for side, d in dims.items():
      for way in WAYS:
        level = chance_best(d, heads[p]) if way == "best" else chance_cosine(d)
        found[f"{p}/heads/{way}_{side}"] = level
  return found


NOTES = """\
Losses are in nats a token, of fixed validation windows; unigram is that of who
knows only how often each token comes, and a seed that ends less than `learnt`
below it has learned nothing and is not judged at its end. The paper's widths,
learning rate, batch and number of steps were not at hand, so agreement of
numbers is not agreement of protocol."""

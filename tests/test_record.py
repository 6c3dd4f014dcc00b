"""The files of a run."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from geom import record


def row(step, kind="train", condition="relu", **values):
  return {"step": step, "kind": kind, "condition": condition, **values}


def test_numbers_are_plain_and_float32_is_exact():
  value = np.float32(0.1)
  (text,) = [record.line(row(1, loss=value))]
  assert json.loads(text)["loss"] == 0.1
  for x in np.random.default_rng(0).normal(size=100).astype(np.float32):
    assert np.float32(record.plain(x)) == x


def test_what_is_not_finite_is_null_at_any_depth():
  values = {
    "a": float("nan"), "b": np.float32("inf"), "c": jnp.array([1.0, jnp.nan]),
    "d": [np.nan], "e": jnp.float32(-np.inf), "f": np.float64("nan"),
  }  # fmt: skip
  read = json.loads(record.line(row(0, **values)))
  assert [read[k] for k in "abdef"] == [None, None, [None], None, None]
  assert read["c"] == [1.0, None]


def test_types_survive():
  values = {"a": np.int32(3), "b": True, "c": jnp.bool_(False), "d": "x"}
  assert record.plain(values) == {"a": 3, "b": True, "c": False, "d": "x"}
  assert record.plain({"pair": (0.9, 0.99)}) == {"pair": [0.9, 0.99]}


def test_an_unknown_kind_is_refused():
  with pytest.raises(ValueError, match="'probes' is none of"):
    record.line(row(0, kind="probes"))


def test_an_unfinished_last_line_is_passed_over(tmp_path):
  path = tmp_path / "metrics.jsonl"
  record.Writer(path).write([row(1), row(2)])
  path.write_text(path.read_text() + '{"step": 3, "ki')
  assert [r["step"] for r in record.read(path)] == [1, 2]


def test_a_bad_line_before_the_last_is_an_error(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
  with pytest.raises(ValueError, match=r"metrics.jsonl:2 is not a row"):
    record.read(path)


def test_no_file_has_no_rows(tmp_path):
  assert record.read(tmp_path / "metrics.jsonl") == []


def test_rewind_drops_what_was_measured_later(tmp_path):
  path = tmp_path / "metrics.jsonl"
  writer = record.Writer(path)
  writer.write(
    [
      row(1, seed=0),
      row(2, "probe", seed=0),
      row(3, seed=0),
      row(3, "event", seed=0, event="not finite"),
      row(3, "event", event="start"),
      row(3, seed=0, condition="none"),
      row(3, seed=1),
      row(4, seed=1),
    ]
  )
  path.write_text(path.read_text() + '{"torn')
  writer.rewind("relu", 2, {1: 3})
  kept = [(r["step"], r["kind"], r.get("seed")) for r in record.read(path)]
  assert kept == [
    (1, "train", 0),
    (2, "probe", 0),
    (3, "event", None),
    (3, "train", 0),  # Of another condition.
    (3, "train", 1),  # Of a seed that had failed at 3.
  ]
  writer.write([row(3)])
  assert len(record.read(path)) == 6


def test_json_is_written_whole(tmp_path):
  path = tmp_path / "summary.json"
  record.write_json(path, {"a": float("nan")})
  assert record.read_json(path) == {"a": None}
  with pytest.raises(TypeError):
    record.write_json(path, {"a": object()})
  assert record.read_json(path) == {"a": None}
  assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]

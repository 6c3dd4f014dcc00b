"""What edits cost in loss, on a Llama of random weights and a text of ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from experiments import continuity_pretrained_loss as losses
from geom import record
from geom.data import corpora, fetch, gguf_tokenizer
from geom.models.llama import llama
from geom.report import pretrained_rows as data
from geom.weights import families, params
from geom.weights.opening import open_source
from geom.weights.source import SourceError

HF = {
  "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-5,
}  # fmt: skip
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
LOSS = {
  "enabled": True,
  "windows": 2,
  "length": 8,
  "ks": (3,),
  "shared": (1, 0),
}


@pytest.fixture
def folder(tmp_path, made, save, monkeypatch):
  """A checkpoint with a tokenizer of bytes, and documents to measure on."""
  rng = np.random.default_rng(0)
  tensors = made.tensors()
  tensors["model.embed_tokens.weight"] = np.float32(rng.normal(size=(256, 32)))
  path = save(tmp_path / "m" / "model.safetensors", tensors, HF).parent
  bytes_ = tokenizers.Tokenizer(
    models.BPE(vocab={x: i for i, x in enumerate(LETTERS)}, merges=[])
  )
  bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bytes_.decoder = decoders.ByteLevel()
  bytes_.save(str(path / "tokenizer.json"))
  texts = [f"document {i}: " + "all of it is text. " * 3 for i in range(50)]
  monkeypatch.setattr(corpora, "documents", lambda name, where: texts)
  return path


def run(analyse, folder, **more):
  """Rows of losses, by edit."""
  workdir = analyse(folder, projections=("q", "down"), loss=LOSS, **more)
  rows = record.read(workdir / "metrics.jsonl")
  return workdir, [r for r in rows if r["kind"] == "loss"]


def loss_of(model, whole, tokens):
  logits, _ = model.apply(jax.tree.map(jnp.asarray, whole), tokens[:, :-1])
  logs = jax.nn.log_softmax(logits)
  return float(-jnp.mean(jnp.take_along_axis(logs, tokens[:, 1:, None], -1)))


def test_every_edit_has_the_loss_of_the_edited_weights(folder, analyse, made):
  _, rows = run(analyse, folder)
  # Whole, 5 layers left out, and q and down: own, and common on both sides.
  assert len(rows) == 1 + made.layers + 2 * 3
  by = {(r["edit"], r.get("projection"), r.get("side"), r.get("window"),
         r.get("layer")): r["loss"] for r in rows}  # fmt: skip
  weights = open_source(folder)
  found = families.recognise(weights)
  model = llama(context=8, **params.settings_of(weights, found))
  whole = params.params_of(weights, found)
  text = [corpora.documents("", "")[i] for i in range(50)]
  held = [t for i, t in enumerate(text) if corpora.is_validation(i)]
  ids = [LETTERS.index("Ġ" if x == " " else "Ċ" if x == "\n" else x)
         for x in "\n\n".join(held)]  # fmt: skip
  tokens = jnp.array([ids[:9], ids[len(ids) - 9 :]])
  base = by["none", None, None, None, None]
  assert base == pytest.approx(loss_of(model, whole, tokens), rel=1e-4)
  kernels = whole["blocks"]["mlp"]["down"]["kernel"]
  unit = [np.float64(k) / np.linalg.norm(k) for k in kernels]
  for side, axis in (("input", 1), ("output", 0)):
    u, _, vt = np.linalg.svd(np.concatenate(unit, axis=axis))
    b = u[:, :3] if side == "input" else vt[:3].T
    edited = b @ (b.T @ kernels) if side == "input" else kernels @ b @ b.T
    mlp = {**whole["blocks"]["mlp"], "down": {"kernel": np.float32(edited)}}
    changed = {**whole, "blocks": {**whole["blocks"], "mlp": mlp}}
    got = by["shared", "down", side, 0, None]
    assert got == pytest.approx(loss_of(model, changed, tokens), rel=1e-4)
    assert abs(got - base) > 1e-4


def test_losses_go_on_and_are_in_the_report(folder, analyse, monkeypatch):
  kept = losses._edited
  monkeypatch.setattr(
    losses, "_edited", lambda edits, *more: kept(edits[:4], *more)
  )
  _, some = run(analyse, folder)
  assert len(some) == 4
  monkeypatch.setattr(losses, "_edited", kept)
  workdir, rows = run(analyse, folder, report=True)
  assert len(rows) == 12
  assert len({losses._key(r) for r in rows}) == 12
  text = (workdir / "report.md").read_text()
  assert "## What sharing costs" in text and "## Layers left out" in text
  for name in ("costs", "removal"):
    assert (workdir / "figures" / f"{name}.png").exists()
  of = data.digest(record.read(workdir / "metrics.jsonl"))
  expected = np.log(256) - data.base_loss(of)
  assert data.knowing_nothing(of) == pytest.approx(expected)


def test_what_no_loss_can_be_had_of_is_refused_before_the_analysis(
  folder, analyse, tmp_path
):
  (folder / "tokenizer.json").unlink()
  with pytest.raises(SourceError, match=r"tokenizer\.json"):
    run(analyse, folder)
  assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_gguf_tokenizer_cuts_as_it_says():
  tokens = [*LETTERS, "ab", "12"]
  made = gguf_tokenizer.tokenizer(tokens, ["a b", "1 2"], "gpt-2")
  ids = {t: i for i, t in enumerate(tokens)}
  assert made.encode("ab12").ids == [ids["ab"], ids["12"]]
  digits = gguf_tokenizer.tokenizer(tokens, ["a b", "1 2"], "smollm")
  assert digits.encode("ab12").ids == [ids["ab"], ids["1"], ids["2"]]
  assert digits.decode(digits.encode("ab é 12").ids) == "ab é 12"
  with pytest.raises(fetch.DataError, match="'llama-bpe'"):
    gguf_tokenizer.tokenizer(tokens, [], "llama-bpe")

"""Which tensor is which projection: by table, fused, described, refused."""

import numpy as np
import pytest

from geom.weights import families
from geom.weights.checkpoint import STACKED
from geom.weights.kernels import read_kernel
from geom.weights.opening import open_source
from geom.weights.source import SourceError

BERT = {
  "layers": {
    "q": "layer.{l}.attention.self.query.weight",
    "down": "layer.{l}.output.dense.weight",
  },
  "stored": "out_in",
  "sides": {"q": "input", "down": "output"},
  "rest": r"layer\.\d+\..*LayerNorm.*",
}


@pytest.fixture
def open_as(tmp_path, save):
  """Writes and opens tensors; `config` is that of Hugging Face."""

  def write(tensors, **more):
    return open_source(save(tmp_path / "a.safetensors", tensors, **more))

  return write


def assert_reads(found, kernels):
  got = {(p, m.layer) for p, of in found.matrices.items() for m in of}
  assert got == set(kernels)
  for (p, i), kernel in kernels.items():
    np.testing.assert_array_equal(read_kernel(found.matrices[p][i]), kernel)


def test_llama_with_its_sides_and_gains(made, open_as):
  found = families.recognise(open_as(made.tensors()))
  assert found.family == "llama" and found.layers == made.layers
  assert found.sides["q"] == "input" and found.sides["down"] == "output"
  assert_reads(found, made.kernels)
  read = {p for p, _ in found.gains}
  assert read == {"q", "k", "v", "gate", "up"}
  assert found.gains["v", 2].name == "model.layers.2.input_layernorm.weight"


def test_fused_qkv_and_gate_up_are_split_by_the_heads(made, open_as):
  tensors = made.tensors()
  for i in range(made.layers):
    for names, fused in (
      (("q", "k", "v"), f"model.layers.{i}.self_attn.qkv_proj.weight"),
      (("gate", "up"), f"model.layers.{i}.mlp.gate_up_proj.weight"),
    ):
      tensors[fused] = np.concatenate([made.kernels[p, i].T for p in names])
      for p in names:
        module = "self_attn" if p in "qkv" else "mlp"
        del tensors[f"model.layers.{i}.{module}.{p}_proj.weight"]
  assert_reads(families.recognise(open_as(tensors)), made.kernels)
  blind = families.recognise(open_as(tensors, config={}))
  assert "num_attention_heads" in blind.matrices["q"][0].problem
  assert blind.matrices["gate"][0].problem is None


def test_gpt2_keeps_in_out_and_splits_in_three(open_as):
  rng = np.random.default_rng(0)
  kernels, tensors = {}, {"wte.weight": np.ones((3, 8), np.float32)}
  for i in range(3):
    fused = np.float32(rng.standard_normal((8, 24)))
    tensors[f"h.{i}.attn.c_attn.weight"] = fused
    tensors[f"h.{i}.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
    tensors[f"h.{i}.ln_1.weight"] = np.ones(8, np.float32)
    kernels |= {
      (p, i): fused[:, 8 * j : 8 * j + 8] for j, p in enumerate("qkv")
    }
    for p, name, shape in (
      ("o", "attn.c_proj", (8, 8)),
      ("up", "mlp.c_fc", (8, 32)),
      ("down", "mlp.c_proj", (32, 8)),
    ):
      kernels[p, i] = np.float32(rng.standard_normal(shape))
      tensors[f"h.{i}.{name}.weight"] = kernels[p, i]
  found = families.recognise(open_as(tensors, config=None))
  assert found.family == "gpt2"
  assert_reads(found, kernels)
  assert ("q", 1) in found.gains and ("up", 1) not in found.gains


def test_gpt2_names_over_linear_weights_are_read_as_linear_weights(open_as):
  """nanoGPT's: a stream of 8 is in every kernel, that tells."""
  rng = np.random.default_rng(0)
  kernels, tensors = {}, {}
  for i in range(2):
    fused = np.float32(rng.standard_normal((24, 8)))
    tensors[f"transformer.h.{i}.attn.c_attn.weight"] = fused
    kernels |= {(p, i): fused[8 * j : 8 * j + 8].T for j, p in enumerate("qkv")}
    for p, name, shape in (
      ("up", "mlp.c_fc", (8, 32)),
      ("down", "mlp.c_proj", (32, 8)),
    ):
      kernels[p, i] = np.float32(rng.standard_normal(shape))
      tensors[f"transformer.h.{i}.{name}.weight"] = kernels[p, i].T
  found = families.recognise(open_as(tensors, config={"n_head": 2}))
  assert_reads(found, kernels)
  assert found.problems == ("a.safetensors: no layer has o",)


def test_streams_of_several_widths_are_refused(made, open_as):
  tensors = made.tensors()
  for i in range(made.layers):
    name = f"model.layers.{i}.mlp.down_proj.weight"
    tensors[name] = np.ones((20, 48), "f4")
  with pytest.raises(SourceError, match=r"q 32.*down 20"):
    families.recognise(open_as(tensors))


def test_layers_that_the_config_counts_and_are_not_there(made, open_as):
  config = {"num_hidden_layers": made.layers + 1}
  found = families.recognise(open_as(made.tensors(), config=config))
  assert found.layers == made.layers + 1
  assert len(found.problems) == 7
  assert "layers.5.self_attn.q_proj.weight is not there" in found.problems[0]


def test_gguf_tells_a_llama_from_a_gpt2_by_the_gate(tmp_path, made, save_gguf):
  with_gate = families.recognise(open_source(save_gguf(tmp_path / "a", made)))
  without = save_gguf(tmp_path / "b", made, gate=False)
  assert with_gate.family == "llama_gguf"
  with pytest.raises(SourceError, match=r"attn_q\.weight.*config\.family"):
    families.recognise(open_source(without))


@pytest.mark.parametrize("odd", ["gemma", "norm after the feed-forward"])
def test_gains_that_mean_something_else_are_not_folded(made, open_as, odd):
  tensors, config = made.tensors(), {"model_type": "olmo2"}
  if odd == "gemma":
    config = {"model_type": "gemma2"}
  else:
    name = "model.layers.0.post_feedforward_layernorm.weight"
    tensors[name] = np.ones(32, "f4")
  found = families.recognise(open_as(tensors, config=config))
  assert found.gains == {}
  assert_reads(found, made.kernels)


def test_an_unknown_family_is_refused_with_its_names(open_as):
  tensors = {
    f"encoder.layer.{i}.attention.self.query.weight": np.ones((4, 4), "f4")
    for i in range(9)
  }
  with pytest.raises(SourceError) as error:
    families.recognise(open_as(tensors))
  assert "encoder.layer.{l}.attention.self.query.weight" in str(error.value)
  assert "\n" not in str(error.value)


def test_a_matrix_of_a_layer_that_is_not_understood_refuses(made, open_as):
  tensors = made.tensors()
  tensors["model.layers.1.mlp.experts.0.up.weight"] = np.ones((4, 4), "f4")
  with pytest.raises(SourceError, match=r"experts"):
    families.recognise(open_as(tensors))


def test_two_stacks_of_the_same_names_are_refused(made, open_as):
  tensors = made.tensors()
  more = {f"draft.{n}": t for n, t in tensors.items()}
  with pytest.raises(SourceError, match=r"draft"):
    families.recognise(open_as(tensors | more))


def test_a_family_described_in_a_few_lines(open_as):
  rng = np.random.default_rng(0)
  kernels = {}
  for i in range(2):
    kernels["q", i] = np.float32(rng.standard_normal((4, 4)))
    kernels["down", i] = np.float32(rng.standard_normal((6, 4)))
  tensors = {
    "encoder." + BERT["layers"][p].replace("{l}", str(i)): np.ascontiguousarray(
      k.T
    )
    for (p, i), k in kernels.items()
  }
  tensors["encoder.layer.0.output.LayerNorm.x"] = np.ones((2, 2), "f4")
  custom = {"gains": {}, "needs": (), **BERT}
  found = families.recognise(open_as(tensors), custom)
  assert found.family == "custom"
  assert_reads(found, kernels)


def test_a_missing_layer_and_one_of_another_shape(made, open_as):
  tensors = made.tensors()
  del tensors["model.layers.1.self_attn.k_proj.weight"]
  tensors["model.layers.2.mlp.up_proj.weight"] = np.ones((7, 7), "f4")
  found = families.recognise(open_as(tensors))
  assert "is not there" in found.matrices["k"][1].problem
  assert "elsewhere" in found.matrices["up"][2].problem
  assert len(found.problems) == 2
  kernel = read_kernel(found.matrices["k"][2])
  np.testing.assert_array_equal(kernel, made.kernels["k", 2])


def test_the_table_matches_the_models_of_this_project():
  """Names that checkpoints of each model have, from the model itself."""
  import jax

  from geom.models import gpt2, llama, resmlp
  from geom.weights.source import Source, Tensor

  small = {"vocabulary": 8, "width": 8, "depth": 2, "heads": 2, "context": 4}
  cases = {
    "geom_llama": llama.llama(
      **small, kv_heads=1, head_width=4, hidden=8, rope_base=10.0, eps=1e-5,
      tied=False,
    ),
    "geom_gpt2": gpt2.gpt2(**small),
    "geom_resmlp": resmlp.resmlp(width=8, depth=2, norm="layernorm"),
  }  # fmt: skip
  for family, model in cases.items():
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
      keys = [k.key for k in path]
      name = "/".join(keys)
      stacked = keys[0] in STACKED and len(leaf.shape) > 1
      for i in range(leaf.shape[0]) if stacked else [None]:
        at = name if i is None else f"{name}/{i}"
        shape = leaf.shape if i is None else leaf.shape[1:]
        tensors[at] = Tensor(at, shape, "f4", 4, lambda a, b: None)
    source = Source(__file__, "checkpoint", tensors, {})
    found = families.recognise(source)
    assert found.family == family
    assert found.layers == 2 and not found.problems

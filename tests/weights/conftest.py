"""Checkpoints as others write them, small and of weights that are known."""

import json
import pathlib

import gguf
import numpy as np
import pytest
import safetensors.numpy

from configs import pretrained as config_file
from experiments import continuity_pretrained as experiment
from geom import config as cfg
from geom.launch.workdir import claimed

LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS = 5, 32, 48, 4, 2
HEAD = WIDTH // HEADS
# (in, out) of every projection.
SHAPES = {
  "q": (WIDTH, WIDTH),
  "k": (WIDTH, KV_HEADS * HEAD),
  "v": (WIDTH, KV_HEADS * HEAD),
  "o": (WIDTH, WIDTH),
  "gate": (WIDTH, HIDDEN),
  "up": (WIDTH, HIDDEN),
  "down": (HIDDEN, WIDTH),
}
HF_NAMES = {
  p: f"model.layers.{{l}}.{'self_attn' if p in 'qkvo' else 'mlp'}.{p}_proj"
  for p in SHAPES
}
NORMS = {
  "q+k+v": "model.layers.{l}.input_layernorm.weight",
  "gate+up": "model.layers.{l}.post_attention_layernorm.weight",
}
HF_CONFIG = {
  "model_type": "llama",
  "num_attention_heads": HEADS,
  "num_key_value_heads": KV_HEADS,
  "rms_norm_eps": 1e-5,
}


class Made:
  """Kernels `(in, out)` by projection and layer, gains, and all as tensors."""

  def __init__(self, seed: int = 0, layers: int = LAYERS):
    rng = np.random.default_rng(seed)
    self.layers = layers
    self.kernels = {}
    for p, (m, n) in SHAPES.items():
      v, u = (rng.standard_normal(d) for d in (m, n))
      for i in range(layers):
        # One direction that turns slowly, above noise.
        v = v + 0.4 * rng.standard_normal(m)
        u = u + 0.4 * rng.standard_normal(n)
        noise = rng.standard_normal((m, n)) / np.sqrt(m)
        lead = np.outer(v / np.linalg.norm(v), u / np.linalg.norm(u))
        self.kernels[p, i] = np.float32(noise + 4 * lead)
    self.gains = {
      (key, i): np.float32(rng.uniform(0.3, 2, WIDTH))
      for key in NORMS
      for i in range(layers)
    }

  def tensors(self) -> dict[str, np.ndarray]:
    """By Hugging Face's names, `(out, in)`."""
    found = {
      HF_NAMES[p].format(l=i) + ".weight": np.ascontiguousarray(k.T)
      for (p, i), k in self.kernels.items()
    }
    found |= {NORMS[key].format(l=i): g for (key, i), g in self.gains.items()}
    found["model.embed_tokens.weight"] = np.ones((11, WIDTH), np.float32)
    found["model.norm.weight"] = np.ones(WIDTH, np.float32)
    return found


@pytest.fixture
def made():
  return Made()


@pytest.fixture
def save():
  """Writes tensors as one file of safetensors; returns its path."""

  def write(path, tensors, config=HF_CONFIG):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The package writes the bytes as they lie, whatever their order.
    rows = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    safetensors.numpy.save_file(rows, path)
    if config is not None:
      (path.parent / "config.json").write_text(json.dumps(config))
    return path

  return write


@pytest.fixture
def shard():
  """Writes tensors as a folder of two files with an index; returns it."""

  def write(folder, tensors, config=HF_CONFIG):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
      file = f"model-{i:05d}-of-00002.safetensors"
      safetensors.numpy.save_file({n: tensors[n] for n in part}, folder / file)
      weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder

  return write


@pytest.fixture
def save_gguf():
  """Writes tensors by GGUF's names, quantised as told; returns the path."""

  def write(path, made, kind=gguf.GGMLQuantizationType.F32, gate=True):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    names = {
      "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
      "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    }  # fmt: skip
    for (p, i), kernel in made.kernels.items():
      if p == "gate" and not gate:
        continue
      raw = np.ascontiguousarray(kernel.T)
      if p == "down":  # Rows of 48 do not fill blocks of 32.
        writer.add_tensor(f"blk.{i}.{names[p]}.weight", raw)
        continue
      writer.add_tensor(
        f"blk.{i}.{names[p]}.weight", gguf.quantize(raw, kind), raw_dtype=kind
      )
    for (key, i), gain in made.gains.items():
      name = "attn_norm" if key == "q+k+v" else "ffn_norm"
      writer.add_tensor(f"blk.{i}.{name}.weight", gain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return pathlib.Path(path)

  return write


@pytest.fixture
def analyse(tmp_path, monkeypatch):
  """Runs the experiment in this process; returns the workdir."""
  reports = experiment.report

  def skip(workdir):
    del workdir
    return {}

  def run(
    source,
    workdir="run",
    variant="any",
    family=None,
    report=False,
    loss=None,
    **analysis,
  ):
    # Pictures take longer than all the rest.
    monkeypatch.setattr(experiment, "report", reports if report else skip)
    config = config_file.get_config(variant)
    config.source = str(source)
    if family:
      config.family = family
    config.analysis.update({"k": 8, "ks": (2, 4), "workers": 1} | analysis)
    config.loss.update(loss or {})
    checked = experiment.check(config)
    workdir = tmp_path / workdir
    with claimed(workdir, checked, []):
      experiment.run(checked, workdir=workdir, data_dir=tmp_path, profile=False)
    return workdir

  return run


@pytest.fixture
def check():
  """The checked config of a variant with some keys changed, by dotted path."""

  def checked(changes, variant="any"):
    config = config_file.get_config(variant)
    config.source = config.source or "somewhere"
    for path, value in changes.items():
      cfg.override(config, path, repr(value))
    return experiment.check(config)

  return checked

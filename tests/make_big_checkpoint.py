"""Makes a Llama-like checkpoint of any size whose singular values are known.

    python tests/make_big_checkpoint.py FOLDER [--hidden 8192 ...]

bfloat16 safetensors, a file a layer, an index, config.json, and
`expected.json`: |cos| of adjacent layers on both sides and s1/s2. The defaults
are three layers of 70B shapes, 5.1 GB. Every kernel is

    K = P D Q^T,  D = diag(i^-power),

P and Q products of three reflections, so that its singular values and vectors
are exact without a decomposition; the first columns of P and Q turn slowly from
layer to layer. Memory: the largest kernel in float32 and little else.
"""

import argparse
import json
import pathlib

import numpy as np

_ROWS = 512


def reflect(kernel: np.ndarray, w: np.ndarray) -> None:
  """kernel - 2 w w^T kernel / |w|^2 in place, along the first axis."""
  w = (w / np.linalg.norm(w)).astype(np.float32)
  along = 2 * (w @ kernel)
  for i in range(0, len(kernel), _ROWS):
    kernel[i : i + _ROWS] -= np.outer(w[i : i + _ROWS], along)


def to_first(direction: np.ndarray) -> np.ndarray:
  """The reflection that takes e_1 to a direction of norm 1."""
  w = direction.copy()
  w[0] -= 1
  return w if np.linalg.norm(w) > 1e-6 else np.eye(1, len(w), 1)[0]


def planted(rng, left, right, power):
  """`(len(left), len(right))`, of leading vectors `left` and `right`."""
  m, n = len(left), len(right)
  kernel = np.zeros((m, n), np.float32)
  short = min(m, n)
  np.fill_diagonal(kernel, np.arange(1, short + 1) ** -power)
  for at, direction in ((kernel, left), (kernel.T, right)):
    for _ in range(2):
      w = rng.standard_normal(at.shape[0])
      w[0] = 0  # Leaves e_1 where it is.
      reflect(at, w)
    reflect(at, to_first(direction))
  return kernel


def to_bfloat16(x: np.ndarray) -> np.ndarray:
  """Rounded to nearest even, as uint16."""
  bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
  bits = bits + 0x7FFF + ((bits >> 16) & 1)
  return (bits >> 16).astype(np.uint16)


def turned(rng, direction: np.ndarray, cosine: float) -> np.ndarray:
  other = rng.standard_normal(len(direction))
  other -= other @ direction * direction
  other /= np.linalg.norm(other)
  return cosine * direction + np.sqrt(1 - cosine**2) * other


def write_file(path: pathlib.Path, tensors) -> None:
  """Safetensors of `(name, shape, maker)`; makers are called one by one."""
  header, offset = {}, 0
  for name, shape, _ in tensors:
    nbytes = 2 * int(np.prod(shape))
    header[name] = {
      "dtype": "BF16", "shape": list(shape),
      "data_offsets": [offset, offset + nbytes],
    }  # fmt: skip
    offset += nbytes
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for _, shape, make in tensors:
      values = make()
      assert values.shape == tuple(shape)
      for i in range(0, len(values), _ROWS):
        file.write(to_bfloat16(values[i : i + _ROWS]).tobytes())


def make(
  folder: pathlib.Path,
  *,
  hidden: int = 8192,
  feed_forward: int = 28672,
  heads: int = 64,
  kv_heads: int = 8,
  layers: int = 3,
  power: float = 0.5,
  cosine: float = 0.6,
  seed: int = 0,
) -> None:
  rng = np.random.default_rng(seed)
  folder.mkdir(parents=True, exist_ok=True)
  small = hidden // heads * kv_heads
  shapes = {
    "q": (hidden, hidden), "k": (hidden, small), "v": (hidden, small),
    "o": (hidden, hidden), "gate": (hidden, feed_forward),
    "up": (hidden, feed_forward), "down": (feed_forward, hidden),
  }  # fmt: skip
  leads = {}
  for p, sides in shapes.items():
    lines = []
    for d in sides:
      first = rng.standard_normal(d)
      line = [first / np.linalg.norm(first)]
      for _ in range(layers - 1):
        line.append(turned(rng, line[-1], cosine))
      lines.append(line)
    leads[p] = lines
  weight_map = {}
  for layer in range(layers):
    tensors = []
    for p, (m, n) in shapes.items():
      module = "self_attn" if p in "qkvo" else "mlp"
      name = f"model.layers.{layer}.{module}.{p}_proj.weight"

      def kernel(p=p, layer=layer):
        left, right = (line[layer] for line in leads[p])
        return planted(rng, left, right, power).T

      tensors.append((name, (n, m), kernel))
    for norm in ("input_layernorm", "post_attention_layernorm"):
      name = f"model.layers.{layer}.{norm}.weight"
      gain = rng.uniform(0.5, 1.5, hidden)
      tensors.append((name, (hidden,), lambda gain=gain: gain))
    file = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
    write_file(folder / file, tensors)
    weight_map |= {name: file for name, _, _ in tensors}
  index = {"metadata": {}, "weight_map": weight_map}
  write = {
    "model.safetensors.index.json": index,
    "config.json": {
      "model_type": "llama", "num_attention_heads": heads,
      "num_key_value_heads": kv_heads,
    },
    "expected.json": {
      "cosine": cosine, "gap": 2**power, "projections": list(shapes),
    },
  }  # fmt: skip
  for name, content in write.items():
    (folder / name).write_text(json.dumps(content))


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folder", type=pathlib.Path)
  for key, default in make.__kwdefaults__.items():
    flag = f"--{key.replace('_', '-')}"
    parser.add_argument(flag, type=type(default), default=default, dest=key)
  given = vars(parser.parse_args())
  make(given.pop("folder"), **given)

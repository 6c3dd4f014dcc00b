"""The other side of `experiments.bench`, variant `language`: a plain PyTorch.

    PYTHON -m experiments.bench_language_torch CONFIG_JSON

Run by a Python that has torch, which this project does not ask for. Trains
a GPT written the usual way (`torch.nn`, `scaled_dot_product_attention`, AdamW
in its fused or foreach form); every line on stdin asks for some steps and is
answered by a line of JSON: CPU milliseconds a step, the last loss, and the
largest resident memory so far in MB.
"""

import json
import math
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
  def __init__(self, width: int, heads: int):
    super().__init__()
    self.heads = heads
    self.attention_norm = nn.LayerNorm(width, bias=False)
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.o = nn.Linear(width, width, bias=False)
    self.mlp_norm = nn.LayerNorm(width, bias=False)
    self.up = nn.Linear(width, 4 * width, bias=False)
    self.down = nn.Linear(4 * width, width, bias=False)

  def forward(self, h: torch.Tensor) -> torch.Tensor:
    b, t, d = h.shape
    parts = self.qkv(self.attention_norm(h)).split(d, dim=2)
    q, k, v = (
      x.view(b, t, self.heads, d // self.heads).transpose(1, 2) for x in parts
    )
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = h + self.o(mixed.transpose(1, 2).reshape(b, t, d))
    return h + self.down(functional.gelu(self.up(self.mlp_norm(h))))


class GPT(nn.Module):
  def __init__(self, vocabulary, context, width, depth, heads):
    super().__init__()
    self.tokens = nn.Embedding(vocabulary, width)
    self.positions = nn.Embedding(context, width)
    self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
    self.norm = nn.LayerNorm(width, bias=False)
    for name, p in self.named_parameters():
      if p.dim() == 2:
        writes = name.endswith(("o.weight", "down.weight"))
        nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if writes else 0.02)

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    h = self.tokens(given) + self.positions.weight[: given.shape[1]]
    for block in self.blocks:
      h = block(h)
    logits = self.norm(h) @ self.tokens.weight.T
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def main() -> None:
  how = json.loads(sys.argv[1])
  torch.set_num_threads(how["threads"])
  torch.manual_seed(0)
  model = GPT(**how["model"])
  decayed = [p for p in model.parameters() if p.dim() >= 2]
  others = [p for p in model.parameters() if p.dim() < 2]
  optimizer = torch.optim.AdamW(
    [
      {"params": decayed, "weight_decay": 0.1},
      {"params": others, "weight_decay": 0.0},
    ],
    lr=how["lr"],
    betas=(0.9, 0.95),
    fused=True,
  )
  shape = (how["batch_size"], how["model"]["context"] + 1)
  batch = torch.randint(how["model"]["vocabulary"], shape)
  for _ in sys.stdin:
    began, wall = time.process_time(), time.perf_counter()
    for _ in range(how["steps"]):
      optimizer.zero_grad(set_to_none=True)
      loss = model(batch)
      loss.backward()
      nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
    last = loss.item()
    ms = (time.process_time() - began) * 1e3 / how["steps"]
    wall_ms = (time.perf_counter() - wall) * 1e3 / how["steps"]
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer = {"ms": ms, "wall_ms": wall_ms, "loss": last, "mb": mb}
    print(json.dumps({**answer, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
  main()

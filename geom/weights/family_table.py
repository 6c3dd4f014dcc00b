"""Names of tensors by family: data, and nothing but data."""

from typing import Any

# What a family's entries mean. `{l}` stands for the number of a layer, and a
# name may have anything before a pattern that ends in a dot or slash.
#   layers: projection -> pattern of the tensor that holds it; "q+k+v" is
#     several side by side along `out`, q as wide as the heads that the files
#     say, others equally wide.
#   stored: "out_in" as torch's nn.Linear, "in_out" as kernels.
#   gains: the projections that read a norm -> pattern of its gain.
#   rest: regular expression of names that belong to a layer but hold no kernel.
#   sides: projection -> where it meets the residual stream.
#   needs: projections without which it is another family.
LLAMA_SIDES = {
  "q": "input", "k": "input", "v": "input", "o": "output",
  "gate": "input", "up": "input", "down": "output",
}  # fmt: skip
GPT2_SIDES = {
  "q": "input", "k": "input", "v": "input", "o": "output",
  "up": "input", "down": "output",
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
  # Llama, Mistral, Qwen, SmolLM and Phi-3 of Hugging Face; Gemma and OLMo 2
  # without their gains, see `families.plain_gains`.
  "llama": {
    "layers": {
      "q": "layers.{l}.self_attn.q_proj.weight",
      "k": "layers.{l}.self_attn.k_proj.weight",
      "v": "layers.{l}.self_attn.v_proj.weight",
      "o": "layers.{l}.self_attn.o_proj.weight",
      "q+k+v": "layers.{l}.self_attn.qkv_proj.weight",
      "gate": "layers.{l}.mlp.gate_proj.weight",
      "up": "layers.{l}.mlp.up_proj.weight",
      "gate+up": "layers.{l}.mlp.gate_up_proj.weight",
      "down": "layers.{l}.mlp.down_proj.weight",
    },
    "stored": "out_in",
    "gains": {
      "q+k+v": "layers.{l}.input_layernorm.weight",
      "gate+up": "layers.{l}.post_attention_layernorm.weight",
    },
    "rest": r"layers\.\d+\..*(norm|bias|rotary_emb|scale)[^/]*",
    "sides": LLAMA_SIDES,
  },
  # The same as Meta distributes it.
  "llama_meta": {
    "layers": {
      "q": "layers.{l}.attention.wq.weight",
      "k": "layers.{l}.attention.wk.weight",
      "v": "layers.{l}.attention.wv.weight",
      "o": "layers.{l}.attention.wo.weight",
      "gate": "layers.{l}.feed_forward.w1.weight",
      "up": "layers.{l}.feed_forward.w3.weight",
      "down": "layers.{l}.feed_forward.w2.weight",
    },
    "stored": "out_in",
    "gains": {
      "q+k+v": "layers.{l}.attention_norm.weight",
      "gate+up": "layers.{l}.ffn_norm.weight",
    },
    "rest": r"layers\.\d+\..*norm\.weight",
    "sides": LLAMA_SIDES,
  },
  # The same in GGUF; there q and k have their rows permuted for other rotary
  # pairs, which no cosine sees.
  "llama_gguf": {
    "layers": {
      "q": "blk.{l}.attn_q.weight",
      "k": "blk.{l}.attn_k.weight",
      "v": "blk.{l}.attn_v.weight",
      "q+k+v": "blk.{l}.attn_qkv.weight",
      "o": "blk.{l}.attn_output.weight",
      "gate": "blk.{l}.ffn_gate.weight",
      "up": "blk.{l}.ffn_up.weight",
      "down": "blk.{l}.ffn_down.weight",
    },
    "stored": "out_in",
    "gains": {
      "q+k+v": "blk.{l}.attn_norm.weight",
      "gate+up": "blk.{l}.ffn_norm.weight",
    },
    "rest": r"blk\.\d+\..*(norm|bias|rope_freqs)[^/]*",
    "sides": LLAMA_SIDES,
    # Phi-3 has gate and up in `ffn_up`; GPT-2 has no gate.
    "needs": ["gate"],
  },
  "gpt2": {
    "layers": {
      "q+k+v": "h.{l}.attn.c_attn.weight",
      "o": "h.{l}.attn.c_proj.weight",
      "up": "h.{l}.mlp.c_fc.weight",
      "down": "h.{l}.mlp.c_proj.weight",
    },
    "stored": "in_out",
    "gains": {
      "q+k+v": "h.{l}.ln_1.weight",
      "up": "h.{l}.ln_2.weight",
    },
    "rest": r"h\.\d+\..*(ln_\d\.\w+|bias)",
    "sides": GPT2_SIDES,
  },
  "gpt2_gguf": {
    "layers": {
      "q+k+v": "blk.{l}.attn_qkv.weight",
      "o": "blk.{l}.attn_output.weight",
      "up": "blk.{l}.ffn_up.weight",
      "down": "blk.{l}.ffn_down.weight",
    },
    "stored": "out_in",
    "gains": {
      "q+k+v": "blk.{l}.attn_norm.weight",
      "up": "blk.{l}.ffn_norm.weight",
    },
    "rest": r"blk\.\d+\..*(norm\.\w+|bias)",
    "sides": GPT2_SIDES,
  },
  # Checkpoints of this project: stacked kernels, one entry a layer.
  "geom_llama": {
    "layers": {
      "q": "blocks/attention/q/kernel/{l}",
      "k": "blocks/attention/k/kernel/{l}",
      "v": "blocks/attention/v/kernel/{l}",
      "o": "blocks/attention/o/kernel/{l}",
      "gate": "blocks/mlp/gate/kernel/{l}",
      "up": "blocks/mlp/up/kernel/{l}",
      "down": "blocks/mlp/down/kernel/{l}",
    },
    "stored": "in_out",
    "gains": {
      "q+k+v": "blocks/attention_norm/scale/{l}",
      "gate+up": "blocks/mlp_norm/scale/{l}",
    },
    "rest": r"blocks/.*(norm|bias).*/\d+",
    "sides": LLAMA_SIDES,
    "needs": ["gate"],
  },
  "geom_gpt2": {
    "layers": {
      "q+k+v": "blocks/attention/qkv/kernel/{l}",
      "q": "blocks/attention/q/kernel/{l}",
      "k": "blocks/attention/k/kernel/{l}",
      "v": "blocks/attention/v/kernel/{l}",
      "o": "blocks/attention/o/kernel/{l}",
      "up": "blocks/mlp/up/kernel/{l}",
      "down": "blocks/mlp/down/kernel/{l}",
    },
    "stored": "in_out",
    "gains": {
      "q+k+v": "blocks/attention_norm/scale/{l}",
      "up": "blocks/mlp_norm/scale/{l}",
    },
    "rest": r"blocks/.*(norm|bias).*/\d+",
    "sides": GPT2_SIDES,
  },
  # The residual MLP: one square kernel a layer reads the stream and writes it.
  "geom_resmlp": {
    "layers": {"kernel": "hidden/kernel/{l}"},
    "stored": "in_out",
    "gains": {},
    "rest": r"hidden/(norm|bias).*",
    "sides": {"kernel": "input"},
  },
}

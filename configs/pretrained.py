"""The geometry of a checkpoint that others trained (arXiv 2605.04971).

    python launch.py --config=configs/pretrained.py:smollm2
    python launch.py --config=configs/pretrained.py:any --config.source=PATH

PATH is a folder of Hugging Face's with safetensors, a file of safetensors, a
GGUF file, or a checkpoint of this project. Variants: `smollm2`, of which pip
brings the weights; `smollm2_loss`, which besides measures what sharing bases
and leaving out layers costs in loss; `any`; `llama3_8b` and `llama3_70b`,
whose weights must lie where `source` says. Kernels are read one at a time, so
that 70B parameters need no more memory than their largest matrix.
"""

from ml_collections import ConfigDict

from configs.gpt2 import in_order

# The section `source` and what must lie there.
SOURCES = {
  "smollm2": ("smollm2", ""),
  "smollm2_loss": ("smollm2", ""),
  "any": ("", ""),
  "llama3_8b": (
    "DATA_DIR/weights/Llama-3.1-8B",
    "the safetensors, index and config.json of meta-llama/Llama-3.1-8B of "
    "Hugging Face, 16 GB",
  ),
  "llama3_70b": (
    "DATA_DIR/weights/Llama-3.1-70B",
    "the safetensors, index and config.json of meta-llama/Llama-3.1-70B of "
    "Hugging Face, 141 GB",
  ),
}


def get_config(variant: str = "smollm2") -> ConfigDict:
  if variant not in SOURCES:
    raise ValueError(f"no variant {variant!r}; there are {', '.join(SOURCES)}")
  source, where = SOURCES[variant]
  return in_order(
    {
      "experiment": "continuity_pretrained",
      # A path; DATA_DIR in it is the data folder. smollm2: by package.
      "source": source,
      "what": where,
      # Of a checkpoint of ours: which of its seeds, from 0.
      "seed_index": 0,
      # {}: by the names of the tensors. Else how to read names, see README.
      "family": {},
      "analysis": {
        # Projections; (): all.
        "projections": (),
        # Singular vectors kept on each side.
        "k": 64,
        # Sizes of common bases, and of overlaps.
        "ks": (8, 16, 32, 64),
        # Layers that share a basis, besides all.
        "windows": (2, 4),
        # diag(gain) K too, with the gain of the norm that K reads.
        "folded": True,
        # Up to this shorter side all singular values are computed, above it
        # leading ones, and the effective rank is estimated.
        "full_below": 2048,
        # Small kernels at a time; None: as many as there are cores.
        "workers": None,
      },
      "loss": {
        "enabled": variant == "smollm2_loss",
        "text": "wiki",
        "windows": 8,
        "length": 128,
        "ks": (8, 16, 32, 64, 256),
        # Layers that share a basis; 0: all; 1: each has its own.
        "shared": (1, 2, 4, 0),
      },
      # When a checkpoint agrees with the paper; fixed before any run.
      "claims": {
        # |cos|, mean over pairs of layers, as a multiple of its chance level.
        "above_chance": 4.0,
        # ... and how far it is further above chance than V's on that side.
        "above_v": 0.2,
        # |cos| of V is no larger multiple of chance than this.
        "v_at_most": 3.0,
        # Loss: share of sizes and windows in which a common basis costs less
        # on the side that is continuous than on the other.
        "matched_at_least": 0.75,
        # Loss: rank correlation over layers of their continuity and what
        # leaving them out costs; continuous layers should cost less.
        "removal_at_most": -0.3,
      },
    }
  )

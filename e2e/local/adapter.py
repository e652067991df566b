"""Make a LoRA adapter of random weights for a tiny model, by the engine's Python: ``adapter.py MODEL OUTDIR SEED``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK = 8
SPREAD = 0.2
"""Of the weights: wide enough that two adapters answer most prompts differently."""


def main() -> None:
    """Write the adapter: its rank and targets, and two matrices for each projection of each layer."""
    import torch
    from safetensors.torch import save_file

    model, folder, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    config = json.loads((model / "config.json").read_text())
    hidden, heads, size = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    torch.manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in (("q_proj", heads * size), ("v_proj", config["num_key_value_heads"] * size)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, hidden) * SPREAD
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, RANK) * SPREAD
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about | {"base_model_name_or_path": str(model)}))


if __name__ == "__main__":
    main()

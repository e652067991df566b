"""Models with random weights: configurations, and the folders that they are made in.

    python -m e2e.gpu.models KIND FOLDER

Run by an interpreter with torch, transformers and safetensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples import tiny_model

SPREAD = 0.025
"""Of a large model's weights: as much of a layer's output for its width as the tiny model's."""
SHARPNESS = 3.0
"""Of attention, by the weights that scale queries. At 1 a head averages over all tokens, and of 30,000 none counts."""
VOCABULARY = tiny_model.VOCABULARY
LONGEST = 40960
QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "eos_token_id": 2,
    "bos_token_id": 0,
}


def gemma3_4b() -> Any:
    """Return the configuration of a model of Gemma 3's 4 billion parameters: 5 layers of 6 have a window of 1,024."""
    from transformers import Gemma3TextConfig

    layers = 34
    return Gemma3TextConfig(
        **_common(hidden=2560, layers=layers, heads=8, kv_heads=4),
        intermediate_size=10240,
        sliding_window=1024,
        layer_types=["sliding_attention" if (at + 1) % 6 else "full_attention" for at in range(layers)],
    )


def qwen3_next_2b() -> Any:
    """Return the configuration of a recurrent model: layers of Qwen3-Next's own widths, half as many, 8 experts."""
    from transformers import Qwen3NextConfig

    layers, experts = 24, 8
    return Qwen3NextConfig(
        **_common(hidden=2048, layers=layers, heads=16, kv_heads=2),
        intermediate_size=5120,
        layer_types=["linear_attention" if (at + 1) % 4 else "full_attention" for at in range(layers)],
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=experts,
        # All of them: a choice among experts turns a rounding error into another answer.
        num_experts_per_tok=experts,
        moe_intermediate_size=1024,
        shared_expert_intermediate_size=1024,
        decoder_sparse_step=1,
    )


HYBRIDS: dict[str, Callable[[], Any]] = {"gemma3-4b": gemma3_4b, "qwen3-next-2b": qwen3_next_2b}
"""Large models with several kinds of layers; transformers knows their weights."""
TINY = {f"tiny-{kind}": kind for kind in tiny_model.KINDS}


def make(kind: str, folder: Path) -> Path:
    """Return the folder of the model, made when it is not there: ``qwen3-4b``, a hybrid, or a tiny one.

    Raises KeyError for another kind.
    """
    if kind in TINY:
        tiny_model.make(TINY[kind], folder / kind, 0)
        return folder / kind
    made = folder / kind
    if not (made / tiny_model.MARKER).exists():
        tokenizer = make("tiny-qwen3", folder)
        made.mkdir(parents=True, exist_ok=True)
        for file in tokenizer.iterdir():
            if file.name.startswith(("token", "chat", "special")):
                (made / file.name).write_bytes(file.read_bytes())
        if kind == "qwen3-4b":
            (made / "config.json").write_text(json.dumps(QWEN3_4B))
            _write_weights(QWEN3_4B, made / "model.safetensors")
        else:
            _write_hybrid(HYBRIDS[kind](), made)
        (made / tiny_model.MARKER).write_text(f"{kind}\n", encoding="ascii")
    return made


def weights(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return names and forms of the weights of a dense Qwen3 whose embeddings are tied."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_norm": (size,),
            "self_attn.k_norm": (size,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        found |= {f"model.layers.{number}.{name}.weight": form for name, form in layer.items()}
    return found


def _common(*, hidden: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "max_position_embeddings": LONGEST,
        "initializer_range": SPREAD,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _write_weights(config: dict[str, Any], file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, form in weights(config).items():
        if len(form) == 1:
            value = torch.full(form, SHARPNESS if "q_norm" in name else 1.0)
        else:
            value = torch.empty(form, device=device).normal_(0.0, SPREAD, generator=random)
        tensors[name] = value.to(torch.bfloat16).cpu()
    save_file(tensors, str(file), metadata={"format": "pt"})


def _write_hybrid(config: Any, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("q_norm.weight"):
                # These models' norms add 1 to their weights.
                value.fill_(SHARPNESS - 1.0)
    model.save_pretrained(folder)


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))

"""What the lane asks of a service, on GPUs and on a machine without one: models, prompts, sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples import tiny_model

from .ttft import QWEN3_4B

GIB = 2**30
SPREAD = 0.025
"""Of the large model's weights: as much of a layer's output for its width as the tiny model's."""
SHARPNESS = 3.0
"""Of attention, by the weights that scale queries. At 1 a head averages over all tokens, and of 30,000 none counts."""
MODEL = "lane"


@dataclass(frozen=True)
class Shape:
    """A model and what is asked of it. ``staging`` holds two prompts of ``slot_tokens`` and not three."""

    name: str
    device: str
    context: int
    dtype: str
    lengths: tuple[int, ...]
    """Prompts whose token ids are compared."""
    timed: tuple[int, ...]
    """Prompts whose transfer is timed."""
    kv_token: int
    """Bytes of KV of a token."""
    staging: int
    large_staging: int
    """Takes the longest prompt."""
    scatter: tuple[int, int, int]
    """Requests that scatter the blocks, and their fewest and most tokens."""
    crowd: int
    """Transfers at once."""
    long_prompt: int
    """Tokens of a prompt whose transfer lasts long enough to be met by a fault."""
    kv_bytes: int | None = None
    """KV cache of an engine; None: what the engine takes by itself."""
    small_kv_bytes: int | None = None
    """The same of the yardstick, and where tiers are looked at: few prompts evict."""
    l1: str = "16Gi"
    exact: bool = False
    """Whether engines compute the same whatever else they compute at once: then answers are equal, or wrong."""
    shared: bool = False
    """Whether all engines are on one GPU."""

    @property
    def slot_tokens(self) -> int:
        """Tokens of the largest prompt of which two fit into the staging memory, with 64 KiB to spare for each."""
        return (self.staging // 2 - 65536) // self.kv_token // 128 * 128

    def fresh_times(self, tokens: int) -> int:
        """Return how often a length is timed on fresh engines: no block of theirs may be a used one."""
        if not self.shared:
            return 4
        return 1 if tokens == self.timed[-1] else 3

    def environment(self) -> dict[str, str]:
        """Return the variables of all engines."""
        if self.device == "cpu":
            return {}
        # The sampler of FlashInfer is compiled at the first request.
        found = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
        if self.exact:
            found["VLLM_BATCH_INVARIANT"] = "1"
        if self.shared:
            # UCX reads by CUDA's own means only between GPUs with NVLinks, unless told to, and else by TCP.
            found["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] = "on"
        return found


GPU = Shape(
    name="qwen3-4b",
    device="gpu",
    context=32768,
    dtype="bfloat16",
    lengths=(15, 16, 17, 257, 2048, 16000, 30000),
    timed=(512, 2000, 8000, 16000, 30000),
    kv_token=147_456,
    staging=512 * 2**20,
    large_staging=5 * GIB,
    scatter=(400, 20, 3000),
    crowd=64,
    long_prompt=30000,
    # Every timed prompt on a fresh engine has blocks that none had before it; three such engines share a GPU.
    kv_bytes=34 * GIB,
    small_kv_bytes=8 * GIB,
)
TINY = Shape(
    name="tiny",
    device="cpu",
    context=4096,
    dtype="float32",
    lengths=(15, 16, 17, 257, 700, 1500, 3000),
    timed=(512, 2000),
    kv_token=4096,
    staging=8 * 2**20,
    large_staging=32 * 2**20,
    scatter=(24, 20, 600),
    crowd=64,
    long_prompt=3000,
    l1="64Mi",
)
SHARED_KV_BYTES = 17 * GIB
"""Takes what is timed on fresh engines (``fresh_times``), and four such engines fit beside the yardstick."""


def on_one_gpu(shape: Shape) -> Shape:
    """Return the shape for a host whose one GPU all engines share."""
    return replace(shape, shared=True, kv_bytes=SHARED_KV_BYTES)


SHAPES = {shape.name: shape for shape in (GPU, TINY)}


def make(shape: Shape, folder: Path) -> Path:
    """Return the folder of the shape's model, with random weights, made when it is not there.

    Run by an interpreter with torch, transformers and safetensors.
    """
    tiny = folder / "tiny-qwen3"
    tiny_model.make("qwen3", tiny, 0)
    if shape is TINY:
        return tiny
    made = folder / shape.name
    if not (made / tiny_model.MARKER).exists():
        made.mkdir(parents=True, exist_ok=True)
        for file in tiny.iterdir():
            if file.name.startswith(("token", "chat", "special")):
                (made / file.name).write_bytes(file.read_bytes())
        (made / "config.json").write_text(json.dumps(QWEN3_4B))
        _write_weights(QWEN3_4B, made / "model.safetensors")
        (made / tiny_model.MARKER).write_text(f"{shape.name}\n", encoding="ascii")
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


if __name__ == "__main__":
    import sys

    print(make(SHAPES[sys.argv[1]], Path(sys.argv[2])))

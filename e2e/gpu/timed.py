"""What ``first_tokens`` asks of an engine: models, sizes of its caches, lengths of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Timed:
    """A model, an engine and its prompts. The own cache takes the longest prompt, and not the prompts of a flood."""

    name: str
    device: str
    model: str
    """Of ``models``."""
    lengths: tuple[int, ...]
    kv_token: int
    """Bytes of KV of a token, all layers."""
    own_bytes: int
    """KV cache of the engine."""
    l1_bytes: int
    """Takes a flood and what was asked before it."""
    store_bytes: int = 40 * GIB
    """Bound of the store behind L1."""
    flood: tuple[int, int] = (500, 320)
    """Prompts, and their tokens."""
    flooded: tuple[int, int] = (10, 1300)
    """Prompts that are asked again after the flood, and their tokens."""
    dense: bool = True
    """Whether all layers are full attention: every whole block of a prompt is loaded then."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """For vLLM as it is."""

    def settings(self, longest: int) -> dict[str, Any]:
        """Return vLLM's settings for prompts of up to ``longest`` tokens."""
        found: dict[str, Any] = {
            "max_model_len": longest + 64,
            "kv_cache_memory_bytes": self.own_bytes,
            "gpu_memory_utilization": 0.1,
        }
        return {**found, **self.more}

    def asked(self, lengths: Sequence[int], block: int) -> tuple[int, ...]:
        """Return the lengths that an engine with blocks of so many tokens is asked.

        Those of a model with recurrent layers are whole blocks: for a prompt that ends within one, vLLM 0.32 keeps no
        state that the same prompt could start from when it is asked again, and so there is none to load.
        """
        if not self.recurrent:
            return tuple(lengths)
        return tuple(dict.fromkeys(max(1, length // block) * block for length in lengths))

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep a state instead of KV."""
        return _STATES.items() <= self.more.items()


_ON_CPU = {"enforce_eager": True, "dtype": "float32", "block_size": 32, "max_num_seqs": 16}
_STATES = {"mamba_cache_mode": "align"}
SHAPES = {
    shape.name: shape
    for shape in (
        Timed(
            name="qwen3-4b",
            device="gpu",
            model="qwen3-4b",
            lengths=(512, 2000, 8000, 32000),
            kv_token=147_456,
            own_bytes=5 * GIB,
            l1_bytes=26 * GIB,
        ),
        Timed(
            name="gemma3-4b",
            device="gpu",
            model="gemma3-4b",
            lengths=(2000, 16000),
            kv_token=139_264,
            own_bytes=5 * GIB,
            l1_bytes=26 * GIB,
            dense=False,
        ),
        Timed(
            name="qwen3-next-2b",
            device="gpu",
            model="qwen3-next-2b",
            lengths=(2000, 16000),
            kv_token=12_288,
            own_bytes=6 * GIB,
            l1_bytes=26 * GIB,
            dense=False,
            # A running prompt holds a block of states: vLLM wants one for each of its 1,024, more than the cache has.
            # FlashInfer's kernels for the states want CUTLASS' own language, which a host may lack.
            more=_STATES | {"max_num_seqs": 256, "gdn_prefill_backend": "triton"},
        ),
        Timed(
            name="tiny",
            device="cpu",
            model="tiny-qwen3",
            lengths=(512, 2000),
            kv_token=4096,
            own_bytes=16 * MIB,
            l1_bytes=256 * MIB,
            store_bytes=GIB,
            flood=(500, 96),
            flooded=(10, 300),
            more=_ON_CPU,
        ),
        Timed(
            name="tiny-gemma3",
            device="cpu",
            model="tiny-gemma3",
            lengths=(512, 2000),
            kv_token=6144,
            own_bytes=32 * MIB,
            l1_bytes=512 * MIB,
            store_bytes=GIB,
            flood=(500, 96),
            flooded=(10, 300),
            dense=False,
            more=_ON_CPU,
        ),
        Timed(
            name="tiny-qwen3-next",
            device="cpu",
            model="tiny-qwen3-next",
            lengths=(512, 2000),
            kv_token=1024,
            own_bytes=64 * MIB,
            l1_bytes=512 * MIB,
            store_bytes=GIB,
            flood=(500, 96),
            flooded=(10, 300),
            dense=False,
            # vLLM's gated delta net on a CPU computes in bfloat16 alone, with blocks of its own choice.
            more={"enforce_eager": True, "dtype": "bfloat16", "max_num_seqs": 16, **_STATES},
        ),
    )
}

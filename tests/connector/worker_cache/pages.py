"""What a model would compute, without one: every byte of a block follows from the tokens before its end.

So a block that holds anything else than it should shows, on any rank and in any layer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

LAYERS = 2
PAGE = 128
"""Bytes of one block in one layer, of every group: groups share their memory, as they do in vLLM."""
SLOT = 4096
"""Bytes of a slot of L1: one block, rounded up to pages of the system."""
VOCABULARY = 512
_DTYPES = {16: torch.float32, 32: torch.float16, 64: torch.int8}


def full(block: int = 16) -> Any:
    """A group that needs every block of a prefix."""
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=_DTYPES[block])


def sliding(window: int, block: int = 16) -> Any:
    """A group that needs the last ``window`` tokens."""
    return SlidingWindowSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=_DTYPES[block], sliding_window=window)


def replayed() -> Any:
    """A group that vLLM computes again after each prefix: nothing of it is kept. Skips where vLLM has none."""
    if "bounded_replay" not in {field.name for field in dataclasses.fields(SlidingWindowMLASpec)}:
        pytest.skip("this vLLM keeps all groups")
    return SlidingWindowMLASpec(
        block_size=16, num_kv_heads=1, head_size=2, dtype=_DTYPES[16], sliding_window=32, bounded_replay=True
    )


def mamba(block: int = 32, mode: str = "align") -> Any:
    """A group of states."""
    return MambaSpec(block_size=block, shapes=((PAGE // 4,),), dtypes=(torch.float32,), mamba_cache_mode=mode)


def cache_config(groups: Sequence[Any], blocks: int) -> Any:
    """vLLM's configuration of a cache with these groups."""
    named = [KVCacheGroupSpec([f"{g}.{layer}" for layer in range(LAYERS)], spec) for g, spec in enumerate(groups)]
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=named)


class Text:
    """A prompt and what the model answers to it. ``salt`` is what else its bytes depend on."""

    def __init__(self, prompt: Sequence[int], salt: bytes = b"") -> None:
        self.prompt = tuple(prompt)
        self._tokens = list(prompt)
        self._salt = salt
        self._states: dict[int, bytes] = {}

    def tokens(self, length: int) -> tuple[int, ...]:
        """Return the first tokens of prompt and answer."""
        while len(self._tokens) < length:
            self._tokens.append(int.from_bytes(self._hash(len(self._tokens))[:2], "little") % VOCABULARY)
        return tuple(self._tokens[:length])

    def answer(self, length: int) -> list[int]:
        """Return the first ``length`` tokens of the answer."""
        return list(self.tokens(len(self.prompt) + length)[len(self.prompt) :])

    def state(self, length: int) -> bytes:
        """Return 16 bytes that follow from the first ``length`` tokens, and from the salt."""
        known = self._states.get(length)
        if known is None:
            self.tokens(length)
            known = self._states[length] = self._hash(length)
        return known

    def _hash(self, length: int) -> bytes:
        tokens = np.asarray(self._tokens[:length], np.int32).tobytes()
        return hashlib.blake2b(self._salt + tokens, digest_size=16).digest()


class Pages:
    """The KV cache of one rank."""

    def __init__(self, rank: int, groups: Sequence[Any], blocks: int) -> None:
        self.rank = rank
        self.groups = tuple(groups)
        self._memory = [torch.zeros(blocks * PAGE, dtype=torch.int8) for _ in range(LAYERS)]
        self._rows = [memory.numpy().view(np.uint8).reshape(blocks, PAGE) for memory in self._memory]

    def tensors(self) -> dict[str, Any]:
        """Return what vLLM registers with a connector, by layer."""
        found: dict[str, Any] = {}
        for group, spec in enumerate(self.groups):
            for layer, memory in enumerate(self._memory):
                if isinstance(spec, SlidingWindowMLASpec):
                    shaped = memory.view(spec.dtype).view(-1, spec.block_size, 2)
                elif isinstance(spec, MambaSpec):
                    shaped = memory.view(torch.float32).view(-1, 1, 1, PAGE // 4)
                else:
                    shaped = memory.view(spec.dtype).view(-1, 1, spec.block_size, 2)
                found[f"{group}.{layer}"] = shaped
        return found

    def compute(self, group: int, table: Sequence[int], text: Text, start: int, end: int) -> None:
        """Write what one step computes: the tokens from ``start`` to before ``end``."""
        spec = self.groups[group]
        if not getattr(spec, "prefix_cacheable", True):
            return
        size = spec.block_size
        first = (end - 1) // size if isinstance(spec, MambaSpec) else start // size
        places = range(first, -(-end // size))
        blocks = self._blocks(group, table, places)
        for layer, rows in enumerate(self._rows):
            rows[blocks] = self._content(group, layer, text, [min(end, (each + 1) * size) for each in places])

    def check(self, group: int, table: Sequence[int], text: Text, end: int) -> None:
        """Raise AssertionError unless everything is there that going on after ``end`` tokens reads."""
        spec = self.groups[group]
        size = spec.block_size
        if not end or not getattr(spec, "prefix_cacheable", True):
            return
        first, stop = 0, end // size
        if isinstance(spec, MambaSpec):
            first, stop = (end - 1) // size, -(-end // size)
        elif isinstance(spec, SlidingWindowSpec):
            first = max(0, end - spec.sliding_window + 1) // size
        places = range(first, stop)
        blocks = self._blocks(group, table, places)
        for layer, rows in enumerate(self._rows):
            wanted = self._content(group, layer, text, [min(end, (each + 1) * size) for each in places])
            wrong = [each for each, same in zip(places, (rows[blocks] == wanted).all(axis=1), strict=True) if not same]
            assert not wrong, f"rank {self.rank}, group {group}, layer {layer}: wrong bytes in blocks {wrong}"

    def copy(self, source: int, target: int) -> None:
        """Copy a block, as vLLM does before it changes one that is shared."""
        for rows in self._rows:
            rows[target] = rows[source]

    def _blocks(self, group: int, table: Sequence[int], places: range) -> list[int]:
        blocks = [table[place] for place in places]
        assert all(blocks), f"rank {self.rank}, group {group}: of blocks {places} some have no memory"
        return blocks

    def _content(self, group: int, layer: int, text: Text, ends: Sequence[int]) -> Any:
        """Return what blocks hold whose last tokens are the ones before these."""
        states = np.frombuffer(b"".join(text.state(end) for end in ends), np.uint8).reshape(len(ends), 16)
        return np.tile(states, PAGE // 16) ^ np.uint8(1 + layer + LAYERS * group + 32 * self.rank)

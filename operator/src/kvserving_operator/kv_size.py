"""Bytes of KV in an engine's memory, as far as the facts of a model tell them."""

from __future__ import annotations

from fractions import Fraction

from .api.v1alpha1 import KVSettings, Parallelism
from .engines.catalog import Device
from .model_facts import ModelFacts

# Bytes of one number by the beginning of the type's name. A model that is stored as fp8 may mean fp8 by auto.
_WIDTHS = {
    "auto": Fraction(2),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "float32": Fraction(4),
    "fp8": Fraction(1),
}
# Tokens of a block where nothing is set: vLLM's own default, which backends only raise.
_TOKENS: dict[Device, int] = {"gpu": 16, "cpu": 128}


def block_tokens(facts: ModelFacts, kv: KVSettings, device: Device) -> int:
    """Tokens of a block: those that are set, else the fewest that vLLM chooses for the device."""
    if device == "cpu" and facts.latent:
        return 16
    return _TOKENS[device] if kv.block_size == "auto" else kv.block_size


def block_bytes(facts: ModelFacts, kv: KVSettings, parallel: Parallelism, device: Device) -> int | None:
    """Fewest bytes that a block takes in the memory of one rank: keys and values of all its layers.

    None for models of several cache groups, whose facts do not say how their layers share blocks, and where layers,
    heads or the type are not known.
    """
    width = next((width for name, width in _WIDTHS.items() if kv.dtype.startswith(name)), None)
    if facts.kind != "attention" or not facts.layers or not facts.kv_heads or not facts.head_dim or width is None:
        return None
    layers = -(-facts.layers // parallel.pipeline)
    numbers = facts.head_dim if facts.latent else 2 * facts.head_dim * max(1, facts.kv_heads // parallel.tensor)
    return int(block_tokens(facts, kv, device) * layers * numbers * width)

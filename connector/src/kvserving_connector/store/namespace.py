"""What must be equal so that one engine may read another's objects, and its digest.

A prefix-cache hash covers the tokens, the LoRA adapter (name and path), the cache salt, images and prompt embeddings
of a block; it covers neither the model nor how its KV is laid out. The namespace covers those.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvserving_connector.store.framing import FORMAT_VERSION


@dataclass(frozen=True)
class Namespace:
    """The fields of a namespace. Two engines share objects when all of them are equal."""

    model: str
    """Name or path as the engine was given it."""
    kv_dtype: str
    layout: str
    groups: tuple[tuple[int, tuple[str, ...]], ...]
    """Per cache group, tokens per block and the names of its layers."""
    tokens_per_hash: int
    blocks_per_chunk: int
    chunk_bytes: int
    """Length of a body: the slices of all workers, with padding."""
    parallel: Mapping[str, int]
    """Sizes of tensor, pipeline and context parallelism, workers, and how they hold the bytes."""
    hash_root: str
    """Hash that all chains of block hashes start from: it differs by algorithm and by seed."""
    tenant: str = ""
    engine: str = ""
    """Minor version of the engine; empty to share across versions."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Further facts about model and engine, such as revision and fingerprint of the weights."""

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    def digest(self) -> bytes:
        """Return 32 bytes that are equal for equal fields only: SHA-256 of their canonical JSON."""
        facts = self.facts()
        facts["format"] = FORMAT_VERSION
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).digest()


def minor(version: str) -> str:
    """Return the first two numbers of a version, such as ``0.32`` for ``0.32.0``; the text itself if it has fewer."""
    return ".".join(version.split(".")[:2])


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value

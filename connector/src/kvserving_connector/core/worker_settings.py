"""Settings of ``WorkerCacheConnector``: ``kv_connector_extra_config`` in, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvserving_connector.core import choice
from kvserving_connector.core.loads import Loads
from kvserving_connector.core.tier_settings import (
    DEFAULT_LOAD_TIMEOUT_S,
    STORE_SETTINGS,
    STORE_TIER,
    cpu_bytes,
    load_timeout,
    loads_rule,
    refuse,
    secondary_tiers_of,
)


class Offload(StrEnum):
    """When blocks are saved to L1."""

    EAGER = "eager"
    """As soon as they are computed."""
    LAZY = "lazy"
    """When they are the next that the engine's own cache gives up."""


_KNOWN = frozenset(
    {
        "cpu_bytes_to_use",
        "defer",
        "eviction_policy",
        "hybrid_chunk_size",
        "load_timeout_s",
        "load_weight",
        "loads",
        "offload",
        "offload_prompt_only",
        "secondary_tiers",
    }
)


_OF_EVERY_TIER = frozenset({"type", "module_path", "locality"})


@dataclass(frozen=True)
class WorkerCacheSettings:
    """What one ``WorkerCacheConnector`` is told. Sizes in bytes, times in seconds.

    ``cpu_bytes`` is the size of L1 on one host, all ranks there together. ``store`` are the settings of the L2 tier,
    None without one. ``chunk_tokens`` is ``hybrid_chunk_size``, None for the smallest that the model's cache allows.
    """

    cpu_bytes: int
    offload: Offload = Offload.EAGER
    prompt_only: bool = True
    chunk_tokens: int | None = None
    loads: Loads = Loads.AUTO
    load_timeout_s: float = DEFAULT_LOAD_TIMEOUT_S
    store: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, extra: Mapping[str, Any], addresses: str = "its URL") -> WorkerCacheSettings:
        """Read ``kv_connector_extra_config``. ``addresses`` are examples of a store's, for the way out.

        Raises ValueError naming the field, its value, the reason and the way out.
        """
        for name in sorted(set(extra) - _KNOWN, key=str):
            reason = "a tier that workers own has no such setting"
            raise refuse(name, extra[name], reason, f"remove it, or use one of {', '.join(sorted(_KNOWN))}")
        policy = extra.get("eviction_policy", "lru")
        if policy != "lru":
            way_out = "use lru, or TieredOffloadConnector, whose scheduler owns the tier"
            raise refuse("eviction_policy", policy, "workers evict what was used least recently", way_out)
        choice.check(extra)
        return cls(
            cpu_bytes=cpu_bytes(extra.get("cpu_bytes_to_use")),
            offload=_offload(extra.get("offload", Offload.EAGER)),
            prompt_only=_truth("offload_prompt_only", extra.get("offload_prompt_only", True)),
            chunk_tokens=_chunk_tokens(extra.get("hybrid_chunk_size")),
            loads=loads_rule(extra.get("loads", Loads.AUTO)),
            load_timeout_s=load_timeout(extra.get("load_timeout_s", DEFAULT_LOAD_TIMEOUT_S)),
            store=_store(extra.get("secondary_tiers", []), addresses),
        )


def _offload(value: Any) -> Offload:
    if not isinstance(value, str) or value not in list(Offload):
        raise refuse("offload", value, "no such rule", f"use one of {', '.join(Offload)}")
    return Offload(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "it must be true or false", "write it without quotes")
    return value


def _chunk_tokens(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        reason = "it must be a whole number of tokens, at least 1"
        raise refuse("hybrid_chunk_size", value, reason, "use a multiple of the model's block size, or leave it out")
    return value


def _store(value: Any, addresses: str) -> Mapping[str, Any] | None:
    tiers = secondary_tiers_of(value)
    if not tiers:
        return None
    # Settings of a store are not repeated here: they may hold credentials.
    if len(tiers) > 1 or tiers[0]["type"] != STORE_TIER:
        kinds = [tier["type"] for tier in tiers]
        raise ValueError(
            f"kv_connector_extra_config.secondary_tiers: workers read and write one tier of type {STORE_TIER}, not "
            f"{kinds!r}; keep that one, or use TieredOffloadConnector for others"
        )
    store = tiers[0]
    where = "kv_connector_extra_config.secondary_tiers[0]"
    for name in sorted(set(store) - STORE_SETTINGS.keys() - _OF_EVERY_TIER, key=str):
        known = ", ".join(sorted(STORE_SETTINGS))
        raise ValueError(f"{where}.{name}: a store has no such setting; remove it, or use one of {known}")
    if not store.get("urls"):
        raise ValueError(f"{where}.urls: a store needs at least one address; write {addresses}")
    return store

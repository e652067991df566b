"""Settings of ``WorkerCacheConnector``: what is read, and what is refused with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from kvserving_connector.core.loads import Loads
from kvserving_connector.core.worker_settings import Offload, WorkerCacheSettings
from kvserving_connector.store.open import KINDS, examples

L1 = {"cpu_bytes_to_use": 2**30}
STORE = {"type": "SharedStoreTier", "urls": ["redis://a:secret@b"]}


def test_a_size_is_enough() -> None:
    assert WorkerCacheSettings.parse(L1) == WorkerCacheSettings(2**30)


def test_every_setting_is_read() -> None:
    given = {
        "cpu_bytes_to_use": 2**30,
        "eviction_policy": "lru",
        "offload": "lazy",
        "offload_prompt_only": False,
        "hybrid_chunk_size": 64,
        "loads": "always",
        "load_timeout_s": 7.5,
        "secondary_tiers": [STORE],
        "load_weight": 2,
        "defer": "soft",
    }
    read = WorkerCacheSettings.parse(given)
    assert read == WorkerCacheSettings(2**30, Offload.LAZY, False, 64, Loads.ALWAYS, 7.5, STORE)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"spec_name": "TieringOffloadingSpec"}, "spec_name.*TieringOffloadingSpec.*remove it, or use one of "),
        ({"eviction_policy": "arc"}, "eviction_policy.*arc.*use lru"),
        ({"offload": "sometimes"}, "offload.*sometimes.*use one of eager, lazy"),
        ({"offload_prompt_only": "false"}, "offload_prompt_only.*false.*without quotes"),
        ({"hybrid_chunk_size": 0}, "hybrid_chunk_size.*0.*at least 1"),
        ({"hybrid_chunk_size": True}, "hybrid_chunk_size.*True.*whole number"),
        ({"loads": "often"}, "loads.*often"),
        ({"load_timeout_s": 0}, "load_timeout_s.*0"),
        ({"load_weight": 0}, "kv_transfer_config.kv_connector_extra_config.load_weight=0.*above 0"),
        ({"defer": True}, "kv_transfer_config.kv_connector_extra_config.defer=True.*soft"),
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use.*None"),
        ({"cpu_bytes_to_use": -1}, "cpu_bytes_to_use.*-1"),
        ({"secondary_tiers": [STORE, STORE]}, "secondary_tiers: .*one tier of type SharedStoreTier"),
        ({"secondary_tiers": [{"type": "fs"}]}, r"secondary_tiers: .*\['fs'\]; keep that one"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_the_way_out(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        WorkerCacheSettings.parse(L1 | changed)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"secondary_tiers": STORE},
        {"secondary_tier": [STORE]},
        {"urls": ["redis://a:secret@b"]},
        {"loads": "redis://a:secret@b"},
        {"secondary_tiers": [{**STORE, "max_bytez": "redis://a:secret@b"}]},
    ],
)
def test_no_error_repeats_an_address(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changed))) as told:
        WorkerCacheSettings.parse({**L1, **changed})
    assert "secret" not in str(told.value)


def test_a_store_without_addresses_or_with_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"secondary_tiers\[0\]\.urls: .* at least one address; write") as told:
        WorkerCacheSettings.parse({**L1, "secondary_tiers": [{"type": "SharedStoreTier"}]}, examples())
    assert all(kind.example in str(told.value) for kind in KINDS)
    with pytest.raises(ValueError, match=r"secondary_tiers\[0\]\.tennant: .* no such setting; .*tenant"):
        WorkerCacheSettings.parse({**L1, "secondary_tiers": [{**STORE, "tennant": "a"}]})

"""The L2 tier under vLLM's own tiering spec and manager, with real stores."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from prometheus_client import REGISTRY
from tests.connector.store.servers import Server
from tests.connector.tier.tier_engine import CHUNK, Engine, chunks, engine, keys, offloading_config
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256, sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import Locality, LookupResult
from vllm.v1.kv_offload.config import OffloadingModelConfig, OffloadingParallelConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvserving_connector.store import open as stores
from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason
from kvserving_connector.store.inventory import ListedStore, holdings
from kvserving_connector.store.open import Kind
from kvserving_connector.store.tally import Event
from kvserving_connector.store.valkey import ValkeyStore
from kvserving_connector.vllm import prober
from kvserving_connector.vllm.identity import store_identity, weights_of
from kvserving_connector.vllm.tier import SharedStoreTier

Start = Callable[..., Server]
CROSSINGS = {
    "model": {"model": OffloadingModelConfig("org/other", "bfloat16")},
    "dtype": {"model": OffloadingModelConfig("org/model", "fp8_e4m3")},
    "layout": {"kv_cache_layout": "BLHNC"},
    "tensor parallel": {"parallel": OffloadingParallelConfig(0, 1, 2, 1, 1, 1, 0, 1, None, False)},
    "tenant": {"tenant": "b"},
    "revision": {"identity": {"revision": "v2"}},
    "canonical": {"canonical_layout": True},
}


def block_hashes(*, lora: tuple[str, str] | None = None, salt: str | None = None) -> list[bytes]:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

    request = Request(
        request_id="r",
        prompt_token_ids=list(range(48)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=LoRARequest(lora[0], 1, lora[1]) if lora else None,
        cache_salt=salt,
        block_hasher=kv_cache_utils.get_request_block_hasher(16, sha256_cbor),
    )
    return [bytes(each) for each in request.block_hashes]


def forget_metrics() -> None:
    """The registry is one for the process, and other tests use it as well."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(("kvserving:", "vllm:")):
            REGISTRY.unregister(collector)


def test_one_engine_stores_and_another_loads_the_same_bytes(url: Any) -> None:
    data = chunks()
    with engine(url) as first:
        first.store(data)
        assert first.count("written_chunks") == 8
        assert first.count("written_bytes") == 8 * CHUNK
    with engine(url) as second:
        assert second.load([*data, *keys(2)]) == data
        assert second.count("hits") == second.count("read_chunks") == 8
        assert second.count("read_bytes") == 8 * CHUNK
        assert second.count("misses", "absent") == 2


def test_what_is_there_is_not_written_again(url: Any) -> None:
    data = chunks()
    with engine(url) as first, engine(url) as second:
        first.store(data)
        second.store(data)
        assert second.count("skipped_chunks", "present") == 8
        assert second.count("written_chunks") == 0


def test_the_keys_that_the_operator_renders_are_the_keys_of_the_tier(tmp_path: Path) -> None:
    with engine(
        f"file://{tmp_path}/l2", tenant="a", max_bytes=2**30, load_timeout_s=30, share_across_versions=True
    ) as it:
        assert it.tier.locality is Locality.REMOTE
        assert it.tier._client.sweeper.limit() == 2**30
        assert it.load(keys(1)) == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"load_timeout_s": 0}, "^load_timeout_s: 0"),
        ({"load_timeout_s": float("nan")}, "^load_timeout_s: nan"),
        ({"max_inflight": 0}, "^max_inflight: 0"),
        ({"max_bytes": -1}, "^max_bytes: -1"),
        ({"urls": []}, "^urls: "),
        ({"urls": ["ftp://x"]}, "^urls: "),
    ],
    ids=str,
)
def test_wrong_settings_name_the_key(tmp_path: Path, setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Engine(offloading_config(f"file://{tmp_path}", **setting))


def test_settings_of_nobody_are_told_and_do_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with engine(f"file://{tmp_path}", compression="zstd"):
        pass
    assert "compression" in caplog.text


@pytest.mark.parametrize("change", CROSSINGS.values(), ids=CROSSINGS)
def test_engines_that_differ_never_hit_each_others_objects(url: Any, change: dict[str, Any]) -> None:
    data = chunks(4)
    with engine(url) as first, engine(url, **change) as second:
        first.store(data)
        assert second.load(list(data)) == {}
        other = {key: os.urandom(CHUNK) for key in data}
        second.store(other)
        assert second.count("written_chunks") == 4
    with engine(url) as first, engine(url, **change) as second:
        assert first.load(list(data)) == data
        assert second.load(list(data)) == other


def test_versions_share_only_when_told_to(url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = chunks(4)
    with engine(url) as first, engine(url, share_across_versions=True) as sharing:
        first.store(data)
        sharing.store(data)
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with engine(url) as second, engine(url, share_across_versions=True) as sharing:
        assert second.load(list(data)) == {}
        assert sharing.load(list(data)) == data


def test_another_seed_or_algorithm_of_the_hashes_is_another_namespace(
    url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chunks(4)
    with engine(url) as first:
        first.store(data)
    kv_cache_utils.init_none_hash(sha256)
    with engine(url) as second:
        assert second.load(list(data)) == {}
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    kv_cache_utils.init_none_hash(sha256_cbor)
    with engine(url) as second:
        assert second.load(list(data)) == {}
    monkeypatch.delenv("PYTHONHASHSEED")
    kv_cache_utils.init_none_hash(sha256_cbor)
    with engine(url) as second:
        assert second.load(list(data)) == data


def test_adapters_and_salts_are_in_vllms_block_hashes() -> None:
    """What the namespace leaves to the key: no two of these requests have a hash in common.

    Paths of adapters are in the hashes since vLLM 0.32; their weights are in the namespace.
    """
    variants = [
        block_hashes(),
        block_hashes(salt="a"),
        block_hashes(salt="b"),
        block_hashes(lora=("adapter-a", "/adapters/a")),
        block_hashes(lora=("adapter-b", "/adapters/b")),
        block_hashes(lora=("adapter-a", "/adapters/a"), salt="a"),
    ]
    assert all(len(hashes) == 3 for hashes in variants)
    assert len({each for hashes in variants for each in hashes}) == 3 * len(variants)
    assert block_hashes(salt="a") == block_hashes(salt="a")


def test_a_prompt_that_is_asked_again_later_is_looked_up_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM asks for a prompt's later chunks while the first is looked up, and never again once that is absent."""
    url, data = f"file://{tmp_path}/l2", chunks(3)
    with engine(url) as first, engine(url) as second:
        first_chunk, *later = data
        context = second.request()
        assert [second.manager.lookup(key, context) for key in data] == [LookupResult.RETRY] * 3
        second.until(lambda: second.manager.lookup(first_chunk, context) is LookupResult.MISS)
        second.manager.on_request_finished(context)
        first.store(data)
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * prober.PROBE_SECONDS)
        assert second.load(later) == {key: data[key] for key in later}
        assert second.count("timeouts", "lookup") == 0


def test_resetting_the_cache_waits_for_jobs_and_keeps_the_store(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(8)
    with engine(url) as it:
        context = it.request()
        it.manager.prepare_store(list(data), context)
        it.manager.complete_store(list(data), context)
        it.manager.reset_cache()
        it.manager.on_request_finished(context)
        it.step()
        assert it.count("written_chunks") == 8


def test_counters_come_out_of_vllms_own_metrics(tmp_path: Path) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadPromMetrics

    config = offloading_config(f"file://{tmp_path}/l2")
    extra = {**config.extra_config, "spec_name": "TieringOffloadingSpec"}
    definitions = TieringOffloadingSpec.build_metric_definitions(extra)
    ours = {name for name in definitions if name.startswith("kvserving:store_")}
    assert len(ours) == 9
    from prometheus_client import Counter, Gauge, Histogram

    forget_metrics()
    metrics = OffloadPromMetrics(
        SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra)),
        {Counter: Counter, Gauge: Gauge, Histogram: Histogram},
        ["engine"],
        {0: ["0"]},
    )
    try:
        with engine(f"file://{tmp_path}/l2") as it:
            it.load(keys(3))
            it.tier._tally.count(Event.SKIP, Reason.FULL, 2)
            stats = it.manager.get_stats()
        # As it crosses from the engine core to the API server.
        assert json.dumps({str(key): str(value) for key, value in stats.data.items()})
        metrics.observe(stats.data)
        value = REGISTRY.get_sample_value("kvserving:store_skipped_chunks_total", {"engine": "0", "reason": "full"})
        assert value == 2
    finally:
        forget_metrics()


def test_a_tier_without_identity_uses_the_services_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(2)
    monkeypatch.setenv("KVSERVING_REVISION", "aaa")
    with engine(url, identity=None) as first:
        first.store(data)
        assert first.load(list(data)) == data
    monkeypatch.setenv("KVSERVING_REVISION", "bbb")
    with engine(url, identity=None) as second:
        assert second.load(list(data)) == {}


def test_identity_tells_revisions_and_weights_of_one_path_apart(tmp_path: Path) -> None:
    def config(revision: str | None = None, ranks: int = 1, interleave: int = 1, **model: Any) -> Any:
        fields = {"model": str(tmp_path), "revision": revision, "dtype": "bfloat16", "quantization": None}
        return SimpleNamespace(
            model_config=SimpleNamespace(**{"hf_overrides": {}, **fields, **model}),
            cache_config=SimpleNamespace(),
            attention_config=SimpleNamespace(backend=None),
            speculative_config=None,
            parallel_config=SimpleNamespace(decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=interleave),
        )

    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    base = store_identity(config())
    assert store_identity(config("v2")) != base
    assert store_identity(config(quantization="fp8")) != base
    assert store_identity(config(hf_overrides={"rope": 1})) != base
    assert store_identity(config(interleave=16)) == base
    assert store_identity(config(ranks=2, interleave=16)) != store_identity(config(ranks=2))
    (tmp_path / "model.safetensors").write_bytes(b"b" * 100)
    assert store_identity(config()) != base
    assert all(isinstance(value, str) for value in base.values())


@pytest.mark.parametrize(
    ("rope", "matters"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.1]}, True),
        ({"full_attention": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.1]}}, True),
        ({"rope_type": "yarn", "factor": 4.0}, False),
        (None, False),
    ],
)
def test_the_longest_request_is_part_of_the_identity_where_keys_depend_on_it(rope: Any, matters: bool) -> None:
    def identity(length: int) -> dict[str, str]:
        model = SimpleNamespace(
            model="no-such-org/no-such-model",
            max_model_len=length,
            hf_text_config=SimpleNamespace(rope_parameters=rope),
        )
        return store_identity(SimpleNamespace(model_config=model, cache_config=None))

    assert (identity(4096) != identity(131072)) == matters


def test_weights_of_names_that_cannot_be_resolved_are_left_out() -> None:
    assert weights_of("s3://bucket/model", None) == ""
    assert weights_of("no-such-org/no-such-model", None) == ""


def test_the_tiers_namespace_has_every_field_of_vllms_configuration() -> None:
    """A field that a later vLLM adds to its offloading configuration must be looked at."""
    from vllm.v1.kv_offload.config import OffloadingConfig

    known = {"groups", "worker_kv_bytes_per_block", "model", "cache", "parallel", "replicated_layout"}
    known |= {"canonical_layout", "kv_cache_layout"}
    irrelevant = {"enable_kv_cache_events", "extra_config", "engine_id", "max_model_len"}
    assert {field.name for field in dataclasses.fields(OffloadingConfig)} <= known | irrelevant


def test_an_engine_that_only_stores_says_what_its_namespace_is_for(tmp_path: Path) -> None:
    with engine(f"file://{tmp_path}/l2") as it:
        it.store(chunks(1))
        [holding] = holdings(it.tier._client, time.monotonic() + 10)
        assert holding.about is not None
        assert holding.about["model"] == "org/model"


@pytest.mark.skipif(not hasattr(SharedStoreTier, "cache_hit_source"), reason="vLLM names sources since 0.32")
@pytest.mark.parametrize(("is_folder", "source"), [(True, "disk"), (False, "external_unspecified")])
def test_hits_of_any_store_in_a_folder_are_those_of_a_disk(
    is_folder: bool, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_other(_urls: Sequence[str], _max_bytes: int | None, credentials: Credentials) -> ListedStore:
        return ValkeyStore([Address("127.0.0.1", 1)], credentials)

    url = "other:///path" if is_folder else "other://name"
    monkeypatch.setattr(stores, "KINDS", (Kind(("other",), url, open_other, folder=is_folder),))
    with engine(url) as one:
        assert one.tier.cache_hit_source.value == source

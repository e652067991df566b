"""The L2 tier under vLLM's own tiering spec and manager, with real stores."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from prometheus_client import REGISTRY
from tests.connector.store.servers import Server
from tests.connector.tier_engine import CHUNK, Engine, engine, keys, offloading_config
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256, sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import Locality, LookupResult
from vllm.v1.kv_offload.config import OffloadingModelConfig, OffloadingParallelConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.tally import Event
from kvserving_connector.vllm import tier as tier_module
from kvserving_connector.vllm.identity import store_identity, weights_of

Start = Callable[..., Server]


@pytest.fixture(autouse=True)
def _hash_root() -> None:
    kv_cache_utils.init_none_hash(sha256_cbor)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def start(*arguments: str, **options: Any) -> Server:
        started.append(Server(tmp_path / "servers", *arguments, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(params=["files", "servers"])
def url(request: pytest.FixtureRequest, tmp_path: Path, start_server: Start) -> Any:
    if request.param == "files":
        return f"file://{tmp_path}/l2"
    return [start_server().url, start_server().url]


def chunks(number: int = 8) -> dict[Any, bytes]:
    return {key: os.urandom(CHUNK) for key in keys(number)}


def stored(it: Engine, number: int) -> Engine:
    """The engine, with new chunks offloaded."""
    it.store(chunks(number))
    return it


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "l2").rglob("kv1-*") if path.is_file())


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


CROSSINGS = {
    "model": {"model": OffloadingModelConfig("org/other", "bfloat16")},
    "dtype": {"model": OffloadingModelConfig("org/model", "fp8_e4m3")},
    "layout": {"kv_cache_layout": "BLHNC"},
    "tensor parallel": {"parallel": OffloadingParallelConfig(0, 1, 2, 1, 1, 1, 0, 1, None, False)},
    "tenant": {"tenant": "b"},
    "revision": {"identity": {"revision": "v2"}},
    "canonical": {"canonical_layout": True},
}


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
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
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


def test_adapters_and_salts_are_in_vllms_block_hashes() -> None:
    """What the namespace leaves to the key: no two of these requests have a hash in common."""
    variants = [
        block_hashes(),
        block_hashes(salt="a"),
        block_hashes(salt="b"),
        block_hashes(lora=("adapter-a", "/adapters/a")),
        block_hashes(lora=("adapter-b", "/adapters/b")),
        block_hashes(lora=("adapter-a", "/adapters/b")),
        block_hashes(lora=("adapter-a", "/adapters/a"), salt="a"),
    ]
    assert all(len(hashes) == 3 for hashes in variants)
    assert len({each for hashes in variants for each in hashes}) == 3 * len(variants)
    assert block_hashes(salt="a") == block_hashes(salt="a")


def test_spoiled_objects_are_misses_and_are_written_again(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(6)
    with engine(url) as first:
        first.store(data)
    paths = files(tmp_path)
    os.truncate(paths[0], 100)
    flipped = bytearray(paths[1].read_bytes())
    flipped[-5] ^= 1
    paths[1].write_bytes(flipped)
    paths[2].write_bytes(paths[3].read_bytes())
    good = {path.name.rsplit("-")[-1] for path in paths[3:]}
    with engine(url) as second:
        assert second.load(list(data)) == {key: body for key, body in data.items() if bytes(key).hex() in good}
        for reason in ("truncated", "checksum", "key"):
            assert second.count("misses", reason) == 1
        # What failed is a miss without asking, until it is written again.
        failed = [key for key in data if bytes(key).hex() not in good]
        assert second.load(failed) == {}
        assert second.count("misses", "remembered") >= 3
    with engine(url) as third:
        third.store({key: data[key] for key in failed})
        assert third.count("written_chunks") == 3
    with engine(url) as fourth:
        assert fourth.load(list(data)) == data


def test_what_was_written_again_is_no_longer_remembered_as_failed(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(1)
    with engine(url, chunks=4) as it:
        it.store(data)
        os.truncate(files(tmp_path)[0], 0)
        it.store(chunks(2))
        it.store(chunks(2))
        assert it.load(list(data)) == {}
        it.store(data)
        it.store(chunks(2))
        it.store(chunks(2))
        assert it.load(list(data)) == data


def test_an_object_deleted_between_look_up_and_read_is_a_miss(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(2)
    with engine(url) as first:
        first.store(data)
    with engine(url) as second:
        context = second.request()
        wanted = list(data)
        second.until(lambda: second.manager.lookup(wanted[0], context) is LookupResult.HIT_PENDING)
        for path in files(tmp_path):
            path.unlink()
        second.until(lambda: second.manager.lookup(wanted[0], context) is LookupResult.MISS)
        second.step()
        assert second.count("misses", "absent") == 1
        second.manager.on_request_finished(context)


@pytest.mark.parametrize("fault", ["killed", "hung", "wrong password", "refused"])
def test_a_server_that_does_not_serve_is_a_miss_and_a_skip_and_holds_nobody_up(start_server: Start, fault: str) -> None:
    data = chunks(4)
    server = start_server(password="secret" if fault == "wrong password" else "")
    if fault != "wrong password":
        with engine(server.url) as first:
            first.store(data)
    with engine(server.url) as second:
        if fault == "hung":
            server.hang()
        elif fault != "wrong password":
            server.kill()
        began = time.monotonic()
        assert second.load(list(data)) == {}
        second.store(chunks(4))
        assert time.monotonic() - began < 2 * tier_module.PROBE_SECONDS + 1
        began = time.monotonic()
        for _ in range(10):
            assert second.load(keys(4)) == {}
            second.store(chunks(2))
        assert time.monotonic() - began < 1
        reason = {"hung": "timeout", "wrong password": "denied"}.get(fault, "unreachable")
        assert second.count("misses", reason) > 0
        assert second.count("skipped_chunks", reason) > 0


def test_a_server_that_comes_back_empty_serves_again(start_server: Start) -> None:
    server, data = start_server(), chunks(4)
    with engine(server.url, chunks=8) as it:
        it.store(data)
        server.kill()
        it.store(chunks(8))
        assert it.load(list(data)) == {}
        server.start()
        it.until(lambda: stored(it, 4).count("written_chunks") >= 8)


def test_a_full_server_skips_and_serves_what_it_has(start_server: Start) -> None:
    server = start_server("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
    with engine(server.url) as it:
        data = chunks(4)
        it.store(data)
        it.until(lambda: stored(it, 16).count("skipped_chunks", "full") > 0)
    with engine(server.url) as again:
        assert again.load(list(data)) == data


def test_a_read_only_server_skips(start_server: Start) -> None:
    first = start_server()
    replica = start_server("--replicaof", "127.0.0.1", str(first.port))
    with engine(replica.url) as it:
        it.store(chunks(4))
        assert it.count("skipped_chunks", "read-only") == 4


def test_a_directory_that_cannot_be_written_skips(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with engine(f"file://{tmp_path}/file/l2") as it:
        it.store(chunks(4))
        assert it.load(keys(2)) == {}
        assert it.count("skipped_chunks", "denied") == 4
        assert it.count("misses", "denied") == 2


def hold(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """Make every call of a store's method hang in the system until the event is set."""
    release = threading.Event()
    original = getattr(FileStore, method)

    def hang(self: FileStore, *arguments: Any) -> Any:
        release.wait(30)
        return original(self, *arguments)

    monkeypatch.setattr(FileStore, method, hang)
    return release


def test_a_load_that_outlives_its_deadline_is_a_miss_and_writes_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(4)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "get")
    with engine(url, load_timeout_s=0.3, chunks=4) as second:
        began = time.monotonic()
        assert second.load(list(data)) == {}
        assert 0.3 < time.monotonic() - began < 2
        assert second.count("timeouts", "load") == 1
        assert second.count("misses", "timeout") == 4
        # While it may still hang, nobody else waits for it.
        began, before = time.monotonic(), second.count("misses", "paused")
        assert second.load(keys(3)) == {}
        assert time.monotonic() - began < 0.2
        assert second.count("misses", "paused") == before + 3
        mine = chunks(4)
        second.store(mine)
        release.set()
        time.sleep(0.2)
        assert second.load(list(mine)) == mine


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
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * tier_module.PROBE_SECONDS)
        assert second.load(later) == {key: data[key] for key in later}
        assert second.count("timeouts", "lookup") == 0


def test_a_look_up_that_hangs_is_a_miss_and_its_late_answer_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "PROBE_SECONDS", 0.2)
    url, data = f"file://{tmp_path}/l2", chunks(2)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "exists")
    with engine(url) as second:
        context = second.request()
        wanted = next(iter(data))
        second.until(lambda: second.manager.lookup(wanted, context) is LookupResult.MISS, 2)
        second.step()
        assert second.count("timeouts", "lookup") == 1
        release.set()
        time.sleep(0.1)
        for _ in range(5):
            second.step()
            assert second.manager.lookup(wanted, context) is LookupResult.MISS
        second.manager.on_request_finished(context)
        assert second.load([list(data)[1]]) == {list(data)[1]: data[list(data)[1]]}


def test_stores_never_pin_more_than_half_of_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = hold(monkeypatch, "put")
    with engine(f"file://{tmp_path}/l2", chunks=16) as it:
        context = it.request()
        data = keys(12)
        it.manager.prepare_store(data, context)
        it.manager.complete_store(data, context)
        assert it.tier._transfers.pending(load=False) == 8
        release.set()
        it.until(lambda: not it.manager.has_pending_work())
        assert it.count("skipped_chunks", "busy") == 4
        assert it.count("written_chunks") == 8
        it.manager.on_request_finished(context)


def test_look_ups_are_misses_while_enough_is_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(4)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "get")
    with engine(url, max_inflight=4) as second:
        context = second.request()

        def pending() -> bool:
            # Every key is looked up in every step, as for a request in the waiting queue.
            results = [second.manager.lookup(key, context) for key in data]
            return results == [LookupResult.HIT_PENDING] * 4

        second.until(pending)
        second.step()
        assert second.tier._transfers.pending(load=True) == 4
        assert second.manager.lookup(keys(1)[0], context) is LookupResult.MISS
        release.set()
        second.until(lambda: second.tier._transfers.pending(load=True) == 0)
        second.manager.on_request_finished(context)
        assert second.count("misses", "busy") == 1


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


def test_shutting_down_with_a_hung_store_ends_soon_and_frees_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "PROBE_SECONDS", 0.2)
    release = hold(monkeypatch, "put")
    it = Engine(offloading_config(f"file://{tmp_path}/l2"))
    context = it.request()
    data = keys(4)
    it.manager.prepare_store(data, context)
    it.manager.complete_store(data, context)
    began = time.monotonic()
    it.close()
    assert time.monotonic() - began < 8
    release.set()


def test_an_unlimited_stream_of_failures_takes_bounded_memory(tmp_path: Path) -> None:
    with engine(f"file://{tmp_path}/l2") as it:
        for _ in range(30):
            it.load(keys(50))
        assert not it.tier._probing
        assert not it.tier._lookup_manager._lookup_state


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


def forget_metrics() -> None:
    """The registry is one for the process, and other tests use it as well."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(("kvserving:", "vllm:")):
            REGISTRY.unregister(collector)


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
    def config(revision: str | None = None, **model: Any) -> Any:
        fields = {"model": str(tmp_path), "revision": revision, "dtype": "bfloat16", "quantization": None}
        return SimpleNamespace(
            model_config=SimpleNamespace(**{"hf_overrides": {}, **fields, **model}),
            cache_config=SimpleNamespace(),
            attention_config=SimpleNamespace(backend=None),
            speculative_config=None,
        )

    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    base = store_identity(config())
    assert store_identity(config("v2")) != base
    assert store_identity(config(quantization="fp8")) != base
    assert store_identity(config(hf_overrides={"rope": 1})) != base
    (tmp_path / "model.safetensors").write_bytes(b"b" * 100)
    assert store_identity(config()) != base
    assert all(isinstance(value, str) for value in base.values())


def test_weights_of_names_that_cannot_be_resolved_are_left_out() -> None:
    assert weights_of("s3://bucket/model", None) == ""
    assert weights_of("no-such-org/no-such-model", None) == ""


def test_faults_never_leave_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method of the client fails in every way it may; vLLM sees misses and failed jobs only."""
    data = chunks(2)
    for reason in Reason:

        def fail(self: FileStore, *arguments: Any, reason: Reason = reason) -> Any:
            raise StoreFault(reason)

        def unknown(self: FileStore, names: Any, deadline: float, reason: Reason = reason) -> Any:
            return [reason] * len(names)

        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "get", fail)
            patched.setattr(FileStore, "put", fail)
            patched.setattr(FileStore, "delete", fail)
            with engine(f"file://{tmp_path}/{reason}") as it:
                it.store(data)
                patched.setattr(FileStore, "exists", lambda self, names, deadline: [True] * len(names))
                assert it.load(keys(2)) == {}
                assert it.count("misses", str(reason)) >= 2
                patched.setattr(FileStore, "exists", unknown)
                assert it.load(keys(2)) == {}


def test_the_tiers_namespace_has_every_field_of_vllms_configuration() -> None:
    """A field that a later vLLM adds to its offloading configuration must be looked at."""
    from vllm.v1.kv_offload.config import OffloadingConfig

    known = {"groups", "worker_kv_bytes_per_block", "model", "cache", "parallel", "replicated_layout"}
    known |= {"canonical_layout", "kv_cache_layout"}
    irrelevant = {"enable_kv_cache_events", "extra_config", "engine_id", "max_model_len"}
    assert {field.name for field in dataclasses.fields(OffloadingConfig)} <= known | irrelevant

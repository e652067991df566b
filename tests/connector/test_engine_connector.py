"""The scheduler half of NixlConnector, built by vLLM's own factory, with vLLM's own requests."""

from __future__ import annotations

import json
import pickle
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.support import KEY, KEYS, PROBE_PARAMS, REVISION, blocks, finish, handoff, mark  # noqa: E402

from kvserving_connector import compat, plugin  # noqa: E402
from kvserving_connector.core.handoffs import TransferFacts  # noqa: E402
from kvserving_connector.core.signing import sign_params, verify_params  # noqa: E402

pytestmark = pytest.mark.engine
BLOCK = 16
TOKENS = list(range(40))


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file = tmp_path / "signing"
    key_file.write_text(KEY)
    monkeypatch.setenv("KVSERVING_SIGNING_KEY_FILE", str(key_file))
    monkeypatch.setenv("KVSERVING_REVISION", REVISION)
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.9")
    monkeypatch.delenv("KVSERVING_ROLE", raising=False)


def configuration(kv_role: str) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, VllmConfig

    return VllmConfig(
        # Named, because a wheel for another platform finds no device of its own here.
        device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=BLOCK),
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector",
            kv_connector_module_path="kvserving_connector.vllm.nixl",
            kv_role=kv_role,
            kv_buffer_device="cpu",
            engine_id=f"engine-{kv_role}",
        ),
    )


def scheduler(kv_role: str) -> Any:
    import torch
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return KVConnectorFactory.create_connector(configuration(kv_role), KVConnectorRole.SCHEDULER, cache)


def request(request_id: str, params: Any, xargs: dict[str, Any] | None = None, tokens: list[int] = TOKENS) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    extra = {**(xargs or {}), "kv_transfer_params": params}
    return Request(request_id, list(tokens), SamplingParams(max_tokens=1, extra_args=extra), None)


def prefill_answer(all_groups: bool) -> tuple[bool, dict[str, Any]]:
    prefill = scheduler("kv_producer")
    leg = request("p1", dict(PROBE_PARAMS))
    prefill.on_new_request(leg)
    prefill.get_num_new_matched_tokens(leg, 0)
    prefill.update_state_after_alloc(leg, blocks(3), 0)
    finish(leg)
    if all_groups:
        delay, params = prefill.request_finished_all_groups(leg, ([1, 2, 3],))
    else:
        delay, params = prefill.request_finished(leg, [1, 2, 3])
    return delay, json.loads(json.dumps(params))


def empty_step() -> Any:
    from vllm.v1.core.sched.output import SchedulerOutput

    return SchedulerOutput.make_empty()


def output(**values: Any) -> Any:
    return SimpleNamespace(
        **{"finished_recving": None, "failed_recving": set(), "kv_connector_worker_meta": None, **values}
    )


@pytest.mark.parametrize("all_groups", [False, True])
def test_prefill_signs_what_vllm_returns_for_one_group_and_for_all(all_groups: bool) -> None:
    delay, params = prefill_answer(all_groups)
    assert delay
    assert (params["remote_block_ids"], params["remote_num_tokens"]) == ([[1, 2, 3]], 40)
    assert verify_params(params, keys=KEYS, revision=REVISION, now=time.time()) is None


def test_a_whole_handoff_is_pulled_and_proved() -> None:
    from kvserving_connector.vllm.receipt import TransferReport

    _, params = prefill_answer(True)
    decode = scheduler("kv_consumer")
    leg = request("d1", params, mark(time.time()))
    decode.on_new_request(leg)
    assert decode.get_num_new_matched_tokens(leg, 0) == (40, True)
    decode.update_state_after_alloc(leg, blocks(3), 40)
    metadata = decode.build_connector_meta(empty_step())
    assert metadata.reqs_to_recv["d1"].remote.host == "127.0.0.9"
    report = TransferReport({"d1": TransferFacts(bytes=4096, descriptors=12, seconds=0.25, reporters=1)})
    report = pickle.loads(pickle.dumps(report))
    decode.update_connector_output(output(finished_recving={"d1"}, kv_connector_worker_meta=report))
    decode.update_state_after_alloc(leg, blocks(3), 0)
    finish(leg)
    delay, answer = decode.request_finished_all_groups(leg, ([1, 2, 3],))
    receipt = answer["kvserving_receipt"]
    assert not delay
    assert (receipt["external_tokens"], receipt["bytes"], receipt["descriptors"]) == (40, 4096, 12)
    assert (receipt["producer"], receipt["consumer"]) == ("engine-kv_producer", "engine-kv_consumer")
    stats = decode.get_kv_connector_stats()
    assert stats.data["kvserving_tokens"] == [40]
    assert decode.get_kv_connector_stats() is None


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": None},
        handoff(remote_block_ids=[]),
        handoff(remote_host=...),
        handoff(),
        sign_params(handoff(remote_block_ids=[[]]), keys=KEYS, revision=REVISION, expiry=2**31),
        sign_params(handoff(), keys=KEYS, revision=REVISION, expiry=2**31),
        "text",
        [1],
        7,
    ],
)
def test_what_passed_a_missing_guard_neither_trips_vllm_nor_makes_it_dial(params: Any) -> None:
    """Without the second check the first of these end in an assertion inside scheduling, and the engine dies."""
    decode = scheduler("kv_consumer")
    leg = request("d1", params)
    decode.on_new_request(leg)
    assert decode.get_num_new_matched_tokens(leg, 0) == (0, False)
    decode.update_state_after_alloc(leg, blocks(3), 0)
    assert leg.kv_transfer_params is None
    metadata = decode.build_connector_meta(empty_step())
    assert not metadata.reqs_to_recv
    assert not metadata.heartbeat_by_engine
    finish(leg)
    assert decode.request_finished_all_groups(leg, ([1],)) == (False, None)
    assert len(decode.get_kv_connector_stats().data["kvserving_refused"]) == 1


def test_a_failed_load_gets_no_positive_receipt() -> None:
    _, params = prefill_answer(True)
    decode = scheduler("kv_consumer")
    leg = request("d1", params, mark(time.time()))
    decode.on_new_request(leg)
    decode.get_num_new_matched_tokens(leg, 0)
    decode.update_state_after_alloc(leg, blocks(3), 40)
    decode.update_connector_output(output(finished_recving={"d1"}, failed_recving={"d1"}))
    finish(leg, "FINISHED_ERROR")
    _, answer = decode.request_finished_all_groups(leg, ([1, 2, 3],))
    assert answer["kvserving_receipt"]["external_tokens"] == 0
    assert decode.get_kv_connector_stats().data["kvserving_failed"] == [1]


class Nixl:
    """A NIXL agent whose transfers end as told."""

    def __init__(self, states: dict[int, str]) -> None:
        self.states = states

    def check_xfer_state(self, handle: int) -> str:
        return self.states[handle]

    def get_xfer_telemetry(self, handle: int) -> Any:
        return SimpleNamespace(xferDuration=handle * 1e6, postDuration=1, totalBytes=handle * 10, descCount=handle)

    def release_xfer_handle(self, handle: int) -> None:
        del self.states[handle]


def test_transfers_of_vllms_worker_are_measured_by_request() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    from kvserving_connector.vllm.receipt import TransferRecorder

    worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
    worker.nixl_wrapper = Nixl({1: "DONE", 2: "DONE", 3: "PROC", 4: "DONE", 5: "DONE"})
    worker.xfer_stats = NixlKVConnectorStats()
    recorder = TransferRecorder(worker)
    transfers: dict[str, list[int]] = defaultdict(list, {"a": [1, 2], "b": [3, 4], "c": []})
    form = type(NixlPullConnectorWorker._pop_done_transfers(worker, {}))

    def poll() -> set[str]:
        result = worker._pop_done_transfers(transfers)
        assert type(result) is form
        done: set[str] = result if form is set else result[0]
        return done

    assert poll() == {"a", "c"}
    assert dict(transfers) == {"b": [3]}
    worker.nixl_wrapper.states[3] = "DONE"
    assert poll() == {"b"}
    assert poll() == set()
    recorder.ended({"a", "b", "c", "lost"}, {"lost"})
    report = recorder.report()
    assert report is not None
    assert report.facts == {
        "a": TransferFacts(bytes=30, descriptors=3, seconds=2.0, reporters=1),
        "b": TransferFacts(bytes=70, descriptors=7, seconds=4.0, reporters=1),
        "c": TransferFacts(reporters=1),
        "lost": TransferFacts(reporters=1, failed=True),
    }
    assert recorder.report() is None
    assert worker.xfer_stats.num_successful_transfers == 4


def test_our_counters_and_vllms_nixl_series_stand_side_by_side_twice() -> None:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    from kvserving_connector.vllm.nixl import NixlConnector
    from kvserving_connector.vllm.stats import HandoffStats

    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    for _ in range(2):
        unregister_vllm_metrics()
        metrics = NixlConnector.build_prom_metrics(
            configuration("kv_consumer"), kinds, ["model_name", "engine"], {0: ["m", "0"]}
        )
    stats = HandoffStats()
    stats.data.update(transfer_duration=[0.1], post_duration=[0.1], bytes_transferred=[64], num_descriptors=[2])
    stats.data.update(kvserving_tokens=[40, 2], kvserving_bytes=[64], kvserving_refused=["unsigned"])
    metrics.observe(stats.data)
    text = generate_latest(REGISTRY).decode()
    assert 'vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 64.0' in text
    assert 'kvserving:transfer_tokens_total{engine="0",model_name="m"} 42.0' in text
    assert 'kvserving:transfers_total{engine="0",model_name="m"} 2.0' in text
    assert 'kvserving:handoffs_refused_total{engine="0",model_name="m",reason="unsigned"} 1.0' in text
    assert 'kvserving:receipts_total{engine="0",model_name="m"} 0.0' in text


def test_statistics_of_worker_and_scheduler_merge_in_either_order() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    from kvserving_connector.core.desk import Tally
    from kvserving_connector.vllm.stats import HandoffStats, from_tally, from_worker

    plain = NixlKVConnectorStats()
    plain.data["bytes_transferred"] = [64]
    for first, second in (
        (from_worker(plain), from_tally(Tally(tokens=[40]))),
        (from_tally(Tally(tokens=[40])), from_worker(plain)),
        (HandoffStats(data={}), HandoffStats(data={"bytes_transferred": [64], "kvserving_tokens": [40]})),
    ):
        merged = first.aggregate(second)
        assert (merged.data["bytes_transferred"], merged.data["kvserving_tokens"]) == ([64], [40])
    assert HandoffStats().is_empty()
    assert not from_tally(Tally(refused=["unsigned"])).is_empty()
    assert NixlKVConnectorStats(data=from_tally(Tally(signed=[1])).data).reduce()["Num successful transfers"] == 0


def test_the_plugin_may_run_twice_and_leaves_vllms_own_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    plugin.register()
    plugin.register()
    assert KVConnectorFactory.get_connector_class_by_name("NixlConnector").__module__.startswith("vllm.")


def test_the_class_keeps_what_vllm_decides_by_name_and_interface() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    settings = configuration("kv_consumer").kv_transfer_config
    assert KVConnectorFactory.get_connector_class(settings).__name__ == "NixlConnector"
    assert KVConnectorFactory.supports_hma_config(settings)


def test_this_vllm_is_supported_and_says_what_it_has() -> None:
    capabilities = compat.probe()
    assert capabilities.supported, capabilities.reason
    assert capabilities.pull_connector.endswith(":NixlPullConnector")
    assert capabilities.transfer_telemetry
    assert capabilities.missing == ()


def test_every_metric_of_handoffs_has_a_list_that_carries_it() -> None:
    from kvserving_connector.vllm import series
    from kvserving_connector.vllm.stats import HandoffStats

    declared = {*series.SUMMED, *series.COUNTED, *series.BY_REASON}
    assert declared <= HandoffStats().data.keys(), "give the key its place in vllm/stats.py"

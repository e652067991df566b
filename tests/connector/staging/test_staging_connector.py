"""NixlConnector's scheduler half with staging, built by vLLM's own factory, with vLLM's own requests."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.support import KEY, KEYS, PROBE_PARAMS, REVISION, blocks, finish  # noqa: E402

from kvserving_connector import compat  # noqa: E402
from kvserving_connector.core.signing import verify_params  # noqa: E402
from kvserving_connector.core.staging import STAGED_KEY  # noqa: E402
from kvserving_connector.core.staging_cost import Sample, Way  # noqa: E402

pytestmark = pytest.mark.engine
BLOCK = 16
ROW = 2 * BLOCK * 8 * 4
SIZE = 2**20


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file = tmp_path / "signing"
    key_file.write_text(KEY)
    monkeypatch.setenv("KVSERVING_SIGNING_KEY_FILE", str(key_file))
    monkeypatch.setenv("KVSERVING_REVISION", REVISION)
    monkeypatch.delenv("KVSERVING_ROLE", raising=False)


def scheduler(kv_role: str, groups: int = 1, **extra: Any) -> Any:
    import torch
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=100,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer{number}"], spec) for number in range(groups)],
    )
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=BLOCK),
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector",
            kv_connector_module_path="kvserving_connector.vllm.nixl",
            kv_role=kv_role,
            # A wheel for another platform would put a buffer of host memory between.
            kv_buffer_device="cuda",
            engine_id=f"engine-{kv_role}",
            kv_connector_extra_config={"staging_bytes": SIZE, "staging_choice": "always", **extra},
        ),
    )
    return KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache)


def payload(rank: int = 0, **changes: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

    from kvserving_connector.vllm.staging.wire import VERSION, Pool, with_pool

    pool = Pool(VERSION, 4096 * (rank + 1), SIZE, "DRAM", 0, (ROW // 2, ROW // 2), 1, "names", 1)
    plain = NixlHandshakePayload(compatibility_hash="h", agent_metadata_bytes=b"m")
    return with_pool(plain, Pool(**{**asdict(pool), **changes}))


def request(request_id: str, params: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id, list(range(40)), SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": params}), None
    )


def step(**new: tuple[list[int], int]) -> Any:
    """A scheduler's step that computes so many tokens of new requests with these blocks."""
    from vllm.v1.core.sched.output import SchedulerOutput

    found = SchedulerOutput.make_empty()
    found.scheduled_new_reqs = [SimpleNamespace(req_id=name, block_ids=(ids,)) for name, (ids, _) in new.items()]
    found.num_scheduled_tokens = {name: tokens for name, (_, tokens) in new.items()}
    return found


def begun(prefill: Any, name: str) -> Any:
    leg = request(name, dict(PROBE_PARAMS))
    prefill.on_new_request(leg)
    prefill.get_num_new_matched_tokens(leg, 0)
    prefill.update_state_after_alloc(leg, blocks(3), 0)
    return leg


def output(report: Any) -> Any:
    return SimpleNamespace(finished_recving=None, failed_recving=set(), kv_connector_worker_meta=report)


def work(metadata: Any) -> Any:
    from kvserving_connector.vllm.staging.worker import STEP

    return getattr(pickle.loads(pickle.dumps(metadata)), STEP, None)


def test_a_prompt_goes_through_a_slot_from_prefill_to_decode() -> None:
    from kvserving_connector.vllm.lease import TERM, UNTIL
    from kvserving_connector.vllm.receipt import TransferReport
    from kvserving_connector.vllm.staging.consumer import SLOT

    prefill = scheduler("kv_producer")
    prefill._slots.met({(0, 0): payload()})
    leg = begun(prefill, "p1")
    gathered = work(prefill.build_connector_meta(step(p1=([7, 3, 5], 40)))).gather["p1"]
    assert gathered.blocks == (7, 3, 5)
    assert (gathered.slot.rows, gathered.slot.row_bytes) == (3, ROW)
    finish(leg)
    delay, params = prefill.request_finished_all_groups(leg, ([7, 3, 5],))
    params = json.loads(json.dumps(params))
    assert not delay
    assert (params["remote_block_ids"], params[STAGED_KEY]) == ([[]], gathered.slot.params())
    assert verify_params(params, keys=KEYS, revision=REVISION, now=time.time()) is None

    decode = scheduler("kv_consumer")
    other = request("d1", params)
    decode.on_new_request(other)
    assert decode.get_num_new_matched_tokens(other, 0) == (40, True)
    decode.update_state_after_alloc(other, blocks(3), 40)
    metadata = pickle.loads(pickle.dumps(decode.build_connector_meta(step())))
    assert getattr(metadata.reqs_to_recv["d1"], SLOT) == gathered.slot
    # A handoff may be taken for a lease of 30 s less a heartbeat's distance and a second.
    assert getattr(metadata.reqs_to_recv["d1"], UNTIL) == pytest.approx(time.time() + 24, abs=5)
    assert getattr(metadata.reqs_to_recv["d1"], TERM) == params["kvserving_lease"] == 30

    assert prefill.has_pending_push_work()
    prefill.update_connector_output(output(TransferReport(sent={"p1": 1}, samples=[Sample(Way.STAGED, 1, 1, 1.0)])))
    assert not prefill.has_pending_push_work()
    stats = prefill.get_kv_connector_stats()
    assert stats.data["kvserving_staged"] == [3 * ROW]
    assert stats.data["kvserving_staging_released"] == [1]


def test_vllm_still_keeps_the_lease_of_a_staged_prompt() -> None:
    prefill = scheduler("kv_producer")
    prefill._slots.met({(0, 0): payload()})
    leg = begun(prefill, "p1")
    prefill.build_connector_meta(step(p1=([7, 3, 5], 40)))
    finish(leg)
    prefill.request_finished_all_groups(leg, ([7, 3, 5],))
    assert "p1" in prefill.build_connector_meta(step()).reqs_to_send


def test_an_aborted_prompt_leaves_nothing_behind() -> None:
    prefill = scheduler("kv_producer")
    prefill._slots.met({(0, 0): payload()})
    leg = begun(prefill, "p1")
    prefill.build_connector_meta(step(p1=([7, 3, 5], 40)))
    finish(leg, "FINISHED_ABORTED")
    assert prefill.request_finished_all_groups(leg, ([7, 3, 5],)) == (False, None)
    assert work(prefill.build_connector_meta(step())).dropped == ("p1",)
    assert not prefill.has_pending_push_work()


@pytest.mark.parametrize(
    "payloads",
    [
        {},
        {(0, 0): payload},
        {(0, 0): lambda: payload(ranks=2), (0, 1): lambda: payload(1, ranks=2, names="other")},
        {(0, 0): lambda: payload(ranks=2)},
        {(0, 0): lambda: SimpleNamespace()},
    ],
)
def test_ranks_whose_pools_differ_or_lack_do_not_stage(payloads: dict[Any, Any]) -> None:
    prefill = scheduler("kv_producer", **({"bidirectional_kv_xfer": True} if len(payloads) == 1 else {}))
    prefill._slots.met({rank: make() for rank, make in payloads.items()})
    leg = begun(prefill, "p1")
    assert work(prefill.build_connector_meta(step(p1=([7, 3, 5], 40)))) is None
    finish(leg)
    delay, params = prefill.request_finished_all_groups(leg, ([7, 3, 5],))
    assert delay
    assert STAGED_KEY not in params


def test_a_model_with_several_cache_groups_does_not_stage() -> None:
    from kvserving_connector.vllm.staging.eligible import obstacle

    prefill = scheduler("kv_producer", groups=2)
    assert "cache groups" in obstacle(prefill.connector_scheduler.vllm_config, prefill.connector_scheduler)


def test_under_kvcached_the_choice_begins_with_what_its_memory_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvserving_connector.vllm.staging import eligible

    chosen = {}
    for value in ("false", "true"):
        monkeypatch.setenv("ENABLE_KVCACHED", value)
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(get_from_extra_config=lambda _, default: default))
        book = eligible.costs(config)
        assert book is not None
        chosen[value] = book.choose(75_000_000, 36).way
    assert chosen == {"false": Way.DIRECT, "true": Way.STAGED}


@pytest.mark.parametrize(
    "extra", [{"staging_bytes": -1}, {"staging_bytes": "1Gi"}, {"staging_bytes": True}, {"staging_choice": "never"}]
)
def test_a_setting_that_cannot_be_is_named(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(extra))):
        scheduler("kv_producer", **extra)


def test_reports_of_ranks_add_up() -> None:
    from kvserving_connector.vllm.receipt import TransferReport

    first, second = TransferReport(sent={"a": 1, "b": 1}), TransferReport(sent={"a": 1})
    assert first.aggregate(second).sent == {"a": 2, "b": 1}
    assert not TransferReport()
    assert TransferReport(samples=[Sample(Way.DIRECT, 1, 1, 1.0)])


def test_the_installed_vllm_has_what_staging_stands_on() -> None:
    assert compat.probe().staging

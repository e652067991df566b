"""Staged reads behind the hooks of vLLM's worker, with its own polling, over real NIXL between two agents."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.staging.pairs import LENGTHS, ROW, Pair, agent, paired, register, until

from kvserving_connector.core.handoffs import TransferFacts
from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_cost import Sample, Way
from kvserving_connector.core.staging_pull import Pull, State
from kvserving_connector.vllm.lease import UNTIL
from kvserving_connector.vllm.staging import consumer as consumers
from kvserving_connector.vllm.staging.agent import StagingAgent
from kvserving_connector.vllm.staging.puller import Puller
from kvserving_connector.vllm.staging.wire import VERSION, Pool

LEASE = 30
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired() as found:
        yield found


class Worker:
    """What the consumer hooks into, with vLLM's own polling."""

    def __init__(self, pair: Pair) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

        self.nixl_wrapper = agent()
        self._recving_transfers: Any = defaultdict(list)
        self._recving_metadata: dict[str, Any] = {}
        self._remote_agents = {"p": {(0, 0): self.nixl_wrapper.add_remote_agent(pair.peer.metadata)}}
        self.tp_mappings = {"p": SimpleNamespace(local_consumers=1)}
        self.tp_rank = 0
        self._handshake_lock = threading.RLock()
        self.num_regions = len(LENGTHS)
        self.xfer_stats = NixlKVConnectorStats()
        self.direct: list[str] = []

    def _read_blocks_for_req(self, request_id: str, meta: Any) -> None:
        self.direct.append(request_id)

    def _nixl_handshake(self, *arguments: Any) -> Any:
        raise AssertionError("no handshake in this test")


def meta(slot: Slot | None, blocks: list[int], engine: str = "p") -> Any:
    remote = SimpleNamespace(engine_id=engine, request_id="prefill-1", block_ids=[[4, 5, 9]])
    found = SimpleNamespace(remote=remote, local_block_ids=[blocks], local_physical_block_ids=[blocks])
    if slot is not None:
        setattr(found, consumers.SLOT, slot)
    return found


def hooked(pair: Pair, obstacle: str = "", puller: Puller | None = None) -> tuple[Worker, consumers.Consumer]:
    worker = Worker(pair)
    own = Pool(VERSION, 0, 1, "DRAM", 0, pair.decode.rows.lengths, 1, pair.decode.rows.names, 1)
    found = consumers.Consumer(worker, own, puller or pair.puller, "", LEASE)
    found._obstacles["p"] = obstacle
    return worker, found


def poll(worker: Worker) -> set[str]:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker as Upstream

    for name in ("_log_failure", "_try_release_xfer_handle", "_handle_failed_transfer"):
        if hasattr(Upstream, name):
            setattr(worker, name, getattr(Upstream, name).__get__(worker))
    for name, value in {
        "engine_id": "d", "_TRANSFER_MODE": "pull", "_failed_remote_engines": set(), "_is_hma_required": False,
        "_failed_recv_reqs": queue.Queue(), "_invalid_block_ids": queue.Queue(),
    }.items():  # fmt: skip
        setattr(worker, name, value)
    found = Upstream._pop_done_transfers(worker, worker._recving_transfers)
    done: set[str] = found[0] if isinstance(found, tuple) else found
    return done


def test_vllms_polling_sees_a_pull_as_one_of_its_transfers(pair: Pair) -> None:
    worker, found = hooked(pair)
    slot = Slot(0, 500, 3, ROW)
    pair.gather(slot, [4, 5, 9], "seen")
    worker._read_blocks_for_req("d1", meta(slot, [7, 8, 9]))
    until(lambda: poll(worker) == {"d1"})
    assert worker.direct == []
    assert worker.xfer_stats.data["bytes_transferred"] == [3 * ROW]
    assert worker.xfer_stats.data["num_descriptors"] == [1]
    found.ended("d1", TransferFacts(bytes=3 * ROW, descriptors=1, seconds=0.25, reporters=1))
    assert found.drain().bytes == [3 * ROW]
    assert found.drain().bytes == []
    mine = StagingAgent(pair.prefill.agent)
    theirs: list[bytes] = []
    samples: list[Sample] = []

    def both() -> bool:
        theirs.extend(message for messages in mine.get_new_notifs().values() for message in messages)
        samples.extend(mine.samples())
        return bool(theirs and samples)

    until(both)
    assert theirs == [b"prefill-1:1"]
    assert samples == [Sample(Way.STAGED, 3 * ROW, 1, 0.25)]


def test_what_is_not_staged_is_vllms_and_its_cost_is_told(pair: Pair) -> None:
    worker, found = hooked(pair)
    worker._read_blocks_for_req("plain", meta(None, [7]))
    worker._read_blocks_for_req("hit", meta(Slot(0, 1, 1, ROW), []))
    worker._read_blocks_for_req("unmet", meta(Slot(0, 1, 1, ROW), [7], engine="new"))
    assert worker.direct == ["plain", "hit", "unmet"]
    found.ended("plain", TransferFacts(bytes=64, descriptors=6, seconds=0.5, reporters=1))
    found.ended("hit", None)
    mine = StagingAgent(pair.prefill.agent)
    samples: list[Sample] = []

    def told() -> bool:
        assert not mine.get_new_notifs()
        samples.extend(mine.samples())
        return bool(samples)

    until(told)
    assert samples == [Sample(Way.DIRECT, 64, 2 * len(LENGTHS), 0.5)]


@pytest.mark.parametrize(
    ("obstacle", "slot"), [("rows differ in the bytes of the regions", Slot(0, 1, 1, ROW)), ("", Slot(0, 1, 1, 1))]
)
def test_a_slot_that_cannot_be_read_here_is_a_failed_load(
    pair: Pair, obstacle: str, slot: Slot, caplog: pytest.LogCaptureFixture
) -> None:
    worker, found = hooked(pair, obstacle)
    worker._read_blocks_for_req("d1", meta(slot, [7]))
    assert poll(worker) == {"d1"}
    assert worker.xfer_stats.data["bytes_transferred"] == []
    assert len(worker.xfer_stats.data["num_failed_transfers"]) == 1
    found.ended("d1", TransferFacts(reporters=1, failed=True))
    assert found.drain().bytes == []


def test_an_engine_without_a_pool_fails_what_is_staged(pair: Pair) -> None:
    worker = Worker(pair)
    consumers.Consumer(worker, None, None, "staging_bytes is 0", LEASE)
    worker._read_blocks_for_req("d1", meta(Slot(0, 1, 1, ROW), [7]))
    (handle,) = worker._recving_transfers["d1"]
    assert handle.state is State.FAILED
    assert "staging_bytes is 0" in handle.reason


class Direct(Worker):
    """Reads one block as vLLM reads blocks."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self._pair = pair
        register(self.nixl_wrapper, pair.decode.memory)

    def _read_blocks_for_req(self, request_id: str, meta: Any) -> None:
        one, (name,) = self.nixl_wrapper, self._remote_agents["p"].values()
        here = one.get_xfer_descs([(self._pair.decode.memory.data_ptr(), ROW, 0)], "DRAM")
        there = one.get_xfer_descs([(self._pair.prefill.memory.data_ptr(), ROW, 0)], "DRAM")
        handle = one.initialize_xfer("READ", here, there, name, b"prefill-1:1")
        one.transfer(handle)
        self._recving_transfers[request_id].append(handle)


@pytest.mark.parametrize(("late", "failed"), [(20.0, 0), (30.0, 1)])
def test_vllms_polling_fails_a_direct_read_that_outlasted_its_lease(pair: Pair, late: float, failed: int) -> None:
    worker = Direct(pair)
    found = consumers.Consumer(worker, None, None, "staging_bytes is 0", LEASE)
    asked = meta(None, [7])
    setattr(asked, UNTIL, time.time() + 24)
    worker._read_blocks_for_req("d1", asked)
    found._leases._clock = lambda: time.monotonic() + late
    until(lambda: poll(worker) == {"d1"})
    assert len(worker.xfer_stats.data["num_failed_transfers"]) == failed
    assert worker.xfer_stats.data["bytes_transferred"] == [ROW] * (1 - failed)


def test_who_waits_for_pulls_wakes_with_the_end_of_one(pair: Pair) -> None:
    worker, found = hooked(pair)
    slot = Slot(0, 10_000, 3, ROW)
    with ThreadPoolExecutor(1) as other:

        def waits() -> Future[bool]:
            return other.submit(found.pull_ended, 60.0)

        assert not waits().result(30), "nothing is under way"
        worker._read_blocks_for_req("d1", meta(slot, [7, 8, 9]))
        waiting = waits()
        pair.gather(slot, [4, 5, 9], "woken")
        assert waiting.result(30)
        assert waits().result(30), "one has ended that was not taken yet"
        assert poll(worker) == {"d1"}
        found.ended("d1", None)
        assert not waits().result(30)


def test_a_pull_that_goes_on_cannot_be_released() -> None:
    one = Pull("p", Slot(0, 1, 1, ROW), [1], b"x:1")
    with pytest.raises(RuntimeError, match="has not ended"):
        StagingAgent(SimpleNamespace()).release_xfer_handle(one)

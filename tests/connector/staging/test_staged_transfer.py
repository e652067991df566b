"""Rows of real tensors over real NIXL, between two agents of this process, behind the hooks of vLLM's worker."""

from __future__ import annotations

import queue
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.handoffs import TransferFacts  # noqa: E402
from kvserving_connector.core.staging import HEADER_BYTES, Slot, slot_bytes  # noqa: E402
from kvserving_connector.core.staging_cost import Sample, Way  # noqa: E402
from kvserving_connector.core.staging_desk import Gather, StagingStep  # noqa: E402
from kvserving_connector.core.staging_pull import Pipeline, Pull, State  # noqa: E402
from kvserving_connector.vllm.lease import UNTIL  # noqa: E402
from kvserving_connector.vllm.staging import consumer as consumers  # noqa: E402
from kvserving_connector.vllm.staging.agent import StagingAgent  # noqa: E402
from kvserving_connector.vllm.staging.producer import Producer  # noqa: E402
from kvserving_connector.vllm.staging.puller import Puller  # noqa: E402
from kvserving_connector.vllm.staging.rows import Rows  # noqa: E402
from kvserving_connector.vllm.staging.transport import CELL_BYTES, CELLS, NixlTransport, Peer  # noqa: E402
from kvserving_connector.vllm.staging.wire import VERSION, Pool  # noqa: E402

pytestmark = pytest.mark.engine

BLOCKS = 400
LENGTHS = (256, 128, 48)
ROW = sum(LENGTHS)
POOL = 2 * slot_bytes(16, ROW)
LEASE = 30


def cache(fill: bool) -> tuple[Rows, list[Any]]:
    """Three regions: one of its own, and two that lie side by side in the blocks of one tensor."""
    alone = torch.zeros(BLOCKS, LENGTHS[0], dtype=torch.uint8)
    shared = torch.zeros(BLOCKS, LENGTHS[1] + LENGTHS[2], dtype=torch.uint8)
    if fill:
        generator = torch.Generator().manual_seed(7)
        for tensor in (alone, shared):
            tensor.copy_(torch.randint(0, 256, tensor.shape, generator=generator, dtype=torch.uint8))
    worker = SimpleNamespace(
        engine_id="e",
        kv_caches_base_addr={"e": {0: [alone.data_ptr(), shared.data_ptr(), shared.data_ptr() + LENGTHS[1]]}},
        block_len_per_layer=list(LENGTHS),
        block_stride_per_layer=[alone.stride(0), shared.stride(0), shared.stride(0)],
    )
    rows = Rows.of(worker, {"one": alone, "two": shared})
    return rows, [alone, shared]


def block(tensors: list[Any], number: int) -> Any:
    return torch.cat([tensor[number] for tensor in tensors])


def agent() -> Any:
    from vllm.distributed import nixl_utils

    return nixl_utils.NixlWrapper(
        str(uuid.uuid4()), nixl_utils.nixl_agent_config(backends=["UCX"], capture_telemetry=True)
    )


def register(one: Any, memory: Any) -> None:
    one.register_memory(one.get_reg_descs([(memory.data_ptr(), memory.nbytes, 0, "")], "DRAM"), backends=["UCX"])


@dataclass
class Side:
    rows: Rows
    tensors: list[Any]
    agent: Any
    memory: Any


@dataclass
class Pair:
    prefill: Side
    decode: Side
    producer: Producer
    peer: Peer
    puller: Puller

    def gather(self, slot: Slot, blocks: list[int], name: str = "a") -> None:
        self.producer.gather(StagingStep({name: Gather(slot, tuple(blocks))}))

    def arrived(self, one: Pull, blocks: list[int]) -> bool:
        """Whether the pull's blocks hold the last of the prefill's ``blocks``."""
        there = blocks[len(blocks) - len(one.blocks) :]
        return all(
            torch.equal(block(self.decode.tensors, here), block(self.prefill.tensors, source))
            for here, source in zip(one.blocks, there, strict=True)
        )


def side(fill: bool, size: int) -> Side:
    rows, tensors = cache(fill)
    memory = torch.zeros(size, dtype=torch.uint8)
    one = agent()
    register(one, memory)
    return Side(rows, tensors, one, memory)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    chunk = 3 * ROW // 256 * 256 + 256
    prefill, decode = side(True, POOL), side(False, CELL_BYTES + 2 * chunk)
    producer = Producer(prefill.memory)
    producer.register(prefill.rows, 1)
    pool = Pool(VERSION, prefill.memory.data_ptr(), POOL, "DRAM", 0, prefill.rows.lengths, 1, prefill.rows.names, 1)
    peer = Peer(prefill.agent.name, prefill.agent.get_agent_metadata(), pool)
    transport = NixlTransport(decode.agent, decode.memory, chunk, "DRAM", decode.rows)
    pipeline = Pipeline(transport, chunks=2, cells=CELLS, chunk_bytes=chunk, stall_seconds=20.0)
    puller = Puller(transport, pipeline, 1e-3)
    puller.start()
    puller.meet("p", peer)
    yield Pair(prefill, decode, producer, peer, puller)
    puller.close()
    assert not [each for each in threading.enumerate() if each.name == "kvserving-staging"]


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def notified(pair: Pair) -> list[bytes]:
    return [message for messages in pair.prefill.agent.get_new_notifs().values() for message in messages]


def test_scattered_blocks_arrive_bit_for_bit_and_their_slot_is_given_back(pair: Pair) -> None:
    blocks, slot = [31, 2, 17, 5, 6, 39, 0, 8], Slot(0, 11, 8, ROW)
    pair.gather(slot, blocks)
    one = Pull("p", slot, [1, 0, 9, 30, 12], b"request:1")
    pair.puller.submit(one)
    until(lambda: one.final)
    assert (one.state, one.reason) == (State.DONE, "")
    assert pair.arrived(one, blocks)
    found: list[bytes] = []

    def told() -> bool:
        found.extend(notified(pair))
        return bool(found)

    until(told)
    assert found == [b"request:1"]
    assert one.bytes == 5 * ROW


def test_many_at_once_go_through_two_chunks(pair: Pair) -> None:
    prompts = []
    for number in range(2):
        blocks = random.Random(number).sample(range(BLOCKS), 16)
        slot = Slot(number * slot_bytes(16, ROW), 100 + number, 16, ROW)
        pair.gather(slot, blocks, f"many{number}")
        prompts.append((slot, blocks))
    pulls = []
    for number in range(64):
        slot, blocks = prompts[number % 2]
        here = [6 * number + row for row in range(1 + number % 6)]
        pulls.append((Pull("p", slot, here, f"x{number}:1".encode()), blocks))
    for one, _ in pulls:
        pair.puller.submit(one)
    until(lambda: all(one.final for one, _ in pulls))
    assert {one.state for one, _ in pulls} == {State.DONE}
    assert all(pair.arrived(one, blocks) for one, blocks in pulls)
    found: set[bytes] = set()

    def all_told() -> bool:
        found.update(notified(pair))
        return len(found) == 64

    until(all_told)


def test_a_slot_given_to_another_prompt_is_a_failed_load(pair: Pair) -> None:
    old, new = Slot(0, 200, 8, ROW), Slot(256, 201, 4, ROW)
    pair.gather(old, list(range(8)), "old")
    pair.gather(new, [9, 10, 11, 12], "new")
    late = Pull("p", old, [20, 21], b"late:1")
    pair.puller.submit(late)
    until(lambda: late.final)
    assert late.state is State.FAILED
    assert "given to another prompt" in late.reason


def test_an_engine_that_is_gone_and_a_slot_beyond_its_pool_fail(pair: Pair) -> None:
    unknown = Pull("nobody", Slot(0, 1, 1, ROW), [1], b"x:1")
    beyond = Pull("p", Slot(POOL, 1, 1, ROW), [1], b"x:1")
    for one in (unknown, beyond):
        pair.puller.submit(one)
    until(lambda: unknown.final and beyond.final)
    assert {unknown.state, beyond.state} == {State.FAILED}
    assert "is gone" in unknown.reason
    assert "beyond" in beyond.reason


def test_the_words_of_a_header_follow_the_rows(pair: Pair) -> None:
    slot = Slot(512, 300, 2, ROW)
    pair.gather(slot, [3, 4], "words")
    words = pair.prefill.memory[512 : 512 + HEADER_BYTES].view(torch.int64)
    assert words[:2].tolist() == [300, 300]
    rows = pair.prefill.memory[slot.rows_offset : slot.end].view(2, ROW)
    assert torch.equal(rows[1], block(pair.prefill.tensors, 4))


def test_a_staged_request_is_never_vllms_to_report_and_all_others_are(pair: Pair) -> None:
    pair.producer.gather(StagingStep(dropped=("a", "many0", "many1", "old", "new", "words")))
    pair.gather(Slot(0, 400, 1, ROW), [1], "staged")
    pair.gather(Slot(0, 401, 1, ROW), [1], "aborted")
    pair.producer.gather(StagingStep(dropped=("aborted",)))
    assert pair.producer.divert({"staged", "plain", "aborted"}) == {"plain", "aborted"}
    assert pair.producer.sent() == {"staged": 1}
    assert pair.producer.sent() == {}
    assert pair.producer.divert({"staged"}) == {"staged"}


def test_blocks_of_several_kernel_blocks_are_as_many_rows() -> None:
    rows, tensors = cache(True)
    producer = Producer(torch.zeros(POOL, dtype=torch.uint8))
    producer.register(rows, 2)
    producer.gather(StagingStep({"a": Gather(Slot(0, 1, 4, ROW), (5, 3))}))
    found = producer.pool[HEADER_BYTES : HEADER_BYTES + 4 * ROW].view(4, ROW)
    assert [torch.equal(found[i], block(tensors, number)) for i, number in enumerate((10, 11, 6, 7))] == [True] * 4


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

"""Two sides of staged transfers in one process: real tensors, real NIXL agents, and the thread that reads."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.staging import Slot, slot_bytes  # noqa: E402
from kvserving_connector.core.staging_desk import Gather, StagingStep  # noqa: E402
from kvserving_connector.core.staging_pull import Pipeline, Pull  # noqa: E402
from kvserving_connector.vllm.staging.producer import Producer  # noqa: E402
from kvserving_connector.vllm.staging.puller import Puller  # noqa: E402
from kvserving_connector.vllm.staging.rows import Rows  # noqa: E402
from kvserving_connector.vllm.staging.transport import CELL_BYTES, CELLS, NixlTransport, Peer, new_agent  # noqa: E402
from kvserving_connector.vllm.staging.wire import VERSION, Pool  # noqa: E402

BLOCKS = 400
LENGTHS = (256, 128, 48)
ROW = sum(LENGTHS)
POOL = 2 * slot_bytes(16, ROW)


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


def side(fill: bool, size: int, one: Any) -> Side:
    rows, tensors = cache(fill)
    memory = torch.zeros(size, dtype=torch.uint8)
    register(one, memory)
    return Side(rows, tensors, one, memory)


@contextmanager
def paired() -> Iterator[Pair]:
    """A prefill's and a decode's side that know each other; decode reads into two chunks of three rows."""
    chunk = 3 * ROW // 256 * 256 + 256
    prefill, decode = side(True, POOL, agent()), side(False, CELL_BYTES + 2 * chunk, new_agent(["UCX"]))
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

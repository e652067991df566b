"""Staged reads between two NIXL agents of one process for ``staged_reads``, in the engine's Python.

``python -m benchmarks.staged_reader ROUNDS READS`` prints one JSON list: for each number of chunks the seconds of every
read, beside a thread whose steps follow each other without a pause, and beside one that waits as the connector does.
"""

from __future__ import annotations

import json
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed import nixl_utils

from kvserving_connector.core.staging import ALIGNMENT, Slot, slot_bytes
from kvserving_connector.core.staging_desk import Gather, StagingStep
from kvserving_connector.core.staging_pull import Pipeline, Pull
from kvserving_connector.vllm.progress import last_a_moment, mark_idle
from kvserving_connector.vllm.staging.producer import Producer
from kvserving_connector.vllm.staging.puller import Puller
from kvserving_connector.vllm.staging.rows import Rows
from kvserving_connector.vllm.staging.transport import CELL_BYTES, CELLS, NixlTransport, Peer, new_agent
from kvserving_connector.vllm.staging.wire import VERSION, Pool

LAYERS, BLOCK_BYTES, ROWS_PER_CHUNK, CHUNKS = 36, 4096, 4, 8
READS_OF = (8, 32)
"""Chunks of a prompt."""
_STEP_WORK = 2000
_POLL_SECONDS = 5e-5


def main() -> None:
    """Measure both, in turns."""
    rounds, reads = (int(argument) for argument in sys.argv[1:])
    torch.set_num_threads(1)
    found = []
    for chunks in READS_OF:
        pair = _Pair(chunks * ROWS_PER_CHUNK)
        seconds: dict[str, list[float]] = {"spins": [], "waits": []}
        # The first read connects the agents.
        pair.read(waits=True)
        for number in range(rounds):
            for side in ("spins", "waits")[:: 1 if number % 2 else -1]:
                seconds[side] += [pair.read(waits=side == "waits") for _ in range(reads)]
        pair.close()
        found.append({"chunks": chunks, **seconds})
    print(json.dumps(found))


def _step() -> None:
    """What an engine does between two looks: some work in Python, with its lock."""
    made = {}
    for number in range(_STEP_WORK):
        made[number % 50] = (number, str(number))


class _Pair:
    """A reader of a slot of so many rows, and the side that holds it."""

    def __init__(self, rows: int) -> None:
        here, there = _cache(rows), _cache(rows)
        row_bytes = here.row_bytes
        chunk = -(-ROWS_PER_CHUNK * row_bytes // ALIGNMENT) * ALIGNMENT
        config = nixl_utils.nixl_agent_config(backends=["UCX"])
        self._theirs = _Side(slot_bytes(rows, row_bytes), nixl_utils.NixlWrapper(str(uuid.uuid4()), config))
        own = _Side(CELL_BYTES + CHUNKS * chunk, new_agent(["UCX"]))
        pool = self._theirs.pool
        producer = Producer(pool)
        producer.register(there, 1)
        self._slot, self._blocks = Slot(0, 1, rows, row_bytes), list(range(rows))
        producer.gather(StagingStep({"prompt": Gather(self._slot, tuple(self._blocks))}))
        told = Pool(VERSION, pool.data_ptr(), pool.nbytes, "DRAM", 0, there.lengths, 1, there.names, 1)
        transport = NixlTransport(own.agent, own.pool, chunk, "DRAM", here)
        pipeline = Pipeline(transport, chunks=CHUNKS, cells=CELLS, chunk_bytes=chunk, stall_seconds=60.0)
        self._puller = Puller(transport, pipeline, _POLL_SECONDS)
        self._puller.start()
        agent = self._theirs.agent
        self._puller.meet("prefill", Peer(agent.name, agent.get_agent_metadata(), told))

    def read(self, *, waits: bool) -> float:
        """Seconds of a read while this thread takes steps that compute nothing."""
        pull = Pull("prefill", self._slot, self._blocks, b"prompt:1")
        metadata = SimpleNamespace()
        mark_idle(metadata, SimpleNamespace(total_num_scheduled_tokens=0 if waits else 1))

        def pull_ended(seconds: float) -> bool:
            self._puller.wait([pull], seconds)
            return True

        self._puller.submit(pull)
        while not pull.final:
            _step()
            last_a_moment(metadata, pull_ended, patient=False)
        assert not pull.reason, pull.reason
        return pull.ended - pull.began

    def close(self) -> None:
        """End the reading thread."""
        self._puller.close()


def _cache(blocks: int) -> Rows:
    layers = [torch.zeros(blocks, BLOCK_BYTES, dtype=torch.uint8) for _ in range(LAYERS)]
    return Rows(layers, [str(number) for number in range(LAYERS)])


class _Side:
    """An agent and its pool."""

    def __init__(self, size: int, agent: Any) -> None:
        self.pool = torch.zeros(size, dtype=torch.uint8)
        self.agent = agent
        place = (self.pool.data_ptr(), self.pool.nbytes, 0, "")
        self.agent.register_memory(self.agent.get_reg_descs([place], "DRAM"), backends=["UCX"])


if __name__ == "__main__":
    main()

"""The worker's half of staging: makes the pool, and is a producer's or a consumer's rank from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from kvserving_connector import host_memory
from kvserving_connector.compat import probe
from kvserving_connector.core.handoffs import TransferFacts
from kvserving_connector.core.staging import ALIGNMENT
from kvserving_connector.core.staging_desk import LoadTally, StagingStep
from kvserving_connector.core.staging_pull import Pipeline
from kvserving_connector.settings import logger
from kvserving_connector.vllm.receipt import TransferReport
from kvserving_connector.vllm.staging import eligible
from kvserving_connector.vllm.staging.agent import StagingAgent
from kvserving_connector.vllm.staging.consumer import Consumer
from kvserving_connector.vllm.staging.producer import Producer
from kvserving_connector.vllm.staging.puller import Puller
from kvserving_connector.vllm.staging.rows import Rows
from kvserving_connector.vllm.staging.transport import CELL_BYTES, CELLS, NixlTransport, new_agent
from kvserving_connector.vllm.staging.wire import VERSION, Pool, with_pool

STEP = "kvserving_staging"
"""Attribute of vLLM's step metadata, set by the scheduler's half."""

# A decode's pool is cut into as few as leave some reads under way while others are copied. Larger chunks and more of
# them are read no faster, and on a slow link none would come to an end in time.
CHUNKS, MOST_CHUNKS = 4, 8
MOST_CHUNK_BYTES = 128 * 2**20
_POLL_SECONDS = {"cpu": 1e-3}
_POLL_SECONDS_ELSEWHERE = 5e-5


class StagingWorker:
    """One rank. Without a pool everything is as in vLLM, and a staged prompt that comes all the same fails to load."""

    def __init__(self, vllm_config: Any, worker: Any) -> None:
        """Raise ValueError for settings that cannot be."""
        self._vllm_config = vllm_config
        self._worker = worker
        self._half = eligible.half_of(vllm_config)
        self._lease_seconds = int(vllm_config.kv_transfer_config.get_from_extra_config("kv_lease_duration", 30))
        self._size = eligible.staging_bytes(vllm_config) if self._half is not None else 0
        self._why_not = "staging_bytes is 0"
        if self._size:
            self._why_not = eligible.obstacle(vllm_config, worker)
        self._pool: Pool | None = None
        self._memory: Any = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._agent: StagingAgent | None = None

    @property
    def _on(self) -> bool:
        return bool(self._size) and not self._why_not

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor], register: Callable[[Any], None]) -> None:
        """Run vLLM's ``register``; a producer's pool is made known to NIXL before, so that peers learn of both."""
        memory = None
        if self._on:
            device = next(iter(kv_caches.values())).device
            memory = new_pool(self._usable(), device)
        if memory is not None and self._half == "producer":
            self._register(self._worker.nixl_wrapper, memory)
        register(kv_caches)
        if memory is not None:
            self._begin(memory, kv_caches)
        if self._half == "consumer" and self._consumer is None and probe().staging:
            self._consumer = Consumer(self._worker, None, None, self._why_not, self._lease_seconds)
        if self._size and self._why_not:
            logger.info("KVServing: transfers are not staged: %s", self._why_not)

    def handshake_metadata(self, payload: Any) -> Any:
        """Return what peers and the scheduler's half learn."""
        return with_pool(payload, self._pool if self._half == "producer" else None)

    def gather(self, metadata: Any) -> None:
        """Do a step's gathering, once, behind the model's work of the step."""
        step: StagingStep | None = getattr(metadata, STEP, None)
        if step is not None and self._producer is not None:
            self._producer.gather(step)
            delattr(metadata, STEP)

    def settle(self) -> None:
        """Let no load of this step begin before earlier gathering is over."""
        if self._producer is not None:
            self._producer.settle()

    def divert(self, sent: set[str] | None) -> set[str] | None:
        """Return the finished sends that are vLLM's to report: the blocks of staged ones are long free."""
        return self._producer.divert(sent) if self._producer is not None and sent else sent

    def received(self, request_ids: Iterable[str], facts: Mapping[str, TransferFacts]) -> None:
        """Take the requests whose loads ended."""
        if self._consumer is not None:
            for request_id in request_ids:
                self._consumer.ended(request_id, facts.get(request_id))

    def report(self, report: TransferReport | None) -> TransferReport | None:
        """Add what this rank has to tell to a report; None while there is nothing."""
        found = report or TransferReport()
        if self._producer is not None:
            found.sent = self._producer.sent()
        if self._agent is not None:
            found.samples = self._agent.samples()
        return found if found else None

    def loads(self) -> LoadTally | None:
        """Return the staged loads since the last call, None on a rank that has none."""
        return self._consumer.drain() if self._consumer is not None else None

    def pull_ended(self, seconds: float) -> bool:
        """Wait at most so long for the end of one of the staged reads under way; return whether there are any."""
        return self._consumer is not None and self._consumer.pull_ended(seconds)

    def close(self) -> None:
        """End the reading thread."""
        if self._consumer is not None:
            self._consumer.close()

    def _begin(self, memory: torch.Tensor, kv_caches: Mapping[str, torch.Tensor]) -> None:
        worker = self._worker
        try:
            rows = Rows.of(worker, kv_caches)
            # For both halves: what prefill stages, a decode engine with a pool of this size must be able to read.
            chunks, chunk_bytes = self._chunks(rows)
            pool = Pool(
                version=VERSION,
                base=memory.data_ptr(),
                bytes=memory.nbytes,
                memory=worker.nixl_memory_type,
                device=max(memory.get_device(), 0),
                row=rows.lengths,
                rows_per_block=worker._physical_blocks_per_logical_kv_block,
                names=rows.names,
                ranks=getattr(worker, "transfer_tp_size", worker.world_size),
            )
            if self._half == "producer":
                self._producer = Producer(memory)
                self._producer.register(rows, pool.rows_per_block)
                self._agent = worker.nixl_wrapper = StagingAgent(worker.nixl_wrapper)
            else:
                puller = self._puller(memory, rows, chunks, chunk_bytes)
                self._consumer = Consumer(worker, pool, puller, "", self._lease_seconds)
        except ValueError as error:
            self._why_not = str(error)
            return
        self._pool, self._memory = pool, memory
        logger.info(
            "KVServing: %s stages transfers in %d bytes; a row of %d regions has %d",
            self._half,
            memory.nbytes,
            len(rows.lengths),
            rows.row_bytes,
        )

    def _usable(self) -> int:
        return self._size if self._half == "producer" else self._to_read_into()

    def _to_read_into(self) -> int:
        """Return the bytes of a consumer's pool."""
        return min(self._size, CELL_BYTES + MOST_CHUNKS * MOST_CHUNK_BYTES)

    def _chunks(self, rows: Rows) -> tuple[int, int]:
        """Return the chunks of a consumer's pool and their bytes. Raises ValueError when one has no room for a row."""
        room = self._to_read_into() - CELL_BYTES
        chunks = min(max(CHUNKS, room // MOST_CHUNK_BYTES), room // (rows.row_bytes + ALIGNMENT))
        if chunks < 1:
            raise ValueError(
                f"kv_connector_extra_config.{eligible.STAGING_BYTES}={self._size} has no room for one row of "
                f"{rows.row_bytes} bytes; give it several times as many"
            )
        return chunks, room // chunks // ALIGNMENT * ALIGNMENT

    def _puller(self, memory: torch.Tensor, rows: Rows, chunks: int, chunk_bytes: int) -> Puller:
        agent = new_agent(self._worker.nixl_backends)
        self._register(agent, memory)
        transport = NixlTransport(agent, memory, chunk_bytes, self._worker.nixl_memory_type, rows)
        stall = float(self._lease_seconds)
        pipeline = Pipeline(transport, chunks=chunks, cells=CELLS, chunk_bytes=chunk_bytes, stall_seconds=stall)
        puller = Puller(transport, pipeline, _POLL_SECONDS.get(memory.device.type, _POLL_SECONDS_ELSEWHERE))
        puller.start()
        return puller

    def _register(self, agent: Any, memory: torch.Tensor) -> None:
        place = (memory.data_ptr(), memory.nbytes, max(memory.get_device(), 0), "")
        descriptors = agent.get_reg_descs([place], self._worker.nixl_memory_type)
        agent.register_memory(descriptors, backends=self._worker.nixl_backends)


def new_pool(size: int, device: torch.device) -> torch.Tensor:
    """Return ``size`` bytes; zeros, as a header of chance words could be taken for one.

    Raises RuntimeError naming the field where they do not fit. Of host memory no more is asked for than is available:
    the kernel would give it, and end a process as soon as it is used.
    """
    try:
        if device.type == "cpu" and size > (free := host_memory.available()):
            raise torch.OutOfMemoryError(f"{size} bytes of host memory are wanted and {free} available")
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        # Of a device it is torch.OutOfMemoryError, of host memory a plain one.
        less = "" if device.type == "cpu" else " or lower --gpu-memory-utilization, which does not count it"
        raise RuntimeError(
            f"spec.transfer.stagingMemory (kv_connector_extra_config.{eligible.STAGING_BYTES}): {size} bytes do not "
            f"fit beside the KV cache: make it smaller{less}"
        ) from error

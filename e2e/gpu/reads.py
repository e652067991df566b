"""What bounds a staged read between two GPUs: the connector's own pipeline, beside reads that nothing is made of.

    python -m e2e.gpu.reads [--tokens N,...] [--chunks COUNTxMIB,...] [--rounds N] [--trace FILE]

Run by an interpreter with torch, NIXL and vLLM, with ``connector/src`` on PYTHONPATH. No engine runs: a second process
on the other GPU (the same, where there is one) holds a prompt of scattered blocks in a slot, and this one reads it.
Prints rows of a Markdown table, medians of milliseconds and GB/s:

- ``one read``: a single read of a range as long as the prompt;
- ``in a row``: the same as reads of 128 MiB, two under way at a time;
- ``8x128``: the pipeline with 8 chunks of 128 MiB, every part of it; ``beside steps`` with a thread in Python beside
  it that takes the steps of an engine without tokens.

Each is measured with the connector's agent, and ``with a thread``: with one whose progress thread runs. The exit status
is 1 when what was read is not what was written.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import e2e.gpu.needed  # noqa: F401
import torch

from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_desk import Gather, StagingStep
from kvserving_connector.core.staging_pull import Pipeline, Pull
from kvserving_connector.vllm.progress import last_a_moment, mark_idle
from kvserving_connector.vllm.staging.producer import Producer
from kvserving_connector.vllm.staging.puller import Puller
from kvserving_connector.vllm.staging.rows import Rows
from kvserving_connector.vllm.staging.transport import CELL_BYTES, CELLS, NixlTransport, Peer, new_agent
from kvserving_connector.vllm.staging.wire import VERSION, Pool

LAYERS, BLOCK_BYTES, BLOCK_TOKENS, BLOCKS = 36, 65536, 16, 4000
CHUNK_BYTES = 128 << 20
POLL_SECONDS = 5e-5
"""As the connector's on a GPU."""
GPU = torch.cuda.is_available()
DEVICE, MEMORY = ("cuda", "VRAM") if GPU else ("cpu", "DRAM")


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu.reads", description="What bounds a staged read.")
    parser.add_argument("--tokens", default="512,2000,8000,16000,30000", help="default: %(default)s")
    parser.add_argument("--chunks", default="8x128,4x128,8x64", metavar="COUNTxMIB,...", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="reads of each; default: %(default)s")
    parser.add_argument("--trace", metavar="FILE", help="write down when each part of the last reads began and ended")
    arguments = parser.parse_args()
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    most = max(_numbers(arguments.tokens))
    sides = [
        context.Process(target=hold, args=(there, most), daemon=True),
        context.Process(target=measure, args=(here, arguments)),
    ]
    for side, gpu in zip(sides, (gpus[0], gpus[-1]), strict=True):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        side.start()
    sides[1].join()
    return sides[1].exitcode or 0


def measure(pipe: Any, arguments: argparse.Namespace) -> None:
    """Read what the other side holds in every way."""
    tokens = _numbers(arguments.tokens)
    peer, slot = pipe.recv()
    reader = Reader(peer, slot, max(tokens))
    traces: dict[str, Any] = {}
    print("| read | tokens | ms | least | GB/s |\n|---|---|---|---|---|", flush=True)

    def show(what: str, number: int, seconds: list[float]) -> None:
        size, middle = _rows(number) * reader.slot.row_bytes, statistics.median(seconds)
        figures = f"{1e3 * middle:.2f} | {1e3 * min(seconds):.2f} | {size / middle / 1e9:.0f}"
        print(f"| {what} | {number:,} | {figures} |", flush=True)

    for thread, said in ((False, ""), (True, " with a thread")):
        bare = reader.bare(thread)
        for number in tokens:
            for what, size in (("one read", _rows(number) * reader.slot.row_bytes), ("in a row", CHUNK_BYTES)):
                show(what + said, number, [bare(number, size) for _ in range(arguments.rounds)])
        del bare
        for shape in arguments.chunks.split(","):
            puller, transport = reader.puller(shape, thread)
            for number in tokens:
                for steps in (False, True):
                    seconds = [reader.read(puller, transport, number, steps=steps) for _ in range(arguments.rounds)]
                    what = shape + said + (" beside steps" if steps else "")
                    show(what, number, seconds)
                    traces[f"{what} {number}"] = transport.events
            puller.close()
    if arguments.trace:
        with open(arguments.trace, "w", encoding="utf-8") as file:
            json.dump(traces, file)
    equal = reader.equal()
    print("bytes", "equal" if equal else "differ", file=sys.stderr)
    sys.exit(int(not equal))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _rows(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _agent(memory: torch.Tensor, *, thread: bool) -> Any:
    from vllm.distributed import nixl_utils

    if thread:
        config = nixl_utils.nixl_agent_config(backends=["UCX"])
        agent = nixl_utils.NixlWrapper(str(uuid.uuid4()), config)
    else:
        agent = new_agent(["UCX"])
    agent.register_memory(agent.get_reg_descs([(memory.data_ptr(), memory.nbytes, 0, "")], MEMORY), backends=["UCX"])
    return agent


def _cache(*, filled: bool) -> tuple[Rows, list[torch.Tensor]]:
    layers = [
        torch.full((BLOCKS, BLOCK_BYTES), 1 + number if filled else 0, dtype=torch.uint8, device=DEVICE)
        for number in range(LAYERS)
    ]
    return Rows(layers, [str(number) for number in range(LAYERS)]), layers


def hold(pipe: Any, tokens: int) -> None:
    """Hold a prompt in a slot until the process is ended."""
    rows, _ = _cache(filled=True)
    slot = Slot(0, 1, _rows(tokens), rows.row_bytes)
    pool = torch.zeros(slot.end, dtype=torch.uint8, device=DEVICE)
    agent, producer = _agent(pool, thread=True), Producer(pool)
    producer.register(rows, 1)
    blocks = random.Random(1).sample(range(BLOCKS), slot.rows)
    producer.gather(StagingStep({"prompt": Gather(slot, tuple(blocks))}))
    if GPU:
        torch.cuda.synchronize()
    told = Pool(VERSION, pool.data_ptr(), pool.nbytes, MEMORY, 0, rows.lengths, 1, rows.names, 1)
    pipe.send((Peer(agent.name, agent.get_agent_metadata(), told), slot))
    with suppress(EOFError):
        pipe.recv()


class Reader:
    """The other side, which reads the slot's last rows again and again."""

    def __init__(self, peer: Peer, slot: Slot, tokens: int) -> None:
        self.slot = slot
        self._peer = peer
        self._rows, self._layers = _cache(filled=False)
        self._blocks = random.Random(2).sample(range(BLOCKS), _rows(tokens))

    def bare(self, thread: bool) -> Any:
        """Return what takes tokens and the bytes of a read, and returns the seconds of reading them, two at a time."""
        pool = self._peer.pool
        memory = torch.zeros(pool.bytes, dtype=torch.uint8, device=DEVICE)
        agent = _agent(memory, thread=thread)
        name = agent.add_remote_agent(self._peer.metadata)

        def begin(at: int, size: int) -> Any:
            here = agent.get_xfer_descs([(memory.data_ptr() + at, size, 0)], MEMORY)
            there = agent.get_xfer_descs([(pool.base + self.slot.rows_offset + at, size, pool.device)], MEMORY)
            handle = agent.initialize_xfer("READ", here, there, name, b"")
            assert agent.transfer(handle) != "ERR"
            return handle

        def read(tokens: int, size: int) -> float:
            end = _rows(tokens) * self.slot.row_bytes
            places = [(at, min(size, end - at)) for at in range(0, end, size)]
            flying: list[Any] = []
            began = time.perf_counter()
            while places or flying:
                while places and len(flying) < 2:
                    flying.append(begin(*places.pop(0)))
                for handle in list(flying):
                    state = agent.check_xfer_state(handle)
                    assert state in ("PROC", "DONE"), state
                    if state == "DONE":
                        flying.remove(handle)
                        agent.release_xfer_handle(handle)
            return time.perf_counter() - began

        read(BLOCK_TOKENS, CHUNK_BYTES)
        return read

    def puller(self, shape: str, thread: bool) -> tuple[Puller, Noting]:
        """A reading thread with COUNTxMIB chunks that has met the other side, and its transport."""
        count, mib = (int(number) for number in shape.split("x"))
        memory = torch.zeros(CELL_BYTES + count * (mib << 20), dtype=torch.uint8, device=DEVICE)
        transport = Noting(_agent(memory, thread=thread), memory, mib << 20, MEMORY, self._rows)
        pipeline = Pipeline(transport, chunks=count, cells=CELLS, chunk_bytes=mib << 20, stall_seconds=30.0)
        puller = Puller(transport, pipeline, POLL_SECONDS)
        puller.start()
        puller.meet("prefill", self._peer)
        self.read(puller, transport, BLOCK_TOKENS, steps=False)
        return puller, transport

    def read(self, puller: Puller, transport: Noting, tokens: int, *, steps: bool) -> float:
        """Seconds of a staged read, while this thread waits, or takes steps."""
        transport.events = []
        pull = Pull("prefill", self.slot, self._blocks[-_rows(tokens) :], b"prompt:1")
        metadata = SimpleNamespace()
        mark_idle(metadata, SimpleNamespace(total_num_scheduled_tokens=0))

        def pull_ended(seconds: float) -> bool:
            puller.wait([pull], seconds)
            return True

        puller.submit(pull)
        while not pull.final:
            if steps:
                assert {number % 50: (number, str(number)) for number in range(2000)}
                last_a_moment(metadata, pull_ended, patient=False)
            else:
                puller.wait([pull], 1.0)
        assert not pull.reason, pull.reason
        return pull.ended - pull.began

    def equal(self) -> bool:
        """Whether the prompt's blocks hold what the other side's did, and no other block was written."""
        wanted = torch.zeros(BLOCKS, dtype=torch.uint8, device=DEVICE)
        wanted[torch.tensor(self._blocks, device=DEVICE)] = 1
        return all(bool((layer == (1 + number) * wanted[:, None]).all()) for number, layer in enumerate(self._layers))


class Noting(NixlTransport):
    """The transport, noting what begins and is seen to have ended: what, from, to, in microseconds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.events: list[tuple[str, float, float]] = []

    def _note(self, what: str, began: float) -> None:
        self.events.append((what, round(1e6 * began, 1), round(1e6 * time.perf_counter(), 1)))

    def read_header(self, pull: Pull, cell: int) -> Any:
        """See ``Transport``, and so below."""
        began = time.perf_counter()
        handle = super().read_header(pull, cell)
        self._note("header begins", began)
        return handle

    def read_rows(self, pull: Pull, first: int, count: int, chunk: int) -> Any:
        """Note when it begins."""
        began = time.perf_counter()
        handle = super().read_rows(pull, first, count, chunk)
        self._note(f"rows {first} begin", began)
        return handle

    def done(self, handle: Any) -> bool:
        """Note when it has ended."""
        began = time.perf_counter()
        if found := super().done(handle):
            self._note("read ends", began)
        return found

    def generations(self, cell: int) -> tuple[int, int]:
        """Note what it takes."""
        began = time.perf_counter()
        found = super().generations(cell)
        self._note("header looked at", began)
        return found

    def scatter(self, pull: Pull, row: int, count: int, chunk: int) -> Any:
        """Note when it begins."""
        began = time.perf_counter()
        handle = super().scatter(pull, row, count, chunk)
        self._note(f"copy of row {row} begins", began)
        return handle

    def scattered(self, handle: Any) -> bool:
        """Note when it has ended."""
        began = time.perf_counter()
        if found := super().scattered(handle):
            self._note("copy ends", began)
        return found


if __name__ == "__main__":
    sys.exit(main())

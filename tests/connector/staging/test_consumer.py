"""What a decode rank's reads are while it meets the engine that they are from."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.handoffs import TransferFacts
from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_cost import Way
from kvserving_connector.vllm.staging.consumer import SLOT, Consumer, _Asked

pytestmark = pytest.mark.engine


class Worker:
    """Meets an engine as vLLM's worker does: on a thread, which makes it known under a lock."""

    def __init__(self) -> None:
        self.nixl_wrapper = SimpleNamespace(transfer=lambda handle: None)
        self._remote_agents: dict[str, dict[tuple[int, int], str]] = {}
        self._handshake_lock = threading.RLock()
        self.read: list[str] = []
        self.asked: list[str] = []
        self.thread = ThreadPoolExecutor(1)

    def _nixl_handshake(self, *arguments: Any) -> Any:
        raise AssertionError("no handshake in this test")

    def meet(self) -> bool:
        """End a handshake, if it can end now."""
        if not self._handshake_lock.acquire(blocking=False):
            return False
        self._remote_agents["p"] = {(0, 0): "rank"}
        self._handshake_lock.release()
        return True

    def _read_blocks_for_req(self, request_id: str, meta: Any) -> None:
        self.thread.submit(self.meet).result()
        (self.read if "p" in self._remote_agents else self.asked).append(request_id)


@pytest.mark.parametrize("slot", [None, Slot(0, 1, 1, 64)])
def test_an_engine_that_is_met_meanwhile_is_not_read_from_as_if_it_had_been_known(slot: Slot | None) -> None:
    worker = Worker()
    Consumer(worker, None, None, "staging_bytes is 0", 30)
    remote = SimpleNamespace(engine_id="p", request_id="r1", block_ids=[[4]])
    meta = SimpleNamespace(remote=remote, local_block_ids=[[7]], local_physical_block_ids=[[7]])
    if slot is not None:
        setattr(meta, SLOT, slot)
    worker._read_blocks_for_req("d1", meta)
    assert (worker.read, worker.asked) == ([], ["d1"])
    assert worker.thread.submit(worker.meet).result()


class nixlRemoteDisconnectError(Exception):
    pass


@pytest.mark.parametrize(("error", "warnings"), [(nixlRemoteDisconnectError("gone"), 0), (AttributeError("peer"), 1)])
def test_a_cost_that_cannot_be_told_costs_no_request_and_a_bug_is_told_once(
    error: Exception, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, notif_msg: bytes) -> None:
        raise error

    worker = Worker()
    worker.nixl_wrapper.send_notif = fail
    consumer = Consumer(worker, None, None, "staging_bytes is 0", 30)
    for number in range(2):
        consumer._asked[f"d{number}"] = _Asked("rank", Way.DIRECT, 4)
        consumer.ended(f"d{number}", TransferFacts(bytes=1, seconds=0.1, reporters=1))
    told = [record for record in caplog.records if "could not be told" in record.message and record.levelno >= 30]
    assert len(told) == warnings
    assert all(record.exc_info for record in told)

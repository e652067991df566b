"""The thread that reads staged prompts, after a fault of the device; see test_staged_transfer for real transports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.staging import Slot  # noqa: E402
from kvserving_connector.core.staging_pull import Pipeline, Pull, State  # noqa: E402
from kvserving_connector.vllm.staging import transport  # noqa: E402
from kvserving_connector.vllm.staging.puller import Puller  # noqa: E402

pytestmark = pytest.mark.engine


class Broken:
    """A transport whose device has failed: nothing can be asked of it, not even whether its copies have ended."""

    def enter(self) -> None:
        pass

    def read_header(self, pull: Pull, cell: int) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    def flushed(self) -> bool:
        return True

    def finish(self) -> None:
        raise RuntimeError("an illegal memory access was encountered, again")


def test_all_pulls_fail_after_a_fault_also_where_copies_cannot_be_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = Broken()
    pipeline = Pipeline(broken, chunks=2, cells=2, chunk_bytes=256, stall_seconds=20.0)
    puller = Puller(broken, pipeline, 1e-3)
    puller.start()
    for _ in range(2):
        pull = Pull("p", Slot(0, 1, 1, 64), [1], b"x:1")
        puller.submit(pull)
        puller.wait([pull], 30.0)
        assert pull.state is State.FAILED
        assert "reading staged prompts has ended with RuntimeError: an illegal memory access" in pull.reason
    puller.close()
    assert "cannot be waited for" in caplog.text


class Talking:
    """A NIXL agent that sends, and notes when it is let go on."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.looked = 0

    def add_remote_agent(self, metadata: bytes) -> str:
        return "there"

    def send_notif(self, name: str, notif_msg: bytes) -> None:
        self.sent.append(notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self.looked += 1
        raise RuntimeError("another engine is gone")


def test_what_was_sent_is_looked_after_for_a_while_though_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("kvserving_connector.vllm.staging.transport.time.monotonic", lambda: now)
    agent: Any = Talking()
    rows: Any = None
    one = transport.NixlTransport(agent, torch.zeros(transport.CELL_BYTES + 256, dtype=torch.uint8), 256, "DRAM", rows)
    assert one.flushed()
    pool: Any = None
    one.meet("p", transport.Peer("there", b"", pool))
    one.notify(Pull("p", Slot(0, 1, 1, 64), [1], b"x:1"))
    assert agent.sent == [b"x:1"]
    assert not one.flushed()
    now += transport.FLUSH_SECONDS
    assert not one.flushed()
    now += 0.1
    assert one.flushed()
    looked = agent.looked
    assert one.flushed()
    assert agent.looked == looked == 3, "it goes on looking, or never did"


class Clinging:
    """A NIXL agent that releases nothing."""

    def check_xfer_state(self, handle: Any) -> str:
        return "ERR"

    def release_xfer_handle(self, handle: Any) -> None:
        raise RuntimeError("still posted")


def test_a_read_that_cannot_be_released_keeps_its_place_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("kvserving_connector.vllm.staging.transport.time.monotonic", lambda: now)
    agent: Any = Clinging()
    rows: Any = None
    one = transport.NixlTransport(agent, torch.zeros(transport.CELL_BYTES + 256, dtype=torch.uint8), 256, "DRAM", rows)
    reads = [transport._Read("p", number) for number in range(2)]
    assert not any(one.settled(read) for read in reads)
    now += transport.RELEASE_SECONDS - 1
    assert not any(one.settled(read) for read in reads)
    assert "refused" not in caplog.text, "it may be over in a moment"
    now += 1
    assert not any(one.settled(read) for read in [*reads, *reads])
    assert caplog.text.count("refused for 10 s to release a read from engine p") == 1
    assert "RuntimeError: still posted" in caplog.text
    agent.release_xfer_handle = lambda handle: None
    assert all(one.settled(read) for read in reads)


def test_a_reading_thread_that_has_sent_goes_on_until_that_has_left() -> None:
    class Sending(Broken):
        def __init__(self) -> None:
            self.turns = threading.Semaphore(0)

        def flushed(self) -> bool:
            self.turns.release()
            return False

    sending: Any = Sending()
    puller = Puller(sending, Pipeline(sending, chunks=2, cells=2, chunk_bytes=256, stall_seconds=20.0), 1e-3)
    puller.start()
    assert all(sending.turns.acquire(timeout=30) for _ in range(3))
    puller.close()

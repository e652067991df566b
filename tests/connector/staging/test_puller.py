"""The thread that reads staged prompts, after a fault of the device; see test_staged_transfer for real transports."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_pull import Pipeline, Pull, State
from kvserving_connector.vllm.staging.puller import Puller

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

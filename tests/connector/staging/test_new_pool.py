"""The memory of a rank's pool: a size that does not fit is told with the field that asks for it."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector import host_memory  # noqa: E402
from kvserving_connector.vllm.staging.worker import new_pool  # noqa: E402

pytestmark = pytest.mark.engine
CPU = torch.device("cpu")


def test_a_pool_is_zeros() -> None:
    pool = new_pool(4096, CPU)
    assert (pool.nbytes, int(pool.sum())) == (4096, 0)


def test_host_memory_that_is_not_there_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 2**20)
    with pytest.raises(RuntimeError, match=r"^spec\.transfer\.stagingMemory .*: 2097152 bytes do not fit .*smaller$"):
        new_pool(2**21, CPU)


def test_host_memory_that_the_kernel_refuses_is_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 2**63)
    with pytest.raises(RuntimeError, match=r"^spec\.transfer\.stagingMemory "):
        new_pool(2**60, CPU)

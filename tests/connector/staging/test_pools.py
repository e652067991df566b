"""The pools of both roles: which sizes stage, and what a size that cannot be had says. Real tensors, real NIXL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not importable here; run with the engine's Python")
pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.staging.pairs import agent  # noqa: E402

from kvserving_connector.core.staging import ALIGNMENT, slot_bytes  # noqa: E402
from kvserving_connector.vllm.staging import eligible  # noqa: E402
from kvserving_connector.vllm.staging.transport import CELL_BYTES  # noqa: E402
from kvserving_connector.vllm.staging.worker import StagingWorker  # noqa: E402

pytestmark = pytest.mark.engine
BLOCKS, ROW = 4, 4096
ENOUGH = CELL_BYTES + ROW + ALIGNMENT


def staging(role: str, size: int, monkeypatch: pytest.MonkeyPatch) -> StagingWorker:
    """A rank with a cache of one layer and a pool of ``size`` bytes."""
    cache = torch.zeros(BLOCKS, ROW, dtype=torch.uint8)
    worker = SimpleNamespace(
        engine_id="e",
        nixl_wrapper=agent(),
        nixl_backends=["UCX"],
        nixl_memory_type="DRAM",
        kv_caches_base_addr={"e": {0: [cache.data_ptr()]}},
        block_len_per_layer=[ROW],
        block_stride_per_layer=[ROW],
        world_size=1,
        _physical_blocks_per_logical_kv_block=1,
        _read_blocks_for_req=None,
        _nixl_handshake=None,
    )
    extra = {"staging_bytes": size}
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_role=role, get_from_extra_config=extra.get))
    monkeypatch.setattr(eligible, "obstacle", lambda *_: "")
    made = StagingWorker(config, worker)
    made.register_kv_caches({"layer": cache}, lambda _: None)
    return made


def stages(role: str, size: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    made = staging(role, size, monkeypatch)
    made.close()
    return made._pool is not None


@pytest.mark.parametrize("size", [1, slot_bytes(1, ROW), ENOUGH - 1, ENOUGH, 2 * ENOUGH])
def test_a_size_is_enough_for_both_roles_or_for_neither(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [stages(role, size, monkeypatch) for role in ("kv_producer", "kv_consumer")] == [size >= ENOUGH] * 2

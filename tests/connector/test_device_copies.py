"""vLLM's copies to a device, handed on in batches, and what a step waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch
from vllm import _custom_ops, platforms

from kvserving_connector.vllm.device_copies import StepWorker, hasten, in_batches

pytestmark = pytest.mark.engine


class Inner:
    """vLLM's worker as far as it is asked; the event of a load is its number."""

    def __init__(self, expedites: bool = True) -> None:
        self.waited: list[set[int]] = []
        if expedites:
            self._expedited_load_handler = SimpleNamespace(_transfer_events={})

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        if expedited and hasattr(self, "_expedited_load_handler"):
            self._expedited_load_handler._transfer_events[job_id] = f"event {job_id}"
        return True

    def wait(self, job_ids: set[int]) -> None:
        self.waited.append(job_ids)


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the current stream was told to wait for."""
    found: list[Any] = []
    stream = SimpleNamespace(wait_event=found.append)
    monkeypatch.setattr(platforms.current_platform, "current_stream", lambda: stream, raising=False)
    return found


def test_every_batch_of_a_transfer_is_copied_with_its_own_addresses_and_sizes() -> None:
    memory = torch.zeros(2, 3000, dtype=torch.int64)
    memory[0] = torch.arange(3000)
    calls = []

    def copy(source: Any, target: Any, sizes: Any, is_src_access_order_any: bool = False) -> None:
        assert is_src_access_order_any
        calls.append(len(sizes))
        memory[1][target] = memory[0][source] * sizes

    order = torch.randperm(3000)
    in_batches(copy)(order, order, torch.full((3000,), 2), is_src_access_order_any=True)
    assert torch.equal(memory[1], 2 * memory[0])
    assert calls == [128, 256, 512, 1024, 1024, 56]


def test_only_copies_by_the_driver_are_handed_on_in_batches() -> None:
    def kernel() -> None:
        pass

    worker = SimpleNamespace(
        _store_handler=SimpleNamespace(_swap_blocks_batch=_custom_ops.swap_blocks_batch),
        _load_handler=SimpleNamespace(_swap_blocks_batch=kernel),
    )
    hasten(worker)
    assert worker._store_handler._swap_blocks_batch.__wrapped__ is _custom_ops.swap_blocks_batch
    assert worker._load_handler._swap_blocks_batch is kernel
    hasten(SimpleNamespace())


def test_a_step_orders_its_own_loads_on_the_device_and_every_later_wait_is_one_of_the_host(ordered: list[Any]) -> None:
    inner = Inner()
    worker = StepWorker(inner)
    worker.submit_load(1, None, None)
    worker.submit_load(2, None, None, expedited=True)
    worker.wait({2})
    assert (ordered, inner.waited) == (["event 2"], [])
    worker.wait({1, 2})
    assert (ordered, inner.waited) == (["event 2"], [{1, 2}])


def test_a_load_whose_end_is_not_known_is_waited_for_by_the_host(ordered: list[Any]) -> None:
    inner = Inner(expedites=False)
    worker = StepWorker(inner)
    worker.submit_load(2, None, None, expedited=True)
    worker.wait({2})
    assert (ordered, inner.waited) == ([], [{2}])

"""Waiting on CPU engines: NIXL's progress thread, with real agents, and vLLM's messages, with its real queue."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")
api = pytest.importorskip("nixl._api", reason="NIXL is not installed here")

from kvserving_connector.vllm.progress import (  # noqa: E402
    DELAY_MICROSECONDS,
    IDLE_STEP_SECONDS,
    YIELD_SECONDS,
    IdleSteps,
    patient_messages,
    patient_progress_thread,
)

pytestmark = pytest.mark.engine


def _config_class() -> Any:
    return api.nixl_agent.__init__.__globals__["nixlBind"].nixlAgentConfig


def test_the_delay_is_kept_only_inside() -> None:
    before = _config_class()
    with patient_progress_thread(api.nixl_agent):
        config = _config_class()()
        config.pthrDelay = 0
        assert config.pthrDelay == DELAY_MICROSECONDS
        config.listenPort = 7
        assert config.listenPort == 7
    assert _config_class() is before


def test_the_class_is_put_back_after_a_failure() -> None:
    before = _config_class()
    with pytest.raises(RuntimeError, match="broken"), patient_progress_thread(api.nixl_agent):
        raise RuntimeError("broken")
    assert _config_class() is before


def test_a_nixl_without_the_setting_is_left_alone() -> None:
    class Other:
        pass

    with patient_progress_thread(Other):
        assert Other()


def test_a_reader_of_vllms_messages_sleeps_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    monkeypatch.setattr(shm_broadcast, "sched_yield", shm_broadcast.sched_yield)
    patient_messages(shm_broadcast)
    waits = SimpleNamespace(is_reader=True, last_read=time.monotonic() + 60, busy_loop_s=1)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    shm_broadcast.SpinCondition.wait(waits)
    assert slept == [YIELD_SECONDS]


def test_a_vllm_whose_messages_wait_otherwise_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    other = SimpleNamespace()
    patient_messages(other)
    assert vars(other) == {}
    assert "take whole cores" in caplog.text


def test_only_a_patient_workers_steps_that_compute_nothing_last(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for patient in (False, True):
        steps = IdleSteps(patient=patient)
        steps.began()
        steps.computed()
        steps.ended()
        assert slept == []
        steps.began()
        steps.ended()
    assert slept == [IDLE_STEP_SECONDS]

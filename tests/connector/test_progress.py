"""Waiting on CPU engines: NIXL's progress thread, with real agents, and vLLM's messages, with its real queue."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")
api = pytest.importorskip("nixl._api", reason="NIXL is not installed here")

from kvserving_connector.vllm.progress import (  # noqa: E402
    DELAY_MICROSECONDS,
    IDLE_STEP_SECONDS,
    PULL_STEP_SECONDS,
    YIELD_SECONDS,
    last_a_moment,
    mark_idle,
    patient_messages,
    patient_progress_thread,
)

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Results:
    """What vLLM's connector returns of a step, where it has such a class."""

    finished_sending: None = None
    finished_recving: None = None
    failed_recving: None = None


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


@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_step_without_tokens_lasts_until_a_read_ends_or_a_moment_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tokens: int, patient: bool, under_way: bool
) -> None:
    slept: list[float] = []
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def pull_ended(seconds: float) -> bool:
        waited.append(seconds)
        return under_way

    metadata = SimpleNamespace()
    mark_idle(metadata, SimpleNamespace(total_num_scheduled_tokens=tokens))
    last_a_moment(metadata, pull_ended, patient=patient)
    assert waited == ([] if tokens else [IDLE_STEP_SECONDS if patient else PULL_STEP_SECONDS])
    assert slept == ([IDLE_STEP_SECONDS] if patient and not tokens and not under_way else [])


def test_the_schedulers_half_says_of_a_step_that_it_computes_nothing_and_the_workers_half_waits_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvserving_connector.vllm import nixl

    waited: list[float] = []
    connector: Any = nixl.NixlConnector.__new__(nixl.NixlConnector)
    connector._patient, connector._alone, connector._recorder = False, True, None
    connector._staging = SimpleNamespace(
        pull_ended=waited.append, divert=lambda sent: sent, received=lambda ids, facts: None
    )
    connector._slots = SimpleNamespace(build=lambda metadata, output: None)
    parent = nixl._PullConnector
    monkeypatch.setattr(parent, "build_connector_meta", lambda self, output: SimpleNamespace())
    monkeypatch.setattr(parent, "get_finished", lambda self, ids: (set(), set()))
    monkeypatch.setattr(parent, "get_transfer_results", lambda self, ids: Results(), raising=False)
    for tokens, ends in ((3, 0), (0, 2), (3, 2), (0, 4)):
        output = SimpleNamespace(total_num_scheduled_tokens=tokens)
        connector.bind_connector_metadata(pickle.loads(pickle.dumps(connector.build_connector_meta(output))))
        connector.get_finished(set())
        connector.get_transfer_results(set())
        connector.clear_connector_metadata()
        assert waited == [PULL_STEP_SECONDS] * ends
    connector._alone = False
    assert connector.build_connector_meta(SimpleNamespace(total_num_scheduled_tokens=0)) == SimpleNamespace()

"""Reads that outlast their lease, at NIXL's agent: vLLM is told that they failed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kvserving_connector.vllm.lease import TERM, UNTIL, LeaseAgent

LEASE = 30


class Agent:
    """NIXL's, with transfers that end when the test says."""

    def __init__(self) -> None:
        self.states: dict[object, str] = {}
        self.released: list[object] = []
        self.told: list[tuple[str, bytes]] = []
        self.removed: list[str] = []
        self.name = "mine"

    def transfer(self, handle: object) -> str:
        self.states[handle] = "PROC"
        return "PROC"

    def check_xfer_state(self, handle: object) -> str:
        return self.states[handle]

    def release_xfer_handle(self, handle: object) -> str:
        if self.states[handle] == "stuck":
            raise RuntimeError("it goes on")
        self.released.append(handle)
        return "released"

    def send_notif(self, name: str, notif_msg: bytes, backend: str = "UCX") -> str:
        self.told.append((name, notif_msg))
        return backend

    def remove_remote_agent(self, name: str) -> str:
        self.removed.append(name)
        return "removed"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def guarded(agent: Agent, clock: Clock) -> LeaseAgent:
    return LeaseAgent(agent, LEASE, clock, lambda: 1_800_000_000 + clock.now)


def meta(seconds: float | None, lease: int | None = None, name: str = "r1") -> Any:
    """A request whose handoff could be taken until so many seconds after the clock's beginning."""
    found = SimpleNamespace(remote=SimpleNamespace(request_id=name, engine_id="p"))
    if seconds is not None:
        setattr(found, UNTIL, 1_800_001_000 + seconds)
    if lease is not None:
        setattr(found, TERM, lease)
    return found


def read(guarded: LeaseAgent, seconds: float | None, handle: object = "h", lease: int | None = None) -> None:
    with guarded.reading("d1", meta(seconds, lease), iter(["rank", "other"])):
        guarded.transfer(handle)


def beat(guarded: LeaseAgent, names: str = "r1") -> None:
    for rank in ("rank", "other"):
        guarded.send_notif(rank, f"HB:{names}".encode())


def test_a_read_that_ends_in_time_has_ended_well(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    read(guarded, 24)
    assert guarded.check_xfer_state("h") == "PROC"
    agent.states["h"] = "DONE"
    clock.now += 24
    assert guarded.check_xfer_state("h") == "DONE"


def test_a_read_that_ends_late_has_failed_and_stays_failed(
    guarded: LeaseAgent, agent: Agent, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    read(guarded, 24)
    clock.now += 26
    assert guarded.check_xfer_state("h") == "PROC"
    agent.states["h"] = "DONE"
    with caplog.at_level(logging.ERROR):
        assert [guarded.check_xfer_state("h") for _ in range(2)] == ["ERR", "ERR"]
        clock.now -= 10
        assert guarded.check_xfer_state("h") == "ERR"
    (told,) = (record.getMessage() for record in caplog.records)
    assert "request d1 was read from engine p for 26.0 s and 2.0 s beyond" in told
    assert "spec.transfer.lease" in told


def test_a_read_that_fails_by_itself_is_left_as_it_is(
    guarded: LeaseAgent, agent: Agent, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    read(guarded, 24)
    agent.states["h"] = "ERR"
    clock.now += 100
    assert guarded.check_xfer_state("h") == "ERR"
    assert not caplog.records


def test_heartbeats_from_before_the_read_count_and_those_during_it_do_not(
    guarded: LeaseAgent, agent: Agent, clock: Clock
) -> None:
    beat(guarded, "r1,r2")
    clock.now += 4
    read(guarded, 2)
    clock.now += 1
    guarded.send_notif("rank", notif_msg=b"HB:r1,r2")
    agent.states["h"] = "DONE"
    clock.now += 14
    assert guarded.check_xfer_state("h") == "DONE"
    clock.now += 0.5
    assert guarded.check_xfer_state("h") == "ERR"
    assert agent.told == [("rank", b"HB:r1,r2"), ("other", b"HB:r1,r2"), ("rank", b"HB:r1,r2")]


def test_heartbeats_of_an_engine_that_stood_still_until_the_lease_was_over_prolong_nothing(
    guarded: LeaseAgent, agent: Agent, clock: Clock
) -> None:
    beat(guarded)
    clock.now += 40
    beat(guarded)
    clock.now += 1
    read(guarded, 24)
    agent.states["h"] = "DONE"
    assert guarded.check_xfer_state("h") == "ERR"


def test_heartbeats_behind_another_requests_read_count_once_it_was_released(
    guarded: LeaseAgent, agent: Agent, clock: Clock
) -> None:
    with guarded.reading("d0", meta(24, name="r0"), ["rank", "other"]):
        guarded.transfer("h0")
    clock.now += 10
    beat(guarded)
    clock.now += 2
    read(guarded, 13, "before")
    guarded.release_xfer_handle("h0")
    read(guarded, 13, "after")
    clock.now += 8
    agent.states |= {"before": "DONE", "after": "DONE"}
    assert (guarded.check_xfer_state("before"), guarded.check_xfer_state("after")) == ("ERR", "DONE")


def test_reads_of_which_no_lease_is_known_delay_heartbeats_too(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    read(guarded, None, "unknown")
    beat(guarded)
    clock.now += 10
    read(guarded, 2)
    agent.states["h"] = "DONE"
    assert guarded.check_xfer_state("h") == "ERR"


def test_the_lease_that_prefill_tells_counts_before_decodes_own(
    guarded: LeaseAgent, agent: Agent, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    beat(guarded)
    read(guarded, 2, lease=10)
    agent.states["h"] = "DONE"
    clock.now += 5
    assert guarded.check_xfer_state("h") == "DONE"
    clock.now += 0.5
    assert guarded.check_xfer_state("h") == "ERR"
    assert "kv_lease_duration 10," in caplog.text


def test_a_heartbeat_that_could_not_be_sent_prolongs_nothing(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    def broken(name: str, notif_msg: bytes) -> str:
        raise RuntimeError("no connection")

    agent.send_notif = broken  # type: ignore[assignment,method-assign]
    for rank in ("rank", "other"):
        with pytest.raises(RuntimeError, match="no connection"):
            guarded.send_notif(rank, b"HB:r1")
    read(guarded, 2)
    agent.states["h"] = "DONE"
    clock.now += 3
    assert guarded.check_xfer_state("h") == "ERR"


def test_a_heartbeat_counts_from_before_it_was_sent(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    def slow(name: str, notif_msg: bytes) -> str:
        clock.now += 1
        return ""

    agent.send_notif = slow  # type: ignore[assignment,method-assign]
    beat(guarded)
    read(guarded, 2)
    agent.states["h"] = "DONE"
    clock.now = 1000.0 + 19
    assert guarded.check_xfer_state("h") == "DONE"
    clock.now += 0.5
    assert guarded.check_xfer_state("h") == "ERR"


def test_a_read_that_raises_ends_what_is_taken_as_the_requests(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="in vLLM"), guarded.reading("d1", meta(2), ["rank"]):
        raise RuntimeError("in vLLM")
    guarded.transfer("other")
    agent.states["other"] = "DONE"
    clock.now += 100
    assert guarded.check_xfer_state("other") == "DONE"


def test_a_read_that_could_not_be_released_goes_on(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    with guarded.reading("d0", meta(1, name="r0"), iter(["rank", "other"])):
        guarded.transfer("h0")
    beat(guarded)
    agent.states["h0"] = "stuck"
    with pytest.raises(RuntimeError, match="it goes on"):
        guarded.release_xfer_handle("h0")
    read(guarded, 2)
    clock.now += 3
    agent.states |= {"h": "DONE", "h0": "DONE"}
    assert (guarded.check_xfer_state("h"), guarded.check_xfer_state("h0")) == ("ERR", "ERR")


def test_heartbeats_behind_the_reads_of_one_request_wait_for_all_of_them(
    guarded: LeaseAgent, agent: Agent, clock: Clock
) -> None:
    with guarded.reading("d0", meta(24, name="r0"), iter(["rank", "other"])):
        guarded.transfer("h0")
        guarded.transfer("h1")
    beat(guarded)
    guarded.release_xfer_handle("h0")
    read(guarded, 2, "before")
    guarded.release_xfer_handle("h1")
    read(guarded, 2, "after")
    clock.now += 3
    agent.states |= {"before": "DONE", "after": "DONE"}
    assert (guarded.check_xfer_state("before"), guarded.check_xfer_state("after")) == ("ERR", "DONE")


def test_what_nixl_answers_is_answered(guarded: LeaseAgent) -> None:
    with guarded.reading("d1", meta(2), ["rank"]):
        assert guarded.transfer("h") == "PROC"
    assert guarded.release_xfer_handle("h") == "released"
    assert guarded.send_notif("rank", b"HB:r1", "LIBFABRIC") == "LIBFABRIC"
    assert guarded.remove_remote_agent("rank") == "removed"


def test_an_engine_that_stood_still_before_it_read_uses_nothing_of_it(
    guarded: LeaseAgent, agent: Agent, clock: Clock
) -> None:
    read(guarded, -5)
    agent.states["h"] = "DONE"
    assert guarded.check_xfer_state("h") == "ERR"


def test_transfers_of_which_no_lease_is_known_are_nixls_alone(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    read(guarded, None)
    guarded.transfer("other")
    clock.now += 1000
    agent.states |= {"h": "DONE", "other": "DONE"}
    assert guarded.check_xfer_state("h") == guarded.check_xfer_state("other") == "DONE"
    assert guarded.name == "mine"


def test_what_was_released_or_removed_is_forgotten(guarded: LeaseAgent, agent: Agent, clock: Clock) -> None:
    beat(guarded)
    read(guarded, 1)
    guarded.release_xfer_handle("h")
    guarded.remove_remote_agent("rank")
    clock.now += 2
    read(guarded, 1, "of a peer that is gone")
    agent.states["of a peer that is gone"] = "DONE"
    assert guarded.check_xfer_state("of a peer that is gone") == "ERR"
    clock.now += 100
    guarded.transfer("h")
    agent.states["h"] = "DONE"
    assert guarded.check_xfer_state("h") == "DONE"
    assert (agent.released, agent.removed) == (["h"], ["rank"])

"""What the status of an object says about its rollout, and how long the command waits for another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.rollouts import condition, failed, revision, rolling, served, spec

from kvserving_operator.cli import rollout
from kvserving_operator.cli.rollout_progress import Standing, standing, way_out
from kvserving_operator.control.failures import ApiFailure

FIRST, SECOND = spec("0.33.0"), spec("0.32.0")
AWAY = ApiFailure(0, "connection refused", "", "get kvservings.kvserving.dev prod/qwen", {})


def test_it_is_complete_when_one_set_serves_ready_at_this_generation() -> None:
    found = standing(served(FIRST))
    assert found.outcome == "complete"
    assert found.message == (f"revision {revision(FIRST)} serves; every role is ready and the transfer is verified")


def test_a_status_of_an_earlier_generation_tells_nothing() -> None:
    for body in (served(FIRST), failed(FIRST, SECOND)):
        body["metadata"]["generation"] = 3
        assert standing(body).outcome == "waiting"
        assert standing(body).message == "the operator has not looked at generation 3 yet"
    body.pop("status")
    assert standing(body).outcome == "waiting"


def test_it_waits_while_another_set_is_there_although_the_object_is_ready() -> None:
    body = rolling(FIRST, SECOND)
    body["status"] |= {"conditions": served(SECOND)["status"]["conditions"], "revision": revision(SECOND)}
    del body["status"]["updatingRevision"]
    body["status"]["rollout"] |= {"phase": "Complete", "message": "pods of revision 1 finish their requests"}
    assert standing(body).outcome == "waiting"
    assert standing(body).message == "pods of revision 1 finish their requests"
    body["status"]["rollout"]["sets"] = body["status"]["rollout"]["sets"][:1]
    assert standing(body).outcome == "complete"


def test_sets_are_rows_with_their_pods_traffic_and_proof() -> None:
    assert standing(rolling(FIRST, SECOND, ready=1)).sets == (
        (revision(SECOND)[:8], "no", "unknown", "1/1", "1/2", "2/2"),
        (revision(FIRST)[:8], "yes", "verified", "1/1", "2/2", "2/2"),
    )
    body = rolling(FIRST, SECOND)
    del body["status"]["rollout"]["sets"][0]["prefill"]
    assert standing(body).sets[0][3] == "-"


def test_a_failed_rollout_says_why() -> None:
    assert standing(failed(FIRST, SECOND)) == Standing(
        "failed", "KV is computed again", standing(failed(FIRST, SECOND)).sets, remedy="undo"
    )
    # A first revision fails without another one beside it.
    body = served(FIRST)
    body["status"]["conditions"][0] = condition("Ready", "False", "RolloutFailed", "no progress within the deadline")
    assert standing(body) == Standing("failed", "no progress within the deadline")


def test_a_spec_that_cannot_be_planned_has_failed() -> None:
    body = served(FIRST)
    body["status"]["conditions"][0] = condition(
        "Ready", "False", "InvalidSpec", "ConfigValid: spec.engine.version: old"
    )
    assert standing(body) == Standing("failed", "the spec cannot be planned: ConfigValid: spec.engine.version: old")


def test_a_suspended_object_is_not_waited_for() -> None:
    body = served({**FIRST, "suspend": True})
    body["status"]["conditions"][0] = condition("Ready", "False", "Suspended")
    assert standing(body).outcome == "suspended"
    assert "spec.suspend" in standing(body).message


def test_what_stalls_comes_before_what_the_rollout_waits_for_and_a_pause_is_named() -> None:
    body = rolling(FIRST, SECOND, phase="Paused")
    assert standing(body).message == f"paused: revision {revision(SECOND)}: 0 of 2 decode ready"
    body["status"]["conditions"].append(condition("Stalled", "True", "QuotaExceeded", "exceeded quota: pods=2"))
    assert standing(body) == Standing(
        "waiting", "exceeded quota: pods=2", standing(body).sets, troubled=True, remedy="undo"
    )


def test_why_a_revision_does_not_come_up_stands_beside_what_is_waited_for() -> None:
    body = rolling(FIRST, SECOND)
    assert not standing(body).troubled
    body["status"]["conditions"].append(
        condition("Degraded", "True", "PodFailing", "DecodeReady: pod d: CrashLoopBackOff")
    )
    assert standing(body).message == (
        f"revision {revision(SECOND)}: 0 of 2 decode ready; DecodeReady: pod d: CrashLoopBackOff"
    )
    assert standing(body).troubled
    body["status"]["conditions"][-1]["status"] = "False"
    assert standing(body).message == f"revision {revision(SECOND)}: 0 of 2 decode ready"


UNDO = "rollout undo qwen -n prod`"


def told(body: dict[str, Any]) -> str:
    return way_out(standing(body), body, "kubectl kvserving")


def failing_in_place() -> dict[str, Any]:
    body = served(FIRST)
    fails = condition("Ready", "False", "PodFailing", "DecodeReady: pod d: CrashLoopBackOff")
    body["status"]["conditions"][0] = fails
    body["status"]["conditions"].append({**fails, "type": "Stalled", "status": "True"})
    return body


def test_undo_is_the_way_out_only_where_it_has_something_to_return_to() -> None:
    new = rolling(FIRST, SECOND)
    new["status"]["conditions"].append(condition("Degraded", "True", "PodFailing", "no image"))
    assert told(new) == f"Way out: change the spec, or `kubectl kvserving {UNDO}"
    assert told(failed(FIRST, SECOND)) == told(new)
    in_place = told(failing_in_place())
    assert UNDO not in in_place
    assert "to null by `kubectl patch`, or `kubectl replace -f FILE`" in in_place


def test_undo_takes_back_a_spec_that_cannot_be_planned_while_the_former_one_serves() -> None:
    body = served(FIRST)
    body["status"]["conditions"] = [
        condition("Ready", "False", "InvalidSpec", "ConfigValid: no"),
        condition("Available", "True", "Ready"),
        condition("ConfigValid", "False", "InvalidSpec"),
    ]
    assert told(body).endswith(UNDO)
    body["status"]["conditions"][1]["status"] = "False"
    assert UNDO not in told(body)


def test_what_only_takes_its_time_has_waiting_as_the_first_way_out() -> None:
    wait = "Way out: wait longer (`kubectl kvserving rollout status qwen -n prod`), "
    assert told(rolling(FIRST, SECOND)) == f"{wait}change the spec, or `kubectl kvserving {UNDO}"
    body = served(FIRST)
    body["status"]["conditions"][0] = condition("Ready", "False", "LoadingModel", "engines load the model")
    assert told(body) == f"{wait}or change the spec"


@pytest.mark.parametrize(
    ("program", "doctor"),
    [("kubectl kvserving", "`kubectl kvserving doctor`"), ("kvserving", "`kvserving doctor --cluster`")],
)
def test_a_spec_that_nobody_looks_at_leads_to_the_operator(program: str, doctor: str) -> None:
    body = served(FIRST)
    body["metadata"]["generation"] = 3
    found = standing(body)
    assert found.troubled
    assert way_out(found, body, program).endswith(doctor)


class Clock:
    """The loop's time, which only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def follow(self, answers: Iterator[Any], timeout: float | None = None) -> tuple[Any, bool, list[str]]:
        told: list[str] = []

        async def look() -> Any:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def work() -> tuple[Any, bool]:
            loop: Any = asyncio.get_running_loop()
            real, loop.time = loop.time, lambda: self.seconds
            try:
                return await rollout.follow(look, lambda found: told.append(found.message), timeout)
            finally:
                loop.time = real

        body, expired = asyncio.run(work())
        return body, expired, told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def forever(answer: Any) -> Iterator[Any]:
    while True:
        yield answer


def test_it_looks_every_second_until_it_is_over(clock: Clock) -> None:
    steps = [rolling(FIRST, SECOND, ready=ready) for ready in (0, 1, 2)]
    body, expired, told = clock.follow(iter([*steps, served(SECOND)]))
    assert (body, expired) == (served(SECOND), False)
    assert len(told) == 4
    assert clock.seconds == 3


def test_it_waits_no_longer_than_it_is_told_to(clock: Clock) -> None:
    body, expired, told = clock.follow(forever(rolling(FIRST, SECOND)), timeout=2.5)
    assert (body, expired) == (rolling(FIRST, SECOND), True)
    assert clock.seconds == 2.5
    assert len(told) == 4


def test_an_apiserver_that_is_away_for_less_than_a_minute_is_waited_for(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = ApiFailure(429, "TooManyRequests", "", "get kvservings.kvserving.dev prod/qwen", {})
    _, expired, told = clock.follow(iter([rolling(FIRST, SECOND), *[AWAY] * 30, busy, served(SECOND)]))
    assert not expired
    assert len(told) == 2
    assert capsys.readouterr().err == (
        "get kvservings.kvserving.dev prod/qwen: the apiserver did not answer (connection refused); asking again\n"
    )


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 62), (5, 5)])
def test_an_apiserver_that_stays_away_ends_it(clock: Clock, timeout: float | None, seconds: float) -> None:
    with pytest.raises(ApiFailure):
        clock.follow(forever(AWAY), timeout)
    assert clock.seconds == pytest.approx(seconds, abs=1)


def test_a_right_that_is_taken_ends_it_at_once(clock: Clock) -> None:
    with pytest.raises(ApiFailure):
        clock.follow(iter([ApiFailure(403, "Forbidden", "", "get kvservings", {})]))
    assert clock.seconds == 0

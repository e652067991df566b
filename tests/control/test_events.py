from __future__ import annotations

from typing import Any

import pytest

from kvserving_operator.control.events import EventKind, transitions


def status(**conditions: str) -> dict[str, Any]:
    """Conditions as ``Type="Status/Reason"``."""
    made = []
    for kind, value in conditions.items():
        state, _, reason = value.partition("/")
        made.append({"type": kind, "status": state, "reason": reason or "R", "message": "m"})
    return {"conditions": made}


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ({}, status(Ready="False"), []),
        ({}, status(Ready="True"), [EventKind.READY]),
        (status(Ready="True"), status(Ready="True"), []),
        (status(Ready="True"), status(Ready="False"), [EventKind.NOT_READY]),
        (status(Ready="False/A"), status(Ready="False/B"), []),
        ({}, status(Degraded="False"), []),
        (status(Degraded="True/A"), status(Degraded="True/A"), []),
        (status(Degraded="True/A"), status(Degraded="True/B"), [EventKind.DEGRADED]),
        (status(Degraded="True"), status(Degraded="False"), []),
        (status(TransferVerified="True"), status(TransferVerified="False"), [EventKind.TRANSFER_FAILED]),
        (status(TransferVerified="Unknown"), status(TransferVerified="True"), [EventKind.TRANSFER_VERIFIED]),
        (status(ConfigValid="True"), status(ConfigValid="False"), [EventKind.INVALID_SPEC]),
        (status(Available="False"), status(Available="True"), [EventKind.AVAILABLE]),
    ],
)
def test_events_tell_of_transitions_alone(
    before: dict[str, Any], after: dict[str, Any], kinds: list[EventKind]
) -> None:
    assert [event.kind for event in transitions(before, after)] == kinds


def kinds_of(*moments: dict[str, Any]) -> list[EventKind]:
    """The events about readiness and faults on the way through statuses, one a second, as they are written."""
    written: dict[str, Any] = {}
    found: list[EventKind] = []
    for second, moment in enumerate(moments):
        before = {condition["type"]: condition for condition in written.get("conditions", ())}
        for condition in moment["conditions"]:
            was = before.get(condition["type"], {})
            same = was.get("status") == condition["status"]
            condition["lastTransitionTime"] = was["lastTransitionTime"] if same else f"2026-01-01T00:00:{second:02}Z"
        found += [event.kind for event in transitions(written, moment)]
        written = moment
    return found


def moment(ready: str, degraded: str) -> dict[str, Any]:
    return status(ConfigValid="True", Ready=ready, Degraded=degraded)


def test_an_object_recovers_when_it_is_ready_again_and_not_when_its_fault_goes_for_a_moment() -> None:
    well, faulty = moment("True", "False"), moment("False/PodFailing", "True/PodFailing")
    fades, other = moment("False/Starting", "False"), moment("False/L2Unreachable", "True/L2Unreachable")
    new = moment("False/Starting", "False")
    begins = [EventKind.READY]
    lost = [EventKind.NOT_READY, EventKind.DEGRADED]
    ends = [EventKind.READY, EventKind.RECOVERED]
    assert kinds_of(new, well, faulty, fades) == [*begins, *lost], "what is not ready has not recovered"
    assert kinds_of(new, well, faulty, other) == [*begins, *lost, EventKind.DEGRADED], "one fault for another"
    assert kinds_of(new, well, faulty, well) == [*begins, *lost, *ends]
    assert kinds_of(new, well, faulty, fades, faulty, fades, well) == [*begins, *lost, EventKind.DEGRADED, *ends]
    assert kinds_of(new, well, moment("True", "True/KindMissing"), well)[-1] is EventKind.RECOVERED
    assert kinds_of(new, well, faulty, fades, well, well, fades, well)[-1] is EventKind.READY, "told once"


def test_a_new_object_that_was_never_ready_does_not_recover() -> None:
    new, well = moment("False/Starting", "False"), moment("True", "False")
    lacks = moment("False/SecretMissing", "True/SecretMissing")
    for first in ((new,), ()):
        assert kinds_of(*first, lacks, new, lacks, new, well) == [EventKind.DEGRADED] * 2 + [EventKind.READY]
    assert kinds_of(new, lacks, well) == [EventKind.DEGRADED, EventKind.READY]


@pytest.mark.parametrize(
    ("kind", "reason", "sent"),
    [
        ("Ready", "RollingOut", [EventKind.ROLLING_OUT]),
        ("Ready", "Suspended", [EventKind.SUSPENDED]),
        ("Available", "Suspended", []),
        ("Available", "RollingOut", [EventKind.UNAVAILABLE]),
    ],
)
def test_what_was_asked_for_is_no_warning(kind: str, reason: str, sent: list[EventKind]) -> None:
    found = transitions(status(**{kind: "True"}), status(**{kind: f"False/{reason}"}))
    assert [event.kind for event in found] == sent
    assert all((event.kind.type == "Normal") == (event.kind is not EventKind.UNAVAILABLE) for event in found)


@pytest.mark.parametrize(
    "asked", [{"observedGeneration": 4}, {"observedGeneration": 3, "roles": {"decode": {"replicas": 2}}}]
)
def test_engines_that_were_asked_for_and_start_are_no_warning(asked: dict[str, Any]) -> None:
    before = {**status(Ready="True"), "observedGeneration": 3, "roles": {"decode": {"replicas": 1}}}
    [event] = transitions(before, {**before, **status(Ready="False/Starting"), **asked})
    assert event.kind is EventKind.ROLLING_OUT
    [event] = transitions(before, {**before, **status(Ready="False/PodFailing"), **asked})
    assert event.kind is EventKind.NOT_READY, "what fails is not what was asked for"
    [event] = transitions(before, {**before, **status(Ready="False/Starting")})
    assert event.kind is EventKind.NOT_READY, "nobody asked: engines were lost"


def test_a_rollout_is_told_when_it_begins_and_when_it_is_over() -> None:
    serves = status(Available="True")
    steady = {**serves, "revision": "a"}
    coming = {**serves, "revision": "a", "updatingRevision": "b"}
    [begun] = transitions(steady, coming)
    assert (begun.kind, begun.message) == (EventKind.ROLLOUT_STARTED, "revision b comes up while a serves")
    assert transitions(coming, coming) == ()
    [over] = transitions(coming, {**serves, "revision": "b"})
    assert (over.kind, over.message) == (EventKind.ROLLOUT_FINISHED, "revision b serves")
    assert transitions(coming, steady) == ()
    [other] = transitions(coming, {**coming, "updatingRevision": "c"})
    assert other.kind is EventKind.ROLLOUT_STARTED


def test_no_event_of_a_rollout_says_that_a_revision_serves_which_does_not() -> None:
    down = status(Available="False")
    coming = {**down, "revision": "a", "updatingRevision": "b"}
    [begun] = transitions({**down, "revision": "a"}, coming)
    assert begun.message == "revision b comes up while none serves"
    [over] = transitions(coming, {**down, "revision": "b"})
    assert (over.kind, over.message) == (EventKind.ROLLOUT_FINISHED, "revision b is alone and not ready")


def test_every_event_is_documented_and_named_once() -> None:
    assert len({kind.reason for kind in EventKind}) == len(EventKind)
    for kind in EventKind:
        assert kind.type in ("Normal", "Warning")
        assert kind.meaning.endswith(".")

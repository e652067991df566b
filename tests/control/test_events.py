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
        (status(Degraded="True"), status(Degraded="False"), [EventKind.RECOVERED]),
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


def test_every_event_is_documented_and_named_once() -> None:
    assert len({kind.reason for kind in EventKind}) == len(EventKind)
    for kind in EventKind:
        assert kind.type in ("Normal", "Warning")
        assert kind.meaning.endswith(".")

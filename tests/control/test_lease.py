from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kvserving_operator.control.config import Config
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.lease import Lock

NAME, NAMESPACE = "kvserving-operator", "kvserving-system"
RECORD = SimpleNamespace(holder_identity="me", lease_duration=15)


class Server:
    """Holds a Lease of another operator; ``failing`` is what the next request of a kind meets."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"metadata": {"name": NAME}, "spec": {"holderIdentity": "other"}}
        self.failing: dict[str, int] = {}

    async def get(self, *_: object) -> dict[str, Any]:
        self._fail("get")
        return self.lease

    async def put_lease(self, body: dict[str, Any], *, create: bool) -> dict[str, Any]:
        self._fail("put")
        return body

    def _fail(self, verb: str) -> None:
        if verb in self.failing:
            raise ApiFailure(self.failing.pop(verb), "", "", f"{verb} leases", {})


def lock(server: Any) -> Lock:
    return Lock(Config(identity="me", namespace=NAMESPACE), server, lambda: 0.0)


async def attempt(found: Lock) -> bool:
    """One turn of the elector: read, then try to take it."""
    read, _ = await found.get(NAME, NAMESPACE)
    return read and await found.update(NAME, NAMESPACE, RECORD)


def test_an_operator_that_lost_the_race_for_the_lease_stands_by_without_a_problem() -> None:
    server = Server()
    found = lock(server)
    server.failing["put"] = 409
    assert not asyncio.run(attempt(found))
    assert found.problem == ""


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_write_that_failed_for_a_moment_is_forgotten_when_the_server_answers_again(status: int) -> None:
    server = Server()
    found = lock(server)
    server.failing["put"] = status
    asyncio.run(attempt(found))
    assert "put leases" in found.problem
    asyncio.run(found.get(NAME, NAMESPACE))
    assert found.problem == ""


def test_a_missing_right_stays_a_problem_until_a_write_succeeds() -> None:
    server = Server()
    found = lock(server)
    server.failing["put"] = 403
    asyncio.run(attempt(found))
    asyncio.run(found.get(NAME, NAMESPACE))
    assert "put leases" in found.problem
    assert asyncio.run(attempt(found))
    assert found.problem == ""


def test_a_server_that_does_not_answer_a_read_is_a_problem_while_it_lasts() -> None:
    server = Server()
    found = lock(server)
    server.failing["get"] = 500
    asyncio.run(found.get(NAME, NAMESPACE))
    assert "get leases" in found.problem
    asyncio.run(found.get(NAME, NAMESPACE))
    assert found.problem == ""

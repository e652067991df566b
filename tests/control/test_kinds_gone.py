"""A CRD that is deleted while the operator runs: the log names the kind, what went with it and the way out."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.control.test_parts import LATE, Discovery

from kvserving_operator.api.v1alpha1 import API_VERSION, KIND
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.preflight import KindDeleted, gone, installed


def gone_after(*kinds: str, fails: bool = False) -> frozenset[tuple[str, str]]:
    """What is said to be gone when ``kinds`` are no longer there."""

    async def main() -> frozenset[tuple[str, str]]:
        cluster: Any = Discovery()
        cluster.without = set()
        before = await installed(cluster)
        cluster.without = set(kinds)
        if fails:
            cluster.read = unanswered
        return await gone(cluster, before)

    return asyncio.run(main())


async def unanswered(path: str) -> dict[str, Any]:
    raise ApiFailure(503, "busy", "", path, {})


def test_the_kind_that_was_deleted_is_named_with_what_went_with_it_and_the_way_out() -> None:
    found = gone_after(KIND, LATE.kind)
    assert (API_VERSION, KIND) in found
    said = str(KindDeleted(found))
    assert f"the CRD of {KIND} ({API_VERSION}) was deleted while the operator watched it" in said
    assert "all that was made for it went with it" in said
    assert "kubectl apply --server-side -f crds/" in said


def test_another_kind_that_was_deleted_costs_no_objects() -> None:
    found = gone_after(LATE.kind)
    assert found == {(LATE.api_version, LATE.kind)}
    said = str(KindDeleted(found))
    assert LATE.kind in said
    assert "It starts again without it" in said
    assert "went with it" not in said


def test_what_is_still_there_or_not_answered_is_not_called_gone() -> None:
    assert gone_after() == frozenset()
    assert gone_after(fails=True) == frozenset()

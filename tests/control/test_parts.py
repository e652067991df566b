"""The parts that write, put together: they go by the kinds that the cluster has now, watches by those of the start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import API_VERSION, KIND
from kvserving_operator.control import preflight
from kvserving_operator.control.config import Config
from kvserving_operator.control.metrics import Metrics
from kvserving_operator.control.observe import Key, Store
from kvserving_operator.control.parts import Parts, assemble
from kvserving_operator.control.permissions import CHILDREN
from kvserving_operator.control.workqueue import WorkQueue
from kvserving_operator.verify.run import verify

LATE = next(resource for resource in CHILDREN if resource.optional)


class Discovery:
    """What an apiserver says of its kinds: all of the table but ``without``."""

    def __init__(self) -> None:
        self.without = {LATE.kind}

    async def read(self, path: str) -> dict[str, Any]:
        kinds = [resource.kind for resource in CHILDREN if path.endswith(f"/{resource.api_version}")]
        own = [KIND] if path.endswith(API_VERSION) else []
        return {"resources": [{"name": kind.lower(), "kind": kind} for kind in {*kinds, *own} - self.without]}


async def parts(cluster: Any) -> Parts:
    queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop())
    return assemble(
        Config(),
        cluster,
        Store(queue.add),
        queue,
        Metrics(),
        probe=verify,
        held_before=lambda: None,
        found=await preflight.installed(cluster),
        login=lambda: None,
    )


def test_a_kind_that_is_installed_later_is_planned_and_compared_from_the_next_look_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        cluster = Discovery()
        made = await parts(cluster)
        assert LATE not in made.kinds.watched()
        assert LATE.kind not in made.reconciler.optional_kinds
        cluster.without = set()
        await made.kinds.look_again()
        assert LATE in made.kinds.watched()
        assert LATE.kind in made.reconciler.optional_kinds

    asyncio.run(main())
    assert f"installed since the start: {LATE.full_name}; changes are seen at each resync" in caplog.text


def test_a_look_that_finds_what_was_there_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made = await parts(Discovery())
        await made.kinds.look_again()

    asyncio.run(main())
    assert caplog.text == ""

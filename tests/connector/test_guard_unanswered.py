from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.connector.support import Rig
from tests.connector.test_guard import PATHS

from kvserving_connector.core.policy import Role


@pytest.mark.parametrize("streamed", [True, False])
def test_a_completion_is_unanswered_until_the_first_bytes_of_its_answer(tmp_path: Path, streamed: bool) -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(rig.unanswered)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append(rig.unanswered)
        await send({"type": "http.response.body", "body": b"one", "more_body": streamed})
        seen.append(rig.unanswered)
        if streamed:
            await send({"type": "http.response.body", "body": b"two", "more_body": False})
            seen.append(rig.unanswered)

    rig = Rig(tmp_path, Role.DECODE, app=app)
    for _ in range(2):
        rig.post({"prompt": "a"}, path="/v1/chat/completions")
    assert seen == ([1, 1, 0, 0] if streamed else [1, 1, 0]) * 2
    assert rig.unanswered == 0


def test_a_completion_that_breaks_or_is_refused_does_not_stay_unanswered(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the engine is gone")

    rig = Rig(tmp_path, Role.DECODE, app=app)
    with pytest.raises(RuntimeError, match="gone"):
        rig.post({"prompt": "a"})
    assert rig.post(b'{"kv_transfer_params": {')[0] == 400
    assert rig.unanswered == 0


def test_only_completions_are_waited_for(tmp_path: Path) -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(rig.unanswered)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one"})

    rig = Rig(tmp_path, Role.DECODE, app=app)
    for path in PATHS:
        rig.post({"prompt": "a"}, path=path)
    assert seen == [1 if path in ("/v1/completions", "/v1/chat/completions") else 0 for path in PATHS]

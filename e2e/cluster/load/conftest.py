"""One object under the load of 20 clients, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.cluster.service import NAME, Served
from e2e.local.streams import WHOLE, Streams
from e2e.operator.objects import eventually

CLIENTS = 20
TOKENS = 24
PROMPT_TOKENS = 100
REST_SECONDS = 3.0
"""Between two requests of a client. Without it 20 streams take both cores of a small machine, and no engine starts."""


@pytest.fixture(scope="session")
def ready(place: Served) -> Served:
    """One prefill and one decode that answer. A decode that cannot fetch its KV fails the request."""
    place.apply(transfer={"lease": "5s", "onFailure": "fail"})
    place.wait("Ready")
    return place


@pytest.fixture
def load(ready: Served) -> Iterator[Streams]:
    """All clients ask while a test runs."""

    def body(number: int) -> dict[str, object]:
        prompt = ready.texts.of(PROMPT_TOKENS, 20_000 + number)
        return {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}

    url = ready.url
    streams = Streams(CLIENTS, lambda: url, body, chunks=TOKENS, spread=REST_SECONDS, rest=REST_SECONDS)
    with streams.flowing():
        eventually(lambda: streams.outcomes[WHOLE], lambda count: count >= CLIENTS, what="all clients ask", timeout=120)
        yield streams
    print(f"{sum(streams.outcomes.values())} requests: {dict(streams.outcomes)}")

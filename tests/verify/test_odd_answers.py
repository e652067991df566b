"""Engines that answer with JSON of another shape: the probe fails with a sentence, whatever it is."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvserving_operator.verify import Verification, verify
from kvserving_operator.verify.legs import Endpoint

MODELS = '{"data": [{"id": "tiny", "max_model_len": 4096}]}'
DEEP = "[" * 200_000


def run(models: str, completion: str, status: int = 200) -> Verification:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.Response(text=models)
        return web.Response(text="" if request.path == "/metrics" else completion, status=status)

    async def main() -> Verification:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            engines = [Endpoint("p", "prefill", url), Endpoint("d", "decode", url)]
            return await verify(engines, keys=(b"k" * 32,), revision="r", model="tiny", router=None, timeout=5)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "models",
    ["[]", '{"data": ["tiny"]}', '{"data": [{"id": "tiny", "max_model_len": {}}]}', '{"data": {"id": "tiny"}}', DEEP],
)
def test_of_the_model(models: str) -> None:
    found = run(models, "{}")
    assert not found.ok
    assert "answered" in found.message


@pytest.mark.parametrize(
    "completion",
    [
        "[]",
        '{"choices": ["x"]}',
        '{"choices": [[]]}',
        '{"choices": [{}], "usage": [1]}',
        '{"choices": [{}], "usage": {"prompt_tokens": 1e999}}',
        '{"choices": [{}], "usage": {"prompt_tokens": [1]}}',
        DEEP,
    ],
)
def test_of_a_completion(completion: str) -> None:
    found = run(MODELS, completion)
    assert not found.ok
    assert "p answered /v1/completions with something else than expected" in found.message


@pytest.mark.parametrize("text", [DEEP, '{"error": []}', "[]", '"x"'])
def test_of_a_refusal(text: str) -> None:
    found = run(MODELS, text, status=503)
    assert not found.ok
    assert "p answered 503" in found.message

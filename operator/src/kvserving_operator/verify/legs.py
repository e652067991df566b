"""The HTTP of verification: the two legs of a probe, one request through the router, counters.

Nothing here judges. Every call ends within its timeout, and every failure of an engine or
router comes back as a ``Failure`` that says what was asked of whom, without the prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import aiohttp

from . import activity, counters, mark
from .activity import Activity
from .counters import Counters

T = TypeVar("T")

COMPLETIONS = "/v1/completions"
_LONGEST_MESSAGE = 300
_UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading an answer of another shape, or of endless depth or size, ends in."""

PREFILL_PARAMS: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router puts into a prefill request."""


@dataclass(frozen=True)
class Endpoint:
    """One engine or router: the pod's name, its role and ``http://host:port``."""

    pod: str
    role: Literal["prefill", "decode", "router"]
    url: str


@dataclass(frozen=True)
class Failure:
    """A call that brought no answer: ``unreachable``, ``timeout`` or ``status``, and a sentence about it."""

    kind: Literal["unreachable", "timeout", "status"]
    message: str
    status: int = 0


@dataclass(frozen=True)
class Answer:
    """A completion's answer as far as verification looks at it.

    ``params`` is the answer's ``kv_transfer_params``: prefill's parameters, or what decode's
    connector returned. ``seconds`` is the time from request to answer.
    """

    params: Mapping[str, Any] | None
    prompt_tokens: int
    finish_reason: str | None
    seconds: float


@dataclass(frozen=True)
class Probe:
    """What one probe sends: the served model, the text and the signed mark. ``repr`` shows neither text nor mark."""

    model: str
    prompt: str = field(repr=False)
    mark: str = field(repr=False)
    max_tokens: int = 2

    def body(self) -> dict[str, Any]:
        """Return the completion request as a client would send it, with the mark."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": False,
            "vllm_xargs": {mark.MARK_FIELD: self.mark},
        }

    def prefill_body(self) -> dict[str, Any]:
        """Return the request of the prefill leg, in the shape that routers give it."""
        return {**self.body(), "max_tokens": 1, "n": 1, "kv_transfer_params": dict(PREFILL_PARAMS)}

    def decode_body(self, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the request of the decode leg with prefill's ``params`` as they came."""
        return self.body() if params is None else {**self.body(), "kv_transfer_params": params}


class Caller:
    """Calls engines and routers with one session and one timeout per call, in seconds.

    ``api_key`` is sent as a bearer token to the router alone.
    """

    def __init__(self, session: aiohttp.ClientSession, timeout: float, api_key: str | None = None) -> None:
        self._session = session
        self._timeout = timeout
        self._api_key = api_key

    async def complete(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Answer | Failure:
        """Post a completion and return its answer."""
        headers = {}
        if self._api_key is not None and endpoint.role == "router":
            headers["Authorization"] = f"Bearer {self._api_key}"

        async def call() -> Answer | Failure:
            started = time.monotonic()
            async with self._session.post(endpoint.url + COMPLETIONS, json=body, headers=headers) as response:
                text = await response.text()
                if response.status != 200:
                    return _refused(endpoint, response.status, _without(str(body.get("prompt", "")), text))
                return _answer(endpoint, text, time.monotonic() - started)

        return await self._bounded(endpoint, COMPLETIONS, call)

    async def counters(self, endpoint: Endpoint) -> Counters | Failure:
        """Return what the engine has counted so far."""
        return await self._metrics(endpoint, counters.parse)

    async def activity(self, endpoint: Endpoint) -> Activity | Failure:
        """Return what the engine has to do and has done."""
        return await self._metrics(endpoint, activity.parse)

    async def _metrics(self, endpoint: Endpoint, parse: Callable[[str], T]) -> T | Failure:
        async def call() -> T | Failure:
            async with self._session.get(endpoint.url + "/metrics") as response:
                text = await response.text()
                if response.status != 200:
                    return _refused(endpoint, response.status, "")
                return parse(text)

        return await self._bounded(endpoint, "/metrics", call)

    async def model(self, endpoint: Endpoint) -> tuple[str, int | None] | Failure:
        """Return the engine's first model and its longest length in tokens."""

        async def call() -> tuple[str, int | None] | Failure:
            async with self._session.get(endpoint.url + "/v1/models") as response:
                text = await response.text()
                if response.status != 200:
                    return _refused(endpoint, response.status, text)
                first = json.loads(text)["data"][0]
                length = first.get("max_model_len")
                if not isinstance(length, int | None):
                    raise TypeError
                return str(first["id"]), length

        return await self._bounded(endpoint, "/v1/models", call)

    async def _bounded(self, endpoint: Endpoint, path: str, call: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
        who = f"{endpoint.role} {endpoint.pod}"
        try:
            async with asyncio.timeout(self._timeout):
                return await call()
        except TimeoutError:
            return Failure("timeout", f"{who} did not answer {path} within {self._timeout:g} s")
        except aiohttp.ClientError as error:
            return Failure("unreachable", f"{who} at {endpoint.url} cannot be reached: {connection_failure(error)}")
        except _UNEXPECTED as error:
            return Failure(
                "status", f"{who} answered {path} with something else than expected ({type(error).__name__})"
            )


def connection_failure(error: Exception) -> str:
    """What a failed connection says, without the address and the settings of TLS that aiohttp repeats."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if cause is not None and (number := cause.errno) and number > 0:
        return os.strerror(number)
    return str(cause or error) or type(error).__name__


def _answer(endpoint: Endpoint, text: str, seconds: float) -> Answer | Failure:
    answer = json.loads(text)
    choice = answer["choices"][0]
    if choice.get("finish_reason") == "error":
        return Failure("status", f"{endpoint.role} {endpoint.pod} ended the request with finish_reason error", 200)
    params = answer.get("kv_transfer_params")
    return Answer(
        params=params if isinstance(params, dict) else None,
        prompt_tokens=int((answer.get("usage") or {}).get("prompt_tokens") or 0),
        finish_reason=choice.get("finish_reason"),
        seconds=seconds,
    )


def _without(prompt: str, text: str) -> str:
    # Validation errors can quote the input, and messages end up in status and logs.
    return "" if prompt[:24] in text else text


def _refused(endpoint: Endpoint, status: int, text: str) -> Failure:
    return Failure("status", f"{endpoint.role} {endpoint.pod} answered {status}{_message(text)}", status)


def _message(text: str) -> str:
    try:
        error = json.loads(text)["error"]
        message = str(error["message"] if isinstance(error, dict) else error)
    except _UNEXPECTED:
        return ""
    return f": {message[:_LONGEST_MESSAGE]}"

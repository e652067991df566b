"""The path of one request through the fault proxy: faults before, the apiserver, faults after, the answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from e2e.controlplane.faults import (
    Call,
    Cut,
    CutWatch,
    Delay,
    DelayEvents,
    DropEvent,
    Duplicate,
    DuplicateEvent,
    EventFault,
    Forward,
    Match,
    RequestFault,
    Rule,
    Stale,
    StallWatch,
    Status,
    WatchGone,
)
from e2e.controlplane.history import History
from e2e.controlplane.request_info import RequestInfo, decoded, parse

# Of one connection, not of the message; the length is set anew for what is sent.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "content-length", "host"})
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
Note = Callable[[float, RequestInfo, int, tuple[Any, ...], Any], None]


class _CutNow(Exception):
    """The client's connection is to be cut."""


@dataclass(eq=False)
class _Open:
    """A request in progress."""

    info: RequestInfo
    body: Any
    request: web.Request
    query: dict[str, str]
    data: bytes
    at: float = field(default_factory=time.monotonic)
    faults: tuple[RequestFault, ...] = ()
    status: int = 0


class Relay:
    """Handles requests. Lives on one event loop; ``rules`` is read anew for every request and every event."""

    def __init__(
        self,
        server: str,
        session: aiohttp.ClientSession,
        rules: Sequence[Rule],
        history: History,
        note: Note,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._server = server
        self._session = session
        self._rules = rules
        self._history = history
        self._note = note
        self._failed = failed
        self._open: set[_Open] = set()
        self._stalled: dict[Rule, asyncio.Event] = {}

    def lift(self, rule: Rule) -> None:
        """Let go on what ``rule`` stalled."""
        if (event := self._stalled.pop(rule, None)) is not None:
            event.set()

    def cut(self, match: Match) -> int:
        """Cut the connections of open requests that fit ``match``."""
        found = [o for o in self._open if match.fits(o.info, o.body)]
        for one in found:
            _abort(one.request)
        return len(found)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        data = await request.read()
        body = decoded(data)
        query = dict(request.query)
        info = parse(request.method, request.path, query, body, request.headers.get("User-Agent", ""))
        now = _Open(info, body, request, query, data)
        now.faults = tuple(
            rule.fault
            for rule in list(self._rules)
            if not isinstance(rule.fault, EventFault) and rule.hit_by(info, body)
        )
        self._open.add(now)
        try:
            return await self._answer(now)
        except (_CutNow, aiohttp.ClientError):
            # The apiserver is down, or cut the answer: the client sees what it would see without a proxy.
            return self._cut_off(now)
        except Exception as error:
            self._failed(error)
            return self._cut_off(now)
        finally:
            self._open.discard(now)

    async def _answer(self, now: _Open) -> web.StreamResponse:
        if (made := await self._act(now, "before")) is not None:
            return made
        stale = next((f for f in now.faults if isinstance(f, Stale)), None)
        if stale is not None:
            version = stale.version or self._history.version_of(stale.seconds)
            if now.info.verb == "get" and now.info.resource and not now.info.subresource:
                return await self._stale_get(now, version)
            self._make_stale(now, version)
        if any(isinstance(f, Duplicate) for f in now.faults):
            async with self._forward(now) as first:
                await first.read()
        async with self._forward(now) as answer:
            if now.info.verb == "watch" and answer.status == 200:
                return await self._stream(now, answer)
            content = await answer.read()
            if (made := await self._act(now, "after")) is not None:
                return made
            self._record(now, answer.status)
            headers = [(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP]
            response = web.Response(status=answer.status, body=content)
            response.headers.clear()
            response.headers.extend(headers)
            return response

    def _cut_off(self, now: _Open) -> web.StreamResponse:
        self._record(now, 0)
        _abort(now.request)
        # The server wants a response to write; on a connection that is gone it is dropped.
        return web.Response()

    async def _act(self, now: _Open, when: Forward) -> web.Response | None:
        for fault in now.faults:
            match fault:
                case Delay(seconds, at) if at == when:
                    await asyncio.sleep(seconds)
                case Call(function, at, then) if at == when:
                    try:
                        await asyncio.to_thread(function, now.info)
                    except Exception as error:
                        self._failed(error)
                    if then == "cut":
                        raise _CutNow
                case Cut(at) if at == when:
                    raise _CutNow
                case Status(code) if fault.when == when:
                    self._record(now, code)
                    return _made(fault)
        return None

    def _forward(self, now: _Open) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        query = f"?{urlencode(now.query)}" if now.query else ""
        headers = [(k, v) for k, v in now.request.headers.items() if k.lower() not in _HOP]
        return self._session.request(
            now.request.method,
            f"{self._server}{now.request.raw_path.partition('?')[0]}{query}",
            data=now.data or None,
            headers=headers,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            allow_redirects=False,
        )

    def _make_stale(self, now: _Open, version: str) -> None:
        if now.info.verb == "list" and "continue" not in now.query:
            now.query |= {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        elif now.info.verb == "watch" and now.query.get("resourceVersion") in (None, "", "0"):
            now.query["resourceVersion"] = version

    async def _stale_get(self, now: _Open, version: str) -> web.Response:
        """Answer a read of one object from a list of that time, since a read cannot be asked for an exact version."""
        path = now.request.path.rpartition("/")[0]
        query = urlencode(
            {
                "fieldSelector": f"metadata.name={now.info.name}",
                "resourceVersion": version,
                "resourceVersionMatch": "Exact",
            }
        )
        headers = {k: v for k, v in now.request.headers.items() if k.lower() == "authorization"}
        async with self._session.get(f"{self._server}{path}?{query}", headers=headers) as answer:
            listed = json.loads(await answer.read())
        if answer.status >= 400:
            self._record(now, answer.status)
            return web.json_response(listed, status=answer.status)
        if not listed.get("items"):
            self._record(now, 404)
            missing = _status_object(Status(404, message=f'{now.info.resource} "{now.info.name}" not found'))
            # Without a name, a client takes it that there is no such kind.
            missing["details"] = {"name": now.info.name, "kind": now.info.resource}
            return web.json_response(missing, status=404)
        kind = listed["kind"].removesuffix("List")
        self._record(now, 200)
        return web.json_response({"kind": kind, "apiVersion": listed["apiVersion"], **listed["items"][0]})

    async def _stream(self, now: _Open, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=200)
        response.headers.extend([(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP])
        response.enable_chunked_encoding()
        await response.prepare(now.request)
        self._record(now, 200)
        async with aclosing(_timed_lines(answer)) as lines:
            async for at, line in lines:
                if not await self._pass_on(now, response, at, line):
                    break
        await response.write_eof()
        return response

    async def _pass_on(self, now: _Open, response: web.StreamResponse, at: float, line: bytes) -> bool:
        """Send an event that came ``at`` that time, as the rules of this moment want it; false ends the watch."""
        event = json.loads(line)
        repeat = 1
        for rule in list(self._rules):
            if not isinstance(rule.fault, EventFault) or not rule.hit_by(now.info, event):
                continue
            match rule.fault:
                case DropEvent():
                    repeat = 0
                case DuplicateEvent():
                    repeat = 2
                case DelayEvents(seconds):
                    await asyncio.sleep(at + seconds - time.monotonic())
                case StallWatch():
                    await self._stalled.setdefault(rule, asyncio.Event()).wait()
                case CutWatch():
                    raise _CutNow
                case WatchGone():
                    gone = Status(410, message="too old resource version")
                    await response.write(json.dumps({"type": "ERROR", "object": _status_object(gone)}).encode() + b"\n")
                    return False
        for _ in range(repeat):
            await response.write(line + b"\n")
        return True

    def _record(self, now: _Open, status: int) -> None:
        # A watch that is cut later was recorded when it was opened.
        if not now.status:
            now.status = status or -1
            self._note(now.at, now.info, status, now.faults, now.body)


async def _timed_lines(answer: aiohttp.ClientResponse) -> AsyncGenerator[tuple[float, bytes], None]:
    """Yield lines with the time of their arrival, read ahead of the consumer: events that wait do not add up."""
    arrived: asyncio.Queue[tuple[float, bytes] | BaseException | None] = asyncio.Queue()

    async def read() -> None:
        rest = b""
        try:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    arrived.put_nowait((time.monotonic(), line))
            arrived.put_nowait(None)
        except aiohttp.ClientError as error:
            arrived.put_nowait(error)

    reader = asyncio.create_task(read())
    try:
        while (item := await arrived.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        reader.cancel()


def _status_object(fault: Status) -> dict[str, Any]:
    details = {"retryAfterSeconds": fault.retry_after} if fault.retry_after is not None else {}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": fault.message,
        "reason": fault.reason or _REASONS.get(fault.code, "Unknown"),
        "details": details,
        "code": fault.code,
    }


def _made(fault: Status) -> web.Response:
    headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else {}
    return web.json_response(_status_object(fault), status=fault.code, headers=headers)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()

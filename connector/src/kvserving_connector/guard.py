"""ASGI middleware of the engine: no transfer parameters reach vLLM unless this role may act on them.

Used as ``--middleware=kvserving_connector.guard.Guard``. Every path and method is covered; a request whose parameters
are removed is served all the same, by computing its prompt. Bodies that cannot name the key pass byte for byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.message import Message as Headers
from typing import Any

from kvserving_connector.core import body as bodies
from kvserving_connector.core.params import PARAMS_KEY
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import PROBE_XARG, REFUSED_XARG
from kvserving_connector.metrics import GuardCounters, guard_counters
from kvserving_connector.settings import KeyFile, Settings, logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 * 2**20

_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_FORM_TYPES = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})
_COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
_FORM_CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1"})


class _Problem(Exception):
    """A body that cannot be served, with the HTTP status that says so."""

    def __init__(self, status: int, message: str, reason: Refusal | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason


class Guard:
    """The middleware. ``app`` is the next ASGI application; role, revision and key file come from the environment.

    Without ``KVSERVING_ROLE`` it acts as aggregated: no transfer parameters are accepted.
    """

    def __init__(
        self,
        app: Application,
        *,
        settings: Settings | None = None,
        counters: GuardCounters | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._settings = settings if settings is not None else Settings.from_environment()
        self._role = self._settings.role or Role.AGGREGATED
        self._keys = KeyFile(self._settings.key_file)
        self._counters = counters if counters is not None else guard_counters()
        self._clock = clock
        if self._role is not Role.AGGREGATED:
            self._keys.current()
            if not self._settings.revision:
                logger.error("KVServing: KVSERVING_REVISION is not set. Every handoff is refused; set the revision.")
        logger.info("KVServing guard: role %s, revision %s", self._role, self._settings.revision or "(none)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "websocket":
            await self._app(scope, self._checked_messages(receive), send)
        elif scope["type"] != "http" or _has_no_body(scope):
            await self._app(scope, receive, send)
        else:
            await self._serve_http(scope, receive, send)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read_body(scope, receive)
            if body is None:
                return
            checked = self._checked_body(scope, body)
        except _Problem as problem:
            if problem.reason is not None:
                self._counters.refused.labels(problem.reason.value).inc()
            await _answer(send, problem)
            return
        if checked is not body:
            scope = {**scope, "headers": _with_length(scope["headers"], len(checked))}
        if scope["path"].endswith(_COMPLETIONS):
            await self._serve_completion(scope, _replay(checked, receive), send)
        else:
            await self._app(scope, _replay(checked, receive), send)

    async def _serve_completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counted as unanswered until the first bytes of its answer or its end.

        Of other paths some wait for others than the engine, and of an answer the rest may wait for a slow client.
        """
        waiting = True

        def answered() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                self._counters.unanswered.dec()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                answered()
            await send(message)

        self._counters.unanswered.inc()
        try:
            await self._app(scope, receive, noted)
        finally:
            answered()

    def _checked_body(self, scope: Scope, body: bytes) -> bytes:
        """Return the body to pass on: the same object when there was nothing to change."""
        media, charset = _content_type(scope)
        if media in _FORM_TYPES:
            if charset not in _FORM_CHARSETS:
                raise _Problem(400, f"form data in the charset {charset!r} is not accepted; send UTF-8")
            if bodies.mentions(body):
                raise _Problem(400, f"`{PARAMS_KEY}` is not accepted in form data", Refusal.NESTED)
            return body
        if not bodies.may_carry(body):
            return body
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            if bodies.mentions(body):
                raise _Problem(400, f"a body with `{PARAMS_KEY}` must be valid JSON", Refusal.MALFORMED) from None
            if media.startswith(("application/json", "text/")) or media.endswith("+json") or not media:
                raise _Problem(400, "the request body is not valid JSON") from None
            return body
        if not self._clean(value):
            return body
        try:
            if not bodies.is_text(body, value):
                raise _Problem(400, "the request body has half of a surrogate pair, which is no character")
            # What was checked is what the engine parses: duplicate keys, odd encodings and escapes end here.
            return json.dumps(value, separators=(",", ":")).encode("ascii")
        except RecursionError:
            raise _Problem(400, "the request body is nested too deeply", Refusal.MALFORMED) from None

    def _clean(self, value: Any) -> bool:
        """Remove refused parameters from the parsed body, in place; say whether the key stood in it at all."""
        top = isinstance(value, dict) and PARAMS_KEY in value
        nested = bodies.remove_nested(value, keep_top=top)
        if nested:
            self._counters.refused.labels(Refusal.NESTED.value).inc(nested)
        if not top:
            return nested > 0
        params = value[PARAMS_KEY]
        if params is None:
            del value[PARAMS_KEY]
            return True
        policy = Policy(self._role, self._settings.revision, self._keys.current())
        refusal = policy.judge_request(value, params, self._clock())
        if refusal is None:
            value[PARAMS_KEY] = policy.forwarded(params)
            self._counters.accepted.inc()
        else:
            del value[PARAMS_KEY]
            self._counters.refused.labels(refusal.value).inc()
            xargs = value.get("vllm_xargs")
            if isinstance(xargs, dict) and PROBE_XARG in xargs:
                xargs[REFUSED_XARG] = refusal.value
        return True

    def _checked_messages(self, receive: Receive) -> Receive:
        """Wrap a WebSocket's ``receive``: the key is removed from every JSON message, whatever its place."""

        async def checked() -> Message:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            text, data = message.get("text"), message.get("bytes")
            raw = text.encode("utf-8", "surrogatepass") if text is not None else data or b""
            if not bodies.may_carry(raw):
                return message
            try:
                value = json.loads(raw)
            except (ValueError, RecursionError):
                # Audio frames and broken messages: without the key they are the endpoint's business.
                if not bodies.mentions(raw):
                    return message
                self._counters.refused.labels(Refusal.MALFORMED.value).inc()
                return {"type": "websocket.disconnect", "code": 1008}
            removed = bodies.remove_nested(value, keep_top=False)
            if not removed:
                return message
            self._counters.refused.labels(Refusal.NESTED.value).inc(removed)
            clean = json.dumps(value, separators=(",", ":"))
            if text is not None:
                return {"type": "websocket.receive", "text": clean}
            return {"type": "websocket.receive", "bytes": clean.encode("ascii")}

        return checked


def _has_no_body(scope: Scope) -> bool:
    if scope["method"] not in _BODILESS:
        return False
    names = {name.lower() for name, _ in scope["headers"]}
    return b"content-length" not in names and b"transfer-encoding" not in names


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """Read the whole body; None when the client went away before its end. Raises _Problem when it is too large."""
    too_large = _Problem(413, f"the request body is larger than {MAX_BODY_BYTES // 2**20} MiB")
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit() and int(value[:20]) > MAX_BODY_BYTES:
            raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise too_large
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the read body once, then the connection's own messages (the client's disconnect)."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


def _content_type(scope: Scope) -> tuple[str, str]:
    """Return media type and charset in lower case, each empty when absent."""
    headers = Headers()
    for name, value in scope["headers"]:
        if name.lower() == b"content-type":
            headers["content-type"] = value.decode("latin-1")
            break
    else:
        return "", ""
    charset = headers.get_param("charset", "")
    return headers.get_content_type(), str(charset).strip().lower()


def _with_length(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [pair for pair in headers if pair[0].lower() not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode("ascii"))]


async def _answer(send: Send, problem: _Problem) -> None:
    """Send an error in the shape of the OpenAI API."""
    body = json.dumps(
        {
            "error": {
                "message": problem.message,
                "type": "BadRequestError" if problem.status == 400 else "RequestEntityTooLarge",
                "param": None,
                "code": problem.status,
            }
        }
    ).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    if problem.status == 413:
        # The rest of the body is not read, so the connection cannot carry another request.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

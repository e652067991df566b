"""A reverse proxy between a client under test and the apiserver, which makes faults happen and counts requests.

    with FaultProxy(plane) as proxy:
        config = plane.kubeconfig(operator, server=proxy.url)     # a user with a token
        with proxy.fault(Match(verbs={"create"}, resource="services", nth=1), Status(500)) as rule:
            ...
        assert rule.hits == 1
        assert proxy.counts()["create", "services"] == 2

Without rules every answer is the apiserver's, byte for byte, and watches are streamed event by event. Clients
authenticate with a bearer token, which is passed on and kept nowhere. Upgrades (exec, port-forward) are not passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.faults import EventFault, EventMatch, Match, RequestFault, Rule
from e2e.controlplane.history import History
from e2e.controlplane.loop_thread import LoopThread
from e2e.controlplane.relay import Relay
from e2e.controlplane.request_info import RequestInfo

_LARGEST_BODY = 64 * 2**20


@dataclass(frozen=True)
class Record:
    """One request that came in. ``body`` is kept for writes only. ``status`` 0: no answer was given (cut).

    ``at`` is on the clock of ``time.monotonic``; ``faults`` are the rules that hit it.
    """

    at: float
    info: RequestInfo
    status: int
    faults: tuple[RequestFault | EventFault, ...]
    body: Any = None


class FaultProxy:
    """The proxy, as a synchronous context manager; it serves in a thread of its own.

    ``tls`` serves with a certificate of the control plane's authority (clients then verify as usual), else plain
    HTTP. ``history_interval``: seconds between two looks at the apiserver's version, for ``Stale``; 0 turns it off.
    Errors inside the proxy and in functions of ``Call`` are raised by ``check`` and on exit.
    """

    def __init__(self, cluster: Cluster, *, tls: bool = True, history_interval: float = 0.2) -> None:
        if tls and not isinstance(cluster, ControlPlane):
            raise ValueError("the authority of an existing cluster is not ours to sign with: use tls=False")
        self._cluster = cluster
        self._tls = tls
        self._interval = history_interval
        self._rules: list[Rule] = []
        self._records: list[Record] = []
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._thread = LoopThread("fault-proxy")
        try:
            self._thread.call(self._start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._thread.call(self._close())
        self._thread.stop()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the first error that happened inside, if any."""
        if self._errors:
            raise RuntimeError(f"the fault proxy failed {len(self._errors)} times") from self._errors[0]

    @contextlib.contextmanager
    def fault(self, match: Match | EventMatch, fault: RequestFault | EventFault) -> Iterator[Rule]:
        """Add a rule for the time of the ``with`` block."""
        rule = self.add(match, fault)
        try:
            yield rule
        finally:
            self.remove(rule)

    def add(self, match: Match | EventMatch, fault: RequestFault | EventFault) -> Rule:
        """Add a rule; of two that hit the same request, the earlier acts first."""
        rule = Rule(match, fault)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Remove a rule; watches that it stalled go on. Removing it twice is fine."""
        if rule in self._rules:
            self._rules.remove(rule)
            self._thread.loop.call_soon_threadsafe(self._relay.lift, rule)

    def clear(self) -> None:
        """Remove every rule."""
        for rule in list(self._rules):
            self.remove(rule)

    def cut_all(self, match: Match | None = None) -> int:
        """Cut every open connection whose request fits (all by default) and return their number."""
        wanted = match or Match()

        async def cut() -> int:
            return self._relay.cut(wanted)

        return self._thread.call(cut())

    def version(self) -> str:
        """Return the resourceVersion of the apiserver's present state, for ``Stale``."""
        return str(self._cluster.api.get("/api/v1/namespaces", limit=1)["metadata"]["resourceVersion"])

    def records(self, match: Match | None = None, *, since: float = 0.0) -> list[Record]:
        """Return the requests that were answered (or cut) at or after ``since``, oldest first.

        A watch is recorded when it is opened. Of ``match`` only the fields count, not the occurrence.
        """
        with self._changed:
            found = list(self._records)
        return [r for r in found if r.at >= since and (match is None or match.fits(r.info, r.body))]

    def writes(self, *, since: float = 0.0) -> list[Record]:
        """Return what changed stored state (leases of leader election left out), refused attempts included."""
        return self.records(Match.writes(), since=since)

    def counts(self, *, since: float = 0.0) -> Counter[tuple[str, str]]:
        """Return the number of requests by (verb, resource with subresource), the resource ``""`` for discovery."""
        return Counter((r.info.verb, r.info.full_resource) for r in self.records(since=since))

    def reset(self) -> None:
        """Forget all records."""
        with self._changed:
            self._records.clear()

    def wait(self, condition: Callable[[list[Record]], bool], *, what: str, timeout: float = 30) -> list[Record]:
        """Return the records as soon as ``condition`` of them holds; raise ``TimeoutError`` naming ``what``."""
        with self._changed:
            if self._changed.wait_for(lambda: condition(self._records), timeout):
                return list(self._records)
            seen = Counter((r.info.verb, r.info.full_resource, r.status) for r in self._records)
        raise TimeoutError(f"not within {timeout:.0f} s: {what}; requests so far: {dict(seen)}")

    def wait_quiet(self, seconds: float, *, timeout: float = 60) -> None:
        """Return when no write came in for ``seconds``; raise ``TimeoutError`` with the latest writes otherwise."""
        deadline = time.monotonic() + timeout
        quiet_since = time.monotonic()
        with self._changed:
            while (left := quiet_since + seconds - time.monotonic()) > 0:
                self._changed.wait(left)
                latest = [r.at for r in self._records if Match.writes().fits(r.info, r.body)]
                quiet_since = max([quiet_since, *latest])
                if time.monotonic() > deadline:
                    recent = [f"{r.info.verb} {r.info.path}" for r in self._records if r.info.is_write][-5:]
                    raise TimeoutError(f"writes did not stop within {timeout:.0f} s; the latest: {recent}")

    async def _start(self) -> None:
        upstream: ssl.SSLContext | bool = True
        if self._cluster.server.startswith("https"):
            upstream = ssl.create_default_context(cafile=self._cluster.ca_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=upstream),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        history = History(self._cluster, self._interval)
        await history.start()
        self._history = history
        self._relay = Relay(
            self._cluster.server, self._session, self._rules, history, self._record, self._errors.append
        )
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._relay.handle)
        # A client that goes away must end its watch at the apiserver too.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        context: ssl.SSLContext | None = None
        if self._tls:
            assert isinstance(self._cluster, ControlPlane)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._cluster.authority.server)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _close(self) -> None:
        self._relay.cut(Match())
        await self._runner.cleanup()
        await self._history.stop()
        await self._session.close()
        # Transports report their end in the next turns of the loop.
        await asyncio.sleep(0)

    def _record(self, at: float, info: RequestInfo, status: int, faults: tuple[Any, ...], body: Any) -> None:
        with self._changed:
            self._records.append(Record(at, info, status, faults, body if info.is_write else None))
            self._changed.notify_all()

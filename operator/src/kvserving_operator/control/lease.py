"""Election of the one operator that writes, by a Lease, over ``kubernetes.aio.leaderelection``.

The library's own lock catches API errors only, counts by the wall clock and cannot create a
Lease in the pinned release. The lock here takes every failure of a request as a failed attempt,
and whether the Lease is held is counted by the monotonic clock from before the last renewal was
sent: neither a jump of the clock nor a stopped process makes a former holder believe that it
may still write.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config as ElectionConfig
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from .. import times
from .config import Config
from .failures import ApiFailure, describe
from .kube import Json, Kube
from .permissions import LEASES

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """The Lease was held and could not be renewed in time."""


class Lock(BaseLock):
    """The Lease as the library's elector takes it. ``renewed`` is when the last successful write was sent."""

    def __init__(self, config: Config, kube: Kube, now: Callable[[], float]) -> None:
        super().__init__(config.election.name, config.namespace, config.identity)
        self._kube = kube
        self._now = now
        self._timeout = max(1.0, config.election.renew_deadline / 3)
        self._lease: Json = {}
        self._other = ""
        self._missing = f"namespace {config.namespace} does not exist: create it, or name another by --own-namespace"
        self.problem = ""
        """What keeps this process from the Lease, another holder apart; empty when nothing does."""
        self._refused = False
        self.renewed: float | None = None
        self.held_before: float | None = None
        """When the last holder wrote the Lease before this one took it, on the wall clock."""

    async def get(self, name: str, namespace: str) -> Any:
        """Return (true, record), or (false, error) when there is no Lease or no answer."""
        try:
            async with asyncio.timeout(self._timeout):
                lease = await self._kube.get(LEASES, namespace, name)
        except ApiFailure as failure:
            self._say(describe(failure))
            return False, ApiException(status=failure.status, reason=describe(failure))
        except TimeoutError:
            self._say(f"no answer within {self._timeout:.1f} s")
            return False, ApiException(status=0, reason="no answer")
        if not self._refused:
            # The apiserver answers again; whether it takes a write, a lasting refusal apart, only an attempt tells.
            self.problem = ""
        if lease is None:
            return False, ApiException(status=404, reason="NotFound", body=json.dumps({"code": 404}))
        self._lease = lease
        spec = lease.get("spec") or {}
        duration = spec.get("leaseDurationSeconds")
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self.identity, self._other):
            log.info("standing by: %s holds lease %s/%s", holder, namespace, name)
        self._other = holder
        return True, LeaderElectionRecord(
            spec.get("holderIdentity") or None,
            None if duration is None else str(duration),
            spec.get("acquireTime"),
            spec.get("renewTime"),
        )

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        """Create the Lease; return whether that succeeded."""
        metadata = {"name": name, "namespace": namespace}
        self._lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
        return await self._write(str(election_record.holder_identity), election_record.lease_duration, create=True)

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        """Take or renew the Lease as it was last read; return whether that succeeded."""
        return await self._write(str(updated_record.holder_identity), updated_record.lease_duration, create=False)

    async def release(self) -> None:
        """Empty the holder, so that another operator takes over at once; a failure is logged: the Lease runs out."""
        if self.renewed is not None:
            spec = self._lease.get("spec") or {}
            if await self._write("", spec.get("leaseDurationSeconds") or 1, create=False):
                log.info("released lease %s/%s", self.namespace, self.name)

    def _say(self, problem: str) -> None:
        self.problem = f"lease: {problem}"
        log.warning("%s", self.problem)

    async def _write(self, holder: str, duration: Any, *, create: bool) -> bool:
        sent = self._now()
        spec = dict(self._lease.get("spec") or {})
        former = spec.get("renewTime")
        stamp = times.exact_stamp(datetime.now(UTC))
        if spec.get("holderIdentity") != holder or "acquireTime" not in spec:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (0 if create else 1)
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": int(duration), "renewTime": stamp}
        try:
            async with asyncio.timeout(self._timeout):
                self._lease = await self._kube.put_lease({**self._lease, "spec": spec}, create=create)
        except ApiFailure as failure:
            if failure.status == 409:
                log.info("another operator was faster at lease %s/%s", self.namespace, self.name)
                return False
            self._refused = 400 <= failure.status < 500 and failure.status != 429
            self._say(describe(failure) if not create or failure.status != 404 else self._missing)
            return False
        except TimeoutError:
            self._say(f"no answer within {self._timeout:.1f} s")
            return False
        self.problem, self._refused = "", False
        if self.renewed is None and isinstance(former, str):
            self.held_before = times.read(former).timestamp()
        self.renewed = sent
        return True


class Leadership:
    """Whether this process may write. ``now`` is a monotonic clock in seconds."""

    def __init__(self, config: Config, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._lock: Lock | None = None
        self._over = False

    @property
    def problem(self) -> str:
        """What keeps this process from being elected, apart from another holder; empty when nothing does."""
        return self._lock.problem if self._lock is not None else ""

    @property
    def held_before(self) -> float | None:
        """When the last holder wrote the Lease before this process took it; ``None`` where none is known."""
        return self._lock.held_before if self._lock is not None else None

    def may_write(self) -> bool:
        """Whether a write that is sent now comes before any other operator may take over."""
        if self._over:
            return False
        if not self._config.election.enabled:
            return True
        renewed = self._lock.renewed if self._lock is not None else None
        return renewed is not None and self._now() - renewed < self._config.election.renew_deadline

    def give_up(self) -> None:
        """Let nothing be written any more."""
        self._over = True

    async def hold(self, kube: Kube, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, then run ``work`` while it is held; return when ``work`` does.

        Raises ``LeaseLost`` when the Lease cannot be renewed in time; ``may_write`` is false
        before that. An exception of ``work`` is raised on.
        """
        if not self._config.election.enabled:
            await work()
            return
        election = self._config.election
        self._lock = lock = Lock(self._config, kube, self._now)
        elected = asyncio.Event()

        async def started() -> None:
            elected.set()

        async def stopped() -> None:
            self.give_up()

        build: Any = ElectionConfig
        settings = build(lock, election.duration, election.renew_deadline, election.retry_period, started, stopped)
        elector: Any = LeaderElection
        candidate = asyncio.create_task(elector(settings).run(), name="lease")
        waiting = asyncio.create_task(elected.wait(), name="elected")
        worker: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({candidate, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not elected.is_set():
                candidate.result()
                raise LeaseLost("the election ended without a holder")
            log.info("holding lease %s/%s as %s", self._config.namespace, election.name, self._config.identity)
            worker = asyncio.ensure_future(work())
            await asyncio.wait({candidate, worker}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                self.give_up()
                candidate.cancel()
                await asyncio.wait({candidate})
                await lock.release()
                return worker.result()
            self.give_up()
            raise LeaseLost(
                f"lease {self._config.namespace}/{election.name} was not renewed within {election.renew_deadline} s"
            )
        finally:
            self.give_up()
            left = {task for task in (candidate, waiting, worker) if task is not None and not task.done()}
            for task in left:
                task.cancel()
            if left:
                # Their requests must have ended before the client is closed.
                await asyncio.wait(left)

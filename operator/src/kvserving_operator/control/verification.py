"""Transfer verification by the operator: probes to pod addresses and through the router, and the engines' counters.

A result holds for one revision and its pods (by UID and restarts); others are probed at once, the same
again after ``spec.transfer.verify.interval``. During a rollout each revision is probed for itself. Between
probes the decodes' counters are watched, so that a service whose decodes recompute says so within a
minute. Probing runs beside reconciliation, which only asks what is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import aiohttp

from ..api.v1alpha1 import KVServing
from ..plan.rollout_types import Verification as Word
from ..plan.types import Plan
from ..reasons import Reason
from ..verify import mark
from ..verify.counters import Counters
from ..verify.legs import Caller, Endpoint
from ..verify.proof import Cause
from ..verify.run import Verification, verify
from .facts import Transfer
from .failures import ApiFailure, describe
from .logs import about
from .observe import Key, View
from .pauses import spread
from .pods import PodState
from .recompute import Judgement, judge
from .sets import UNPROVED, Proof

log = logging.getLogger(__name__)

_AT_ONCE = 16
_COUNTERS_AT_ONCE = 64
_COUNTERS_TIMEOUT = 5.0
_PROBE_TIMEOUT = 60.0
_FIRST_RETRY = 5.0
_LONGEST_RETRY = 60.0
_FAILED_FOR_GOOD = 3
"""Probes in a row that must fail before a rollout is given up: one may meet a pod that is just going."""
_API_KEY = "api-key"

OUTCOMES = tuple(
    dict.fromkeys((Reason.VERIFIED, *(cause.reason for cause in Cause), Reason.SECRET_MISSING, Reason.API_UNAVAILABLE))
)
"""Every reason that a verification can end with: what a probe tells, and why none could be sent."""

ReadSecret = Callable[[str, str], Awaitable[Mapping[str, str] | None]]


class Probe(Protocol):
    """Sends the probes of one verification; ``verify.verify`` is the real one."""

    def __call__(
        self,
        engines: Sequence[Endpoint],
        *,
        keys: tuple[bytes, ...],
        revision: str,
        model: str,
        router: Endpoint | None,
        api_key: str | None,
        timeout: float,
    ) -> Awaitable[Verification]:
        """Return the outcome; nothing is raised for an engine that fails."""
        ...


@dataclass(frozen=True)
class Peers:
    """The pods that a result holds for."""

    revision: str
    engines: tuple[PodState, ...]
    router: PodState | None

    @property
    def processes(self) -> frozenset[tuple[str, int]]:
        """All of them, by UID and number of restarts: what was proved of one process says nothing of the next."""
        pods = (*self.engines, *((self.router,) if self.router else ()))
        return frozenset((pod.uid, pod.restarts) for pod in pods)


@dataclass(frozen=True)
class Subject:
    """What of an object is verified: one revision, and how requests to it are made.

    ``keys`` is the Secret with the signing key, ``api_key`` that with the clients' key, ``interval`` seconds. With
    another ``generation`` of the object, what failed so far is tried anew.
    """

    revision: str
    generation: int
    model: str
    keys: str
    api_key: str | None
    interval: float
    routed: bool
    suspended: bool = False


@dataclass(frozen=True)
class Standing:
    """What is known now, what of it a rollout may build on, and in how many seconds it should be asked again."""

    transfer: Transfer
    again: float | None = None
    proof: Proof = UNPROVED


@dataclass
class _State:
    key: Key
    generation: int
    peers: Peers | None = None
    result: Transfer | None = None
    probed: frozenset[tuple[str, int]] = frozenset()
    due: float = 0.0
    failures: int = 0
    task: asyncio.Task[None] | None = None
    recompute: Judgement = field(default_factory=lambda: Judgement(None))
    counters: dict[str, Counters] = field(default_factory=dict)


def peers_of(view: View, revision: str, *, routed: bool) -> Peers | None:
    """Return the pods of ``revision`` that can be probed; ``None`` while a role has none that is ready."""
    ready = [pod for pod in view.pods if pod.serving and pod.revision == revision]
    engines = tuple(pod for pod in ready if pod.role in ("prefill", "decode"))
    routers = [pod for pod in ready if pod.role == "router"]
    if {pod.role for pod in engines} != {"prefill", "decode"} or (routed and not routers):
        return None
    return Peers(revision, engines, routers[0] if routed else None)


_BROKE = "the probe ended by an error of its own, which is in the operator's log: it is repeated"


class Verifications:
    """Results of all objects. ``enqueue`` is called when one changed; ``now`` is a monotonic clock."""

    def __init__(
        self,
        read_secret: ReadSecret,
        enqueue: Callable[[Key], None],
        counted: Callable[[str], None],
        now: Callable[[], float],
        *,
        probe: Probe = verify,
    ) -> None:
        self._read_secret = read_secret
        self._enqueue = enqueue
        self._counted = counted
        self._now = now
        self._probe = probe
        self._states: dict[tuple[str, str], _State] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def ask(self, view: View, subject: Subject) -> Standing:
        """Return what is known about the transfer in one revision, and start a probe where one is due."""
        key = view.serving.key
        fresh = _State(key, subject.generation)
        state = self._states.setdefault((view.serving.uid, subject.revision), fresh)
        if state.generation != subject.generation:
            state.generation = subject.generation
            state.due = 0.0 if state.failures else state.due
            state.failures = 0
        if subject.suspended:
            return Standing(Transfer("Unknown", Reason.SUSPENDED, "nothing runs that could transfer"))
        peers = peers_of(view, subject.revision, routed=subject.routed)
        state.peers = peers
        if peers is None:
            return Standing(Transfer("Unknown", Reason.STARTING, "no ready pod of every role to probe"))
        changed = state.probed != peers.processes
        if state.task is None and (changed or self._now() >= state.due):
            work = self._run(state, peers, subject)
            state.task = asyncio.create_task(work, name=f"verify {key} {subject.revision}")
        again = max(0.1, state.due - self._now()) if not changed else None
        transfer = self._known(state, view, subject.revision)
        return Standing(transfer, again, _proof(state, transfer, fresh=not changed))

    def retain(self, uid: str, revisions: Collection[str]) -> None:
        """Drop everything about other revisions of one object and stop their probes."""
        for known in [known for known in self._states if known[0] == uid and known[1] not in revisions]:
            task = self._states.pop(known).task
            if task is not None:
                task.cancel()

    def forget(self, uid: str) -> None:
        """Drop everything about one object and stop its probes."""
        self.retain(uid, ())

    async def watch_counters(self, interval: float) -> None:
        """Look at the counters of all decodes every ``interval`` seconds, for ever."""
        async with aiohttp.ClientSession() as session:
            caller = Caller(session, _COUNTERS_TIMEOUT)
            limit = asyncio.Semaphore(_COUNTERS_AT_ONCE)
            while True:
                await asyncio.sleep(spread(interval))
                looks = [self._look(state, caller, limit) for state in list(self._states.values())]
                await asyncio.gather(*looks)

    async def close(self) -> None:
        """Stop all probes."""
        for uid in {uid for uid, _ in self._states}:
            self.forget(uid)

    def _known(self, state: _State, view: View, revision: str) -> Transfer:
        if state.recompute.recomputing:
            return Transfer("False", Reason.RECOMPUTING_KV, state.recompute.message)
        if state.result is not None:
            return state.result
        return _carried(view, revision) or Transfer("Unknown", Reason.VERIFYING, "a probe is on its way")

    async def _run(self, state: _State, peers: Peers, subject: Subject) -> None:
        with about(state.key):
            try:
                async with self._limit:
                    transfer = await self._verify(state.key, peers, subject)
            except Exception:
                # Nothing is known of the transfer; without a result nobody would probe again.
                log.exception("the probe of revision %s broke", subject.revision)
                transfer = Transfer("Unknown", Reason.PROBE_FAILED, _BROKE)
            finally:
                state.task = None
            before = state.result
            state.result, state.probed = transfer, peers.processes
            ok = transfer.status == "True"
            state.failures = 0 if ok else state.failures + 1
            retry = min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(state.failures - 1, 8))
            state.due = self._now() + (subject.interval if ok else min(subject.interval, retry))
            self._counted(transfer.reason.value)
            if before is None or before.status != transfer.status or before.reason != transfer.reason:
                level = logging.INFO if ok else logging.WARNING
                log.log(level, "transfer %s: %s", transfer.reason.value, transfer.message)
            self._enqueue(state.key)

    async def _verify(self, key: Key, peers: Peers, subject: Subject) -> Transfer:
        try:
            secret = await self._read_secret(key.namespace, subject.keys)
            if secret is None:
                message = f"Secret {subject.keys} does not exist: the operator makes it"
                return Transfer("False", Reason.SECRET_MISSING, message)
            keys = mark.keys_of(secret.get("signing", ""))
            api_key = None
            if subject.api_key is not None and peers.router is not None:
                found = await self._read_secret(key.namespace, subject.api_key) or {}
                if not found.get(_API_KEY, "").strip():
                    lacks = f"has an empty {_API_KEY}" if _API_KEY in found else f"has no key {_API_KEY}"
                    message = f"Secret {subject.api_key} (spec.router.apiKeySecretRef) {lacks}: create it"
                    return Transfer("False", Reason.SECRET_MISSING, message)
                api_key = found[_API_KEY].strip()
        except ApiFailure as failure:
            return Transfer("Unknown", Reason.API_UNAVAILABLE, describe(failure))
        except ValueError:
            return Transfer("False", Reason.SECRET_MISSING, f"Secret {subject.keys} holds no signing key yet")
        router = peers.router
        outcome = await self._probe(
            [endpoint(pod) for pod in peers.engines],
            keys=keys,
            revision=peers.revision,
            model=subject.model,
            router=None if router is None else endpoint(router),
            api_key=api_key,
            timeout=_PROBE_TIMEOUT,
        )
        return Transfer("True" if outcome.ok else "False", outcome.reason, outcome.message)

    async def _look(self, state: _State, caller: Caller, limit: asyncio.Semaphore) -> None:
        if state.peers is None:
            return
        decodes = [pod for pod in state.peers.engines if pod.role == "decode"]

        async def read(pod: PodState) -> tuple[str, Any]:
            async with limit:
                return pod.uid, await caller.counters(endpoint(pod))

        read_now = dict(await asyncio.gather(*(read(pod) for pod in decodes)))
        seen = {pod: found for pod, found in read_now.items() if isinstance(found, Counters)}
        names = {pod.uid: pod.name for pod in decodes}
        windows = {names[pod]: now.since(state.counters[pod]) for pod, now in seen.items() if pod in state.counters}
        state.counters = seen
        before, state.recompute = state.recompute, judge(windows)
        if before.recomputing != state.recompute.recomputing and (before.recomputing or state.recompute.recomputing):
            # Both ways: the probes that failed meanwhile have put off the next one for up to a minute.
            state.due = 0.0
            self._enqueue(state.key)


def subjects(view: View, plan: Plan, serving: KVServing, *, routed: bool) -> tuple[Subject, ...]:
    """Return what is verified of one object: the planned revision first, then those that are still there."""
    router = serving.spec.router
    planned = Subject(
        plan.revision,
        view.serving.generation,
        model=serving.spec.model.served_name,
        keys=plan.generated_secrets[0].name,
        api_key=router.api_key_secret_ref,
        interval=float(serving.spec.transfer.verify.interval.seconds),
        routed=routed,
        suspended=serving.spec.suspend,
    )
    former = {
        child.revision: child.workload.model
        for child in view.owned()
        if child.workload is not None and child.role == "prefill" and child.revision != plan.revision
    }
    return planned, *(
        replace(planned, revision=revision, model=former[revision] or planned.model) for revision in sorted(former)
    )


def _proof(state: _State, transfer: Transfer, *, fresh: bool) -> Proof:
    if fresh and transfer.status == "True":
        return Proof(Word.VERIFIED)
    if fresh and state.failures >= _FAILED_FOR_GOOD and transfer.status == "False":
        return Proof(Word.FAILED, f"{transfer.reason.value}: {transfer.message}")
    return UNPROVED


def _carried(view: View, revision: str) -> Transfer | None:
    """Return what the last operator process knew, where it holds for this revision."""
    status = view.serving.status
    if (status.get("updatingRevision") or status.get("revision")) != revision:
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "TransferVerified" and condition.get("status") in ("True", "False"):
            try:
                return Transfer(condition["status"], Reason(condition["reason"]), condition["message"])
            except ValueError:
                return None
    return None


def endpoint(pod: PodState) -> Endpoint:
    """Return where an engine or router answers."""
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    return Endpoint(pod.name, pod.role, f"http://{host}:{pod.http}")  # type: ignore[arg-type]

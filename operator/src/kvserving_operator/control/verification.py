"""Transfer verification by the operator: probes to pod addresses and through the router, and the engines' counters.

A result holds for one revision and one set of pods (by UID); another set is probed at once, the
same one again after ``spec.transfer.verify.interval``. Between probes the decodes' counters are
watched, so that a service whose decodes recompute says so within a minute. Probing runs beside
reconciliation, which only asks what is known.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from ..api.v1alpha1 import KVServing
from ..plan.types import Plan
from ..reasons import Reason
from ..verify import mark
from ..verify.counters import Counters
from ..verify.legs import Caller, Endpoint
from ..verify.run import Verification, verify
from .conditions import Transfer
from .failures import ApiFailure, describe
from .logs import about
from .observe import Key, View
from .pods import PodState
from .recompute import Judgement, judge

log = logging.getLogger(__name__)

_AT_ONCE = 16
_COUNTERS_AT_ONCE = 64
_COUNTERS_TIMEOUT = 5.0
_PROBE_TIMEOUT = 60.0
_FIRST_RETRY = 5.0
_LONGEST_RETRY = 60.0
_API_KEY = "api-key"

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
class Standing:
    """What is known now, and in how many seconds it should be asked again."""

    transfer: Transfer
    again: float | None = None


@dataclass
class _State:
    peers: Peers | None = None
    result: Transfer | None = None
    revision: str = ""
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
        self._states: dict[str, _State] = {}
        self._keys: dict[str, Key] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def ask(self, view: View, plan: Plan, serving: KVServing, *, routed: bool) -> Standing:
        """Return what is known about the transfer of one object, and start a probe where one is due."""
        uid = view.serving.uid
        state = self._states.setdefault(uid, _State())
        self._keys[uid] = view.serving.key
        if serving.spec.suspend:
            return Standing(Transfer("Unknown", Reason.SUSPENDED, "nothing runs that could transfer"))
        peers = peers_of(view, plan.revision, routed=routed)
        state.peers = peers
        if peers is None:
            return Standing(Transfer("Unknown", Reason.STARTING, "no ready pod of every role to probe"))
        changed = state.probed != peers.processes or state.revision != plan.revision
        if state.task is None and (changed or self._now() >= state.due):
            work = self._run(view.serving.key, state, peers, plan, serving)
            state.task = asyncio.create_task(work, name=f"verify {view.serving.key}")
        return Standing(self._known(state, view, plan), max(0.1, state.due - self._now()) if not changed else None)

    def forget(self, uid: str) -> None:
        """Drop everything about one object and stop its probe."""
        state = self._states.pop(uid, None)
        self._keys.pop(uid, None)
        if state is not None and state.task is not None:
            state.task.cancel()

    async def watch_counters(self, interval: float) -> None:
        """Look at the counters of all decodes every ``interval`` seconds, for ever."""
        async with aiohttp.ClientSession() as session:
            caller = Caller(session, _COUNTERS_TIMEOUT)
            limit = asyncio.Semaphore(_COUNTERS_AT_ONCE)
            while True:
                await asyncio.sleep(interval * random.uniform(0.9, 1.1))  # noqa: S311 - spreads load, no secret
                looks = [self._look(uid, state, caller, limit) for uid, state in list(self._states.items())]
                await asyncio.gather(*looks)

    async def close(self) -> None:
        """Stop all probes."""
        for uid in list(self._states):
            self.forget(uid)

    def _known(self, state: _State, view: View, plan: Plan) -> Transfer:
        if state.recompute.recomputing:
            return Transfer("False", Reason.RECOMPUTING_KV, state.recompute.message)
        if state.result is not None and state.revision == plan.revision:
            return state.result
        return _carried(view, plan) or Transfer("Unknown", Reason.VERIFYING, "a probe is on its way")

    async def _run(self, key: Key, state: _State, peers: Peers, plan: Plan, serving: KVServing) -> None:
        with about(key):
            try:
                async with self._limit:
                    transfer = await self._verify(key, peers, plan, serving)
            finally:
                state.task = None
            before = state.result
            state.result, state.revision, state.probed = transfer, peers.revision, peers.processes
            ok = transfer.status == "True"
            state.failures = 0 if ok else state.failures + 1
            interval = float(serving.spec.transfer.verify.interval.seconds)
            retry = min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(state.failures - 1, 8))
            state.due = self._now() + (interval if ok else min(interval, retry))
            self._counted(transfer.reason.value)
            if before is None or before.status != transfer.status or before.reason != transfer.reason:
                level = logging.INFO if ok else logging.WARNING
                log.log(level, "transfer %s: %s", transfer.reason.value, transfer.message)
            self._enqueue(key)

    async def _verify(self, key: Key, peers: Peers, plan: Plan, serving: KVServing) -> Transfer:
        try:
            secret = await self._read_secret(key.namespace, plan.generated_secrets[0].name) or {}
            keys = mark.keys_of(secret.get("signing", ""))
            api_key = None
            if serving.spec.router.api_key_secret_ref is not None and peers.router is not None:
                found = await self._read_secret(key.namespace, serving.spec.router.api_key_secret_ref) or {}
                if not found.get(_API_KEY, "").strip():
                    name = serving.spec.router.api_key_secret_ref
                    lacks = f"has an empty {_API_KEY}" if _API_KEY in found else f"has no key {_API_KEY}"
                    message = f"Secret {name} (spec.router.apiKeySecretRef) {lacks}: create it"
                    return Transfer("False", Reason.SECRET_MISSING, message)
                api_key = found[_API_KEY].strip()
        except ApiFailure as failure:
            return Transfer("Unknown", Reason.API_UNAVAILABLE, describe(failure))
        except ValueError:
            name = plan.generated_secrets[0].name
            return Transfer("False", Reason.SECRET_MISSING, f"Secret {name} holds no signing key yet")
        router = peers.router
        outcome = await self._probe(
            [_endpoint(pod) for pod in peers.engines],
            keys=keys,
            revision=peers.revision,
            model=served_model(serving),
            router=None if router is None else _endpoint(router),
            api_key=api_key,
            timeout=_PROBE_TIMEOUT,
        )
        return Transfer("True" if outcome.ok else "False", outcome.reason, outcome.message)

    async def _look(self, uid: str, state: _State, caller: Caller, limit: asyncio.Semaphore) -> None:
        if state.peers is None:
            return
        decodes = [pod for pod in state.peers.engines if pod.role == "decode"]

        async def read(pod: PodState) -> tuple[str, Any]:
            async with limit:
                return pod.uid, await caller.counters(_endpoint(pod))

        read_now = dict(await asyncio.gather(*(read(pod) for pod in decodes)))
        seen = {pod: found for pod, found in read_now.items() if isinstance(found, Counters)}
        names = {pod.uid: pod.name for pod in decodes}
        windows = {names[pod]: now.since(state.counters[pod]) for pod, now in seen.items() if pod in state.counters}
        state.counters = seen
        before, state.recompute = state.recompute, judge(windows)
        if before.recomputing != state.recompute.recomputing and (before.recomputing or state.recompute.recomputing):
            if state.recompute.recomputing:
                state.due = 0.0
            if uid in self._keys:
                self._enqueue(self._keys[uid])


def served_model(serving: KVServing) -> str:
    """Return the name under which the model is served."""
    model = serving.spec.model
    return model.name or model.uri.rstrip("/").rsplit("/", 1)[-1]


def _carried(view: View, plan: Plan) -> Transfer | None:
    """Return what the last operator process knew, where it holds for this revision."""
    status = view.serving.status
    if status.get("revision") != plan.revision:
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "TransferVerified" and condition.get("status") in ("True", "False"):
            try:
                return Transfer(condition["status"], Reason(condition["reason"]), condition["message"])
            except ValueError:
                return None
    return None


def _endpoint(pod: PodState) -> Endpoint:
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    return Endpoint(pod.name, pod.role, f"http://{host}:{pod.http}")  # type: ignore[arg-type]

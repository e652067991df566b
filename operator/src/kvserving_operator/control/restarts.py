"""Engines that stand still or can no longer transfer are found and replaced, one at a time.

Found from their metrics, which are read here, and from verifications, which are overheard. Only pods that are ready are
looked at: what answers nothing is NotReady within seconds, and the kubelet's liveness probe ends it. A pod is replaced
by deleting it, if it still is the process that was judged and belongs to a Deployment of the object. What was restarted
is remembered by this process alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ..plan.engine import DEAD_GRACE_SECONDS
from ..reasons import Reason
from ..recovery import hung, pairs, policy
from ..recovery.findings import Finding
from ..recovery.hung import Limits, Watched
from ..recovery.policy import Engine, Rate, Restart
from ..verify.activity import Activity
from ..verify.legs import Caller, Endpoint
from ..verify.run import Verification
from .events import Event, EventKind, Recorder
from .failures import ApiFailure, Problem, describe
from .kube import Json, Kube
from .logs import about
from .observe import Key, Store, View
from .owners import controller_of
from .pauses import spread
from .permissions import PODS
from .pods import PodState
from .verification import Probe, endpoint

log = logging.getLogger(__name__)

_AT_ONCE = 64
_TIMEOUT = 5.0
_REMEMBERED = 100
_ROLES = ("prefill", "decode")
# Nothing in an engine that hangs can finish, and it would hold its pod for the whole grace period.
_GRACE: Mapping[Reason, int] = {Reason.ENGINE_HUNG: DEAD_GRACE_SECONDS}


Problems = Mapping[tuple[str, str], Problem]
"""Problems by kind and name."""


@dataclass
class _State:
    watched: dict[str, Watched] = field(default_factory=dict)
    records: pairs.Records = pairs.EMPTY
    history: list[Restart] = field(default_factory=list)
    problems: Problems = field(default_factory=dict)


class Restarts:
    """Looks after the engines of all objects. ``now`` is a monotonic clock.

    ``enqueue`` is called when the ``problems`` of an object changed, ``counted`` with the reason of each replacement.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        recorder: Recorder,
        enqueue: Callable[[Key], None],
        counted: Callable[[str], None],
        now: Callable[[], float],
        *,
        limits: Limits = hung.LIMITS,
        rate: Rate = policy.RATE,
    ) -> None:
        self._kube = kube
        self._store = store
        self._recorder = recorder
        self._enqueue = enqueue
        self._counted = counted
        self._now = now
        self._limits = limits
        self._rate = rate
        self._states: dict[str, _State] = {}

    def problems(self, uid: str) -> Problems:
        """Return what is wrong with an engine of one object although it is ready, and what is done about it.

        Keyed as problems of children are, by kind and name: at most one pod.
        """
        state = self._states.get(uid)
        return state.problems if state is not None else {}

    def replaced(self, uid: str) -> frozenset[str]:
        """Return the UIDs of the pods of one object that were deleted here."""
        state = self._states.get(uid)
        return frozenset(restart.uid for restart in state.history) if state is not None else frozenset()

    def overhear(self, probe: Probe) -> Probe:
        """Return ``probe``, of whose outcomes this takes note."""

        async def overheard(
            engines: Sequence[Endpoint],
            *,
            keys: tuple[bytes, ...],
            revision: str,
            model: str,
            router: Endpoint | None,
            api_key: str | None,
            timeout: float,
        ) -> Verification:
            before = self._located(engines)
            outcome = await probe(
                engines, keys=keys, revision=revision, model=model, router=router, api_key=api_key, timeout=timeout
            )
            # An engine that was started anew meanwhile has been proved neither right nor wrong.
            if before is not None and before == self._located(engines):
                self._hear(*before, outcome)
            return outcome

        return overheard

    async def watch(self, interval: float) -> None:
        """Look at all engines every ``interval`` seconds, for ever. Raises ``MayNotWrite``."""
        async with aiohttp.ClientSession() as session:
            caller = Caller(session, _TIMEOUT)
            while True:
                await asyncio.sleep(spread(interval))
                await self.look(caller)

    async def look(self, caller: Caller) -> None:
        """Look at all engines once, and replace what must be. Raises ``MayNotWrite``."""
        limit = asyncio.Semaphore(_AT_ONCE)
        views = list(self._views())
        present = {view.serving.uid for view in views if not view.serving.deleting}
        for uid in set(self._states) - present:
            del self._states[uid]
        await asyncio.gather(*(self._look(view, caller, limit) for view in views if view.serving.uid in present))

    async def _look(self, view: View, caller: Caller, limit: asyncio.Semaphore) -> None:
        state = self._states.setdefault(view.serving.uid, _State())
        asked = [pod for pod in view.pods if pod.role in _ROLES and pod.serving]
        if view.serving.spec.get("suspend"):
            asked = []

        async def read(pod: PodState) -> tuple[PodState, float, object]:
            async with limit:
                return pod, self._now(), await caller.activity(endpoint(pod))

        watched = {_process(pod): state.watched.get(_process(pod), Watched()) for pod in asked}
        for pod, at, found in await asyncio.gather(*map(read, asked)):
            if isinstance(found, Activity):
                known = watched[_process(pod)]
                watched[_process(pod)] = hung.observe(
                    known, at, found, prefill=pod.role == "prefill", limits=self._limits
                )
        state.watched = watched
        key, uid = view.serving.key, view.serving.uid
        now = self._store.view(key)
        if now is None or now.serving.uid != uid:
            return
        engines = [pod for pod in now.pods if pod.role in _ROLES]
        state.records = pairs.retain(state.records, {_process(pod) for pod in engines})
        with about(key):
            found = await self._settle(now, state, engines)
            if found != state.problems:
                for (_, name), problem in found.items():
                    log.warning("%s: pod %s: %s", problem.reason.value, name, problem.message)
                state.problems = found
                self._enqueue(key)

    async def _settle(self, view: View, state: _State, engines: Sequence[PodState]) -> Problems:
        """Replace an engine where one is to be; return what is to be said."""
        serving = [pod for pod in engines if pod.serving and _process(pod) in state.watched]
        known = [Engine(pod.name, pod.uid, pod.role, pod.revision, pod.serving) for pod in engines]
        now = self._now()
        decision = policy.decide(self._findings(view, state, serving), known, state.history, now, self._rate)
        if decision.finding is None:
            going = policy.under_way(known, state.history, now, self._rate)
            return state.problems if going is not None else {}
        pod = next(pod for pod in serving if pod.name == decision.finding.pod)
        if decision.engine is None:
            done: str | None = f"it is not replaced: {decision.why}"
        else:
            done = await self._replace(view, state, pod, decision.finding)
        if done is None:
            return {}
        message = f"this {pod.role} engine {decision.finding.sentence}; {done}"
        return {("Pod", pod.name): Problem(decision.finding.reason, message, again=False)}

    def _findings(self, view: View, state: _State, serving: Sequence[PodState]) -> list[Finding]:
        found = [hung.judge(pod.name, state.watched[_process(pod)], self._limits) for pod in serving]
        names = {role: {_process(pod): pod.name for pod in serving if pod.role == role} for role in _ROLES}
        recomputes = (view.serving.spec.get("transfer") or {}).get("onFailure") == "recompute"
        stale = pairs.judge(state.records, names["prefill"], names["decode"], recomputes=recomputes)
        hanging = [finding for finding in found if finding is not None]
        # Transfers with an engine that hangs fail because of that.
        return hanging or list(stale)

    async def _replace(self, view: View, state: _State, pod: PodState, finding: Finding) -> str | None:
        """Delete a pod; return what came of it, ``None`` where it is no longer the one that was judged."""
        reason, key = finding.reason, view.serving.key
        try:
            body = await self._kube.get(PODS, key.namespace, pod.name)
            if body is None or not _is_still(body, pod):
                return None
            if not _is_made_anew(body, pod.role, view):
                return "it is not replaced: no workload of this object would make another"
            grace, version = _GRACE.get(reason), body["metadata"]["resourceVersion"]
            await self._kube.delete(PODS, key.namespace, pod.name, uid=pod.uid, version=version, grace=grace)
        except ApiFailure as failure:
            # It went, or another process runs in it: the next look judges what is there then.
            gone = failure.missing or failure.status == 409
            return None if gone else f"it could not be replaced: {describe(failure)}"
        state.history.append(Restart(self._now(), pod.name, pod.uid, pod.role, pod.revision, reason))
        del state.history[:-_REMEMBERED]
        self._counted(reason.value)
        message = f"{reason.value}: pod {pod.name}: this {pod.role} engine {finding.sentence}"
        await self._recorder.send(view.serving, [Event(EventKind.ENGINE_REPLACED, message)])
        return "the operator replaces it"

    def _views(self) -> Iterator[View]:
        return (view for key in self._store.keys if (view := self._store.view(key)) is not None)

    def _located(self, engines: Sequence[Endpoint]) -> tuple[str, Mapping[str, str]] | None:
        """Return the UID of the object that these engines belong to, and their processes by pod."""
        wanted = {(engine.pod, engine.url) for engine in engines}
        for view in self._views():
            found = {pod.name: _process(pod) for pod in view.pods if (pod.name, endpoint(pod).url) in wanted}
            if wanted and len(found) == len(wanted):
                return view.serving.uid, found
        return None

    def _hear(self, uid: str, processes: Mapping[str, str], outcome: Verification) -> None:
        outcomes = [
            pairs.Outcome(
                (processes[pair.prefill], processes[pair.decode]),
                Reason.VERIFIED if pair.verdict.cause is None else pair.verdict.cause.reason,
            )
            for pair in outcome.pairs
        ]
        state = self._states.setdefault(uid, _State())
        state.records = pairs.hear(state.records, outcomes, self._now())


def _process(pod: PodState) -> str:
    """What stands for a pod's present process: what was seen of one says nothing of the next."""
    return f"{pod.uid}/{pod.restarts}"


def _is_still(body: Json, pod: PodState) -> bool:
    """Whether a live pod is the very process that was judged."""
    metadata, status = body["metadata"], body.get("status") or {}
    restarts = sum(container.get("restartCount") or 0 for container in status.get("containerStatuses") or ())
    return metadata["uid"] == pod.uid and "deletionTimestamp" not in metadata and restarts == pod.restarts


def _is_made_anew(body: Mapping[str, Any], role: str, view: View) -> bool:
    """Whether a workload of this object has made a pod, by the pod's controller: a label alone anyone may set.

    That is the ReplicaSet of a Deployment, or the StatefulSet of the leaders of a LeaderWorkerSet.
    """
    owner = controller_of(body["metadata"])
    template = (body["metadata"].get("labels") or {}).get("pod-template-hash", "")
    makers = {"Deployment": ("ReplicaSet", f"-{template}"), "LeaderWorkerSet": ("StatefulSet", "")}
    return owner is not None and any(
        child.role == role and (owner.kind, owner.name) == (kind, child.name + ending)
        for child in view.owned()
        for kind, ending in (makers.get(child.kind, ("", "")),)
    )

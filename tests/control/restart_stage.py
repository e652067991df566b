"""Engines in memory whose metrics and transfers are as a test says, before the code that replaces them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.control.bodies import KEY, SPEC, children, pod, stored
from tests.control.fake_api import FakeApi

from kvserving_operator.control.events import Recorder
from kvserving_operator.control.observe import Key, Store
from kvserving_operator.control.pods import PodState
from kvserving_operator.control.restarts import Restarts
from kvserving_operator.plan.workloads import ENGINES
from kvserving_operator.reasons import Reason
from kvserving_operator.verify.activity import Activity, Core
from kvserving_operator.verify.legs import Endpoint, Failure
from kvserving_operator.verify.proof import Cause, Verdict
from kvserving_operator.verify.run import PairResult, Verification

EVERY = 10.0
IDLE = Activity({"0": Core(deferred=0)}, 0)
STUCK = Activity({"0": Core(waiting=2, deferred=0)}, 2)
SAYS = "has requests waiting, none running, and computed nothing for 60 s"


class Stage:
    """One object with engines that show what ``shows`` says; a deleted pod is gone at once."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.now = 1000.0
        self.api = FakeApi()
        self.told: list[Key] = []
        self.counted: list[str] = []
        self.shows: dict[str, Activity | Failure] = {}
        self.asked: list[str] = []
        self.serving = stored({**SPEC, **(spec or {})})
        self.store = Store(lambda _: None)
        self.store.put_serving(self.serving)
        self.deployments = {}
        for child in children(self.serving).values():
            if child.kind in ENGINES:
                self.store.put_child(KEY, child)
                self.deployments[child.role] = child
        recorder = Recorder(self.api, "me", lambda _: None)  # type: ignore[arg-type]
        self.restarts = Restarts(
            self.api,  # type: ignore[arg-type]
            self.store,
            recorder,
            self.told.append,
            self.counted.append,
            lambda: self.now,
        )
        self.verdicts: dict[tuple[str, str], Cause | None] = {}

    def add(self, name: str, role: str, *, owner: str | None = None, **how: Any) -> PodState:
        """A pod of the role's Deployment, in the cluster and in the store."""
        deployment = self.deployments[role]
        made = pod(name, role, deployment.revision, **how)
        kind, _, owner_name = (owner or f"ReplicaSet/{deployment.name}-abc").partition("/")
        body = {
            "metadata": {
                "namespace": KEY.namespace,
                "name": name,
                "uid": made.uid,
                "labels": {"pod-template-hash": "abc"},
                "ownerReferences": [{"kind": kind, "name": owner_name, "uid": "rs", "controller": True}],
            },
            "status": {"containerStatuses": [{"restartCount": made.restarts}]},
        }
        self.store.put_pod(KEY, made)
        self.api.put("Pod", body)
        self.shows.setdefault(name, IDLE)
        return made

    def pair(self) -> Stage:
        self.add("p", "prefill")
        self.add("d", "decode")
        return self

    async def activity(self, endpoint: Endpoint) -> Activity | Failure:
        """Stand in for ``Caller.activity``."""
        self.asked.append(endpoint.pod)
        return self.shows[endpoint.pod]

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.restarts.look(self)  # type: ignore[arg-type]
            self.now += EVERY

    async def verify(self, times: int = 1) -> None:
        """Verifications of the pairs in ``verdicts``, 50 s apart."""

        async def probe(engines: Any, **how: Any) -> Verification:
            pairs = (PairResult(*pair, Verdict("so it is", cause)) for pair, cause in self.verdicts.items())
            return Verification(how["revision"], 0.0, tuple(pairs))

        known = self.store.view(KEY)
        assert known is not None
        engines = [Endpoint(p.name, p.role, f"http://{p.address}:{p.http}") for p in known.pods]  # type: ignore[arg-type]
        for _ in range(times):
            heard = self.restarts.overhear(probe)
            await heard(engines, keys=(), revision="r", model="m", router=None, api_key=None, timeout=1)
            await self.look(5)

    @property
    def deleted(self) -> list[str]:
        return [name for verb, kind, name in self.api.writes if (verb, kind) == ("delete", "Pod")]

    @property
    def events(self) -> list[str]:
        return [body["message"] for (kind, _, _), body in self.api.objects.items() if kind == "Event"]

    @property
    def trouble(self) -> tuple[Reason, str] | None:
        """Reason and message of the one problem, as ``Degraded`` shows it."""
        found = [(p.reason, f"{kind} {name}: {p.message}") for (kind, name), p in self._problems]
        assert len(found) < 2
        return found[0] if found else None

    @property
    def _problems(self) -> Any:
        return self.restarts.problems(self.serving.uid).items()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))

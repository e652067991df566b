"""A cluster in memory for rollouts: the reconciler before a fake apiserver, and workloads that make pods."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.control.bodies import KEY, SPEC
from tests.control.fake_api import FakeApi

from kvserving_operator.control.apply import Applier
from kvserving_operator.control.events import Recorder
from kvserving_operator.control.observe import Store, child_of, serving_of
from kvserving_operator.control.permissions import CHILDREN
from kvserving_operator.control.pods import pod_state
from kvserving_operator.control.reconcile import Reconciler
from kvserving_operator.control.secrets import SecretKeeper
from kvserving_operator.control.verification import Verifications
from kvserving_operator.plan.types import CLUSTER
from kvserving_operator.plan.workloads import ENGINES, pod_template
from kvserving_operator.verify.proof import Cause, Verdict
from kvserving_operator.verify.run import PairResult, Verification

LABEL = "kvserving.dev"
_HASH = "5c6f7d8b9"
Json = dict[str, Any]


@dataclass
class Pod:
    """One pod. It is ready after ``loads`` ticks, and stops ``drains`` ticks after it was told to, by ``leaves_by``."""

    body: Json
    owner: str
    template: str
    loads: int
    drains: int = -1
    leaves_by: str = ""

    @property
    def role(self) -> str:
        return str(self.body["metadata"]["labels"][f"{LABEL}/role"])

    @property
    def revision(self) -> str:
        return str(self.body["metadata"]["labels"][f"{LABEL}/revision"])

    @property
    def leaving(self) -> bool:
        return self.drains >= 0

    @property
    def ready(self) -> bool:
        return self.loads <= 0 and not self.leaving

    @property
    def behind(self) -> bool:
        return bool(self.body["metadata"]["labels"].get(f"{LABEL}/traffic") == "on")


@dataclass
class Stage:
    """One object. Pods that go have ``grace`` seconds. ``broken`` names revisions whose transfer fails, ``stuck`` those
    whose pods never get ready."""

    loads: int = 2
    drains: int = 2
    grace: float = 0
    spec: Json = field(default_factory=lambda: dict(SPEC))
    broken: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.api = FakeApi()
        self.pods: list[Pod] = []
        self.clock = self.looked = 1_000_000.0
        self.mixed: list[str] = []
        self._numbers = itertools.count(1)
        self._generation = 0
        self.restart()
        self.change(self.spec)

    def restart(self) -> None:
        """Another operator process takes over: it knows what the cluster has, and nothing else."""
        kube: Any = self.api
        until = self.looked
        self.store = Store(lambda _: None)
        for resource in CHILDREN:
            for (kind, _, _), body in self.api.objects.items():
                if kind == resource.kind and "ownerReferences" in body["metadata"]:
                    self.store.put_child(KEY, child_of(body, resource.api_version, kind))
        for (kind, _, _), body in self.api.objects.items():
            if kind == "KVServing":
                self.store.put_serving(serving_of(body))
        secrets = SecretKeeper(kube, lambda: self.clock)
        self.verifications = Verifications(
            self._secret, lambda _: None, lambda _: None, lambda: self.clock, probe=self._probe
        )
        self.applier = Applier(kube, self.store)
        self.reconciler = Reconciler(
            kube,
            self.store,
            self.applier,
            secrets,
            self.verifications,
            Recorder(kube, "test", lambda _: None),
            CLUSTER,
            wall=lambda: datetime.fromtimestamp(self.clock, UTC),
            watched_until=lambda: until,
        )
        for pod in self.pods:
            self.tell(pod)

    def change(self, spec: Json) -> None:
        """The user applies ``spec``."""
        self._generation += 1
        self.spec = spec
        known = self.api.objects.get(("KVServing", "prod", "qwen"), {})
        metadata = {"namespace": "prod", "name": "qwen", "uid": "u1", "generation": self._generation}
        body = self.api.put("KVServing", {**known, "metadata": metadata, "spec": spec})
        self.store.put_serving(serving_of(body))

    def workload_labels(self) -> dict[str, Json]:
        """The labels of what makes engines and routers, by name."""
        return {body["metadata"]["name"]: body["metadata"]["labels"] for _, body in self._workloads()}

    def relabel(self, role: str, label: str, value: str | None, *, former: bool = False) -> None:
        """Someone edits a label of what makes the pods of a role: of the oldest revision, or of the newest."""
        bodies = [body for _, body in self._workloads() if _labels(body["spec"])[f"{LABEL}/role"] == role]
        bodies.sort(key=lambda body: str(body["metadata"]["creationTimestamp"]), reverse=not former)
        body = copy.deepcopy(bodies[0])
        body["metadata"]["labels"][f"{LABEL}/{label}"] = value
        for entry in body["metadata"]["managedFields"]:
            entry["fieldsV1"]["f:metadata"]["f:labels"].pop(f"f:{LABEL}/{label}", None)
        changed = self.api.put(body["kind"], body)
        self.store.put_child(KEY, child_of(changed, changed["apiVersion"], changed["kind"]))

    def put_aside(self, role: str) -> None:
        """Someone takes a pod out of its set by a label, as to look into it: its workload makes another one."""
        pod = next(pod for pod in self.pods if pod.role == role)
        pod.body = copy.deepcopy(pod.body)
        pod.body["metadata"]["labels"][f"{LABEL}/revision"] = "debug"
        del pod.body["metadata"]["ownerReferences"]
        pod.owner = ""
        self.tell(pod)

    async def tick(self, seconds: float = 5.0) -> None:
        """The operator looks once, its probes end, and the cluster goes one step on."""
        self.clock += seconds
        self.looked = self.clock
        await self.reconciler.run(KEY)
        for _ in range(10):
            await asyncio.sleep(0)
        for kind, body in self._workloads():
            if kind == "Deployment":
                self._control(body)
            else:
                self._group(body)
        self._live()
        alive = {body["metadata"]["name"] for _, body in self._workloads()}
        for pod in self.pods:
            if pod.owner and pod.owner not in alive and not pod.leaving:
                self._stop(pod)

    @property
    def status(self) -> Json:
        return dict(self.api.objects["KVServing", "prod", "qwen"]["status"])

    @property
    def revisions(self) -> list[str]:
        """Revisions that have workloads."""
        return sorted({body["metadata"]["labels"][f"{LABEL}/revision"] for _, body in self._workloads()})

    def _workloads(self) -> list[tuple[str, Json]]:
        """What makes engines and routers, by kind."""
        return [(kind, body) for (kind, _, _), body in self.api.objects.items() if kind in ENGINES]

    def condition(self, name: str) -> tuple[str, str, str]:
        found = next(c for c in self.status["conditions"] if c["type"] == name)
        return found["status"], found["reason"], found["message"]

    def existing(self, role: str) -> int:
        """Pods of a role, those that stop included."""
        return sum(pod.role == role for pod in self.pods)

    def capacity(self, role: str) -> int:
        """Ready engines of a role that clients reach: in a set that is whole, through a router behind the Service."""
        selector = self.api.objects["Service", "prod", "qwen"]["spec"]["selector"]
        assert selector[f"{LABEL}/traffic"] == "on"
        ready = [pod for pod in self.pods if pod.ready]
        reached = {pod.revision for pod in ready if pod.role == "router" and pod.behind}
        whole = {r for r in reached if {"prefill", "decode"} <= {p.role for p in ready if p.revision == r}}
        return sum(pod.role == role and pod.revision in whole for pod in ready)

    def exposed(self) -> set[str]:
        """Revisions that clients reach."""
        return {pod.revision for pod in self.pods if pod.role == "router" and pod.ready and pod.behind}

    async def _secret(self, _: str, __: str) -> dict[str, str]:
        return {"signing": "0123456789abcdef"}

    async def _probe(self, engines: Any, *, revision: str, **_: Any) -> Verification:
        by_name = {pod.body["metadata"]["name"]: pod for pod in self.pods}
        self.mixed += [e.pod for e in engines if by_name[e.pod].revision != revision]
        verdict = Verdict("as the test wants it", Cause.RECOMPUTED if revision in self.broken else None)
        return Verification(revision, self.clock, (PairResult("p", "d", verdict),))

    def _control(self, body: Json) -> None:
        """What the Deployment controller does in one step."""
        name, spec = body["metadata"]["name"], body["spec"]
        template = json.dumps(spec["template"], sort_keys=True)
        mine = [pod for pod in self.pods if pod.owner == name and not pod.leaving]
        current = [pod for pod in mine if pod.template == template]
        former = [pod for pod in mine if pod.template != template]
        wanted = spec["replicas"]
        for _ in range(min(wanted - len(current), wanted + 1 - len(mine)) if former else wanted - len(current)):
            self._start(name, spec["template"], template)
        unready_first = sorted(current, key=lambda pod: (pod.ready, pod.body["metadata"]["name"]))
        for pod in unready_first[: max(0, len(current) - wanted)]:
            self._stop(pod)
        ready = sum(pod.ready for pod in mine)
        for pod in former:
            if wanted == 0 or not pod.ready or ready > wanted:
                ready -= pod.ready
                self._stop(pod)
        live = [pod for pod in self.pods if pod.owner == name and not pod.leaving]
        status = {
            "observedGeneration": body["metadata"].get("generation", 1),
            "replicas": len(live),
            "readyReplicas": sum(pod.ready for pod in live),
            "updatedReplicas": sum(pod.template == template for pod in live),
        }
        self._report("Deployment", body, status)

    def _group(self, body: Json) -> None:
        """What the controller of LeaderWorkerSets does in one step: the groups of the highest numbers go."""
        name, wanted = body["metadata"]["name"], body["spec"]["replicas"]
        parts = body["spec"]["leaderWorkerTemplate"]
        there = {pod.body["metadata"]["name"]: pod for pod in self.pods if pod.owner == name}
        for number in range(wanted):
            group = f"{name}-{number}"
            if not any(named == group or named.startswith(f"{group}-") for named in there):
                self._start(name, parts["leaderTemplate"], "", group)
                for worker in range(1, parts["size"]):
                    self._start(name, parts["workerTemplate"], "", f"{group}-{worker}")
        for named, pod in there.items():
            if int(named.removeprefix(f"{name}-").partition("-")[0]) >= wanted and not pod.leaving:
                self._stop(pod)
        leaders = [p for p in self.pods if p.owner == name and not p.leaving and not p.role.endswith("-worker")]
        counts = {"replicas": len(leaders), "updatedReplicas": len(leaders)}
        available = [{"type": "Available", "status": "True"}]
        self._report(
            "LeaderWorkerSet", body, {**counts, "readyReplicas": sum(p.ready for p in leaders), "conditions": available}
        )

    def _report(self, kind: str, body: Json, status: Json) -> None:
        metadata = {**body["metadata"], "creationTimestamp": body["metadata"].get("creationTimestamp") or self._now()}
        changed = self.api.put(kind, {**body, "metadata": metadata, "status": status})
        self.store.put_child(KEY, child_of(changed, changed["apiVersion"], kind))

    def _now(self, later: float = 0) -> str:
        return datetime.fromtimestamp(self.clock + later, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _start(self, owner: str, template: Json, digest: str, name: str = "") -> None:
        name = name or f"{owner}-{next(self._numbers):04}"
        metadata = {**template["metadata"], "name": name, "namespace": "prod", "uid": f"uid-{next(self._numbers)}"}
        # Deployments make ReplicaSets, groups StatefulSets: one of all leaders, and one for the workers of each.
        leads = name.removeprefix(f"{owner}-").isdecimal()
        maker = f"{owner}-{_HASH}" if digest else owner if leads else name.rpartition("-")[0]
        metadata["ownerReferences"] = [
            {
                "kind": "ReplicaSet" if digest else "StatefulSet",
                "name": maker,
                "uid": f"uid-{maker}",
                "controller": True,
            }
        ]
        router = template["metadata"]["labels"][f"{LABEL}/role"] == "router"
        body = {"metadata": metadata, "spec": template["spec"]}
        pod = Pod(body, owner, digest, loads=1 if router else self.loads)
        self.pods.append(pod)
        self.tell(pod)

    def _stop(self, pod: Pod) -> None:
        pod.drains, pod.leaves_by = self.drains, self._now(self.grace)
        self.tell(pod)

    def _live(self) -> None:
        """A tick of the kubelet."""
        for pod in list(self.pods):
            if pod.leaving:
                pod.drains -= 1
                if pod.drains < 0:
                    self.pods.remove(pod)
                    metadata, version = pod.body["metadata"], str(next(self._numbers))
                    self.store.remove_pod(KEY, metadata["name"], metadata["uid"], version)
            elif pod.loads > 0 and pod.revision not in self.stuck:
                pod.loads -= 1
                self.tell(pod)

    def tell(self, pod: Pod) -> None:
        metadata = {**pod.body["metadata"], "resourceVersion": str(next(self._numbers))}
        if pod.leaving:
            metadata["deletionTimestamp"] = pod.leaves_by
        conditions = [{"type": "Ready", "status": "True" if pod.ready else "False"}]
        status = {"podIP": "10.0.0.1", "conditions": conditions}
        self.store.put_pod(KEY, pod_state({**pod.body, "metadata": metadata, "status": status}))


def _labels(spec: Json) -> Json:
    """The labels of the pods that a workload makes."""
    found: Json = pod_template({"spec": spec})["metadata"]["labels"]
    return found

"""A rollout by the real operator and apiserver, recorded; its pods are a script's, and so are its probes."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.controlplane import build
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fixtures import CRDS
from e2e.controlplane.pod_script import Script, ready
from e2e.operator.objects import path_of, serving
from e2e.operator.running import Operator, operator_user
from e2e.operator.test_rollouts import is_ready
from e2e.operator.waiting import wait_for
from e2e.pictures.commands import Printed, run
from e2e.pictures.timeline import ROLES, Count, Moment, Rollout

from kvserving_operator.plan import labels
from kvserving_operator.plan.rollout_types import Verification

NAMESPACE = "prod"
NAME = "qwen"
PAIRS = 3
_START_SECONDS, _END_SECONDS = 6.0, 3.0
NOTE = (
    f"The real operator and apiserver; pods are stand-ins: an engine is ready {_START_SECONDS:g} s after its start "
    f"and takes {_END_SECONDS:g} s to end, and its probes succeed"
)


def record(folder: Path, programs: build.Programs) -> tuple[Rollout, Printed]:
    """Roll out another version of vLLM; return what happened, and what ``kvserving rollout status`` said of it."""
    verdict = folder / "verdict"
    verdict.write_text("ok")
    with ControlPlane(crds=CRDS, programs=programs) as plane:
        plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        operator = Operator(
            kubeconfig=plane.kubeconfig(operator_user(plane, NAMESPACE)),
            log=folder / "operator.log",
            own_namespace=NAMESPACE,
            arguments=(f"--namespace={NAMESPACE}",),
            env={"KVSERVING_TEST_PROBE": str(verdict), "KUBECONFIG": ""},
            stub=True,
        )
        capacity = {"nvidia.com/gpu": 64}
        with FakeKubelet(plane, namespace=NAMESPACE, capacity=capacity, default=ready(1)) as kubelet:
            kubelet.script(_engine)
            try:
                operator.start()
                return _roll_out(plane)
            finally:
                operator.end()


def _engine(pod: Json) -> Script | None:
    role = pod["metadata"]["labels"].get(labels.ROLE)
    return ready(_START_SECONDS, stop_after=_END_SECONDS) if role in ROLES else None


def _roll_out(plane: ControlPlane) -> tuple[Rollout, Printed]:
    pairs = {"replicas": PAIRS}
    obj = serving(NAMESPACE, NAME, engine={"version": "0.32.0"}, prefill=pairs, decode=pairs)
    plane.api.create(obj)
    old = wait_for(plane, obj, "Ready", timeout=90)["status"]["revision"]
    with Recorder(plane, NAMESPACE) as recorder:
        plane.api.merge(path_of(NAMESPACE, NAME), {"spec": {"engine": {"version": "0.33.0"}}})
        recorder.begin()
        printed = run("kvserving", "rollout", "status", NAME, "-n", NAMESPACE, kubeconfig=plane.kubeconfig())
        end = recorder.now()
    if printed.status != 0:
        raise RuntimeError(f"the rollout ended with {printed.status}:\n{printed.text}")
    new = plane.api.get(path_of(NAMESPACE, NAME))["status"]["revision"]
    return Rollout(old, new, PAIRS, tuple(recorder.moments), end), printed


class Recorder:
    """Follows the pods and the object of a namespace by watches, from ``__enter__`` to ``__exit__``.

    Times are seconds since ``begin``; what came before it is negative.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._api = plane.api
        self._paths = {
            f"/api/v1/namespaces/{namespace}/pods": self._see_pod,
            f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservings": self._see_object,
        }
        self._pods: dict[str, Json] = {}
        self._object: Json = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._zero = time.monotonic()
        self.moments: list[Moment] = []

    def __enter__(self) -> Self:
        threads = []
        for path, see in self._paths.items():
            listed = self._api.get(path)
            for item in listed["items"]:
                see("ADDED", item)
            version = listed["metadata"]["resourceVersion"]
            threads.append(threading.Thread(target=self._follow, args=(path, see, version)))
        self._threads = threads
        for thread in threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    def begin(self) -> None:
        """Count time from now on."""
        with self._lock:
            passed = self.now()
            self._zero += passed
            self.moments = [replace(moment, at=moment.at - passed) for moment in self.moments]

    def now(self) -> float:
        """Seconds since ``begin``."""
        return time.monotonic() - self._zero

    def _follow(self, path: str, see: Callable[[str, Json], None], version: str) -> None:
        try:
            while not self._over.is_set():
                # Short watches, so that it ends soon; each goes on where the last one ended.
                for event in self._api.watch(path, timeout=1, resourceVersion=version):
                    version = event["object"]["metadata"]["resourceVersion"]
                    see(event["type"], event["object"])
        except BaseException as error:
            self._errors.append(error)

    def _see_pod(self, kind: str, pod: Json) -> None:
        with self._lock:
            self._pods.pop(pod["metadata"]["uid"], None)
            if kind != "DELETED":
                self._pods[pod["metadata"]["uid"]] = pod
            self._note()

    def _see_object(self, _: str, obj: Json) -> None:
        with self._lock:
            self._object = obj
            self._note()

    def _note(self) -> None:
        moment = moment_of(self.now(), list(self._pods.values()), self._object)
        if not self.moments or moment != replace(self.moments[-1], at=moment.at):
            self.moments.append(moment)


def moment_of(at: float, pods: list[Json], obj: Json) -> Moment:
    """Return what pods and status of an object say."""
    found: dict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    routers: Counter[str] = Counter()
    for pod in pods:
        marks = pod["metadata"]["labels"]
        role, revision = marks[labels.ROLE], marks[labels.REVISION]
        found[revision, role][is_ready(pod)] += 1
        if role == "router" and marks.get(labels.TRAFFIC) == "on" and is_ready(pod):
            routers[revision] += 1
    status = obj.get("status") or {}
    sets = (status.get("rollout") or {}).get("sets") or ()
    return Moment(
        at=at,
        pods={which: Count(counted[True], counted.total()) for which, counted in found.items()},
        routers=dict(routers),
        proved=frozenset(known["revision"] for known in sets if known["verification"] == Verification.VERIFIED),
        conditions={condition["type"]: condition["status"] for condition in status.get("conditions") or ()},
    )

"""A stand-in for scheduler, node and kubelet: it binds pods, gives them addresses, and reports what a script says.

    with FakeKubelet(plane) as kubelet:
        kubelet.script({"kvserving.dev/role": "decode"}, never_ready())
        ...
        kubelet.crash(namespace, pod, exit_code=137)

It uses the apiserver as a kubelet does: a binding, patches of the status subresource with the pod's UID as a
precondition, and a delete with grace 0 once a deleted pod has ended. It is not asked by a fault proxy's rules, since
it talks to the apiserver itself. It cannot show what a real kubelet decides: probes, image pulls, mounts, evictions.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import aiohttp
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.loop_thread import LoopThread
from e2e.controlplane.loopback import Network
from e2e.controlplane.node_api import NodeApi
from e2e.controlplane.pod_script import (
    EVICTED,
    READY,
    RUNNING,
    ContainerState,
    Json,
    PodState,
    Runtime,
    Script,
    ScriptedRuntime,
    conditions,
    key_of,
    ready,
    status_of,
)

Choose = Callable[[Json], "Script | None"]


@dataclass
class _Pod:
    """What the kubelet knows of one pod. ``life`` is the task that runs it, ``end`` the one that removes it."""

    obj: Json
    placed: bool = False
    address: str | None = None
    status: Json = field(default_factory=dict)
    restarts: int = 0
    last_exit_code: int | None = None
    life: asyncio.Task[None] | None = None
    end: asyncio.Task[None] | None = None


class FakeKubelet:
    """Plays one node. Synchronous for its user: everything happens in a thread between ``__enter__`` and ``__exit__``.

    ``selector`` and ``namespace`` limit which pods it takes (all by default); no pod may fit two kubelets.
    ``capacity`` are extended resources of the node, such as ``{"nvidia.com/gpu": 4}``: pods that ask for more than is
    left stay Pending and are given a node when others end. ``network`` is where pod addresses come from, each used
    once; by default, a loopback network that no other kubelet of this machine has. ``runtime`` runs the pods: scripts
    by default. An error inside is raised by ``__exit__`` and ``check``.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        node: str = "node-0",
        selector: str = "",
        namespace: str | None = None,
        capacity: Mapping[str, int] | None = None,
        network: str | None = None,
        runtime: Runtime | None = None,
        default: Script | None = None,
    ) -> None:
        self.node = node
        self._cluster = cluster
        self._selector = selector
        self._path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
        self._capacity = dict(capacity or {})
        self._network = network
        self._runtime = runtime or ScriptedRuntime(self._script_of)
        self._default = default or ready()
        self._rules: list[Choose] = []
        self._pods: dict[str, _Pod] = {}
        self._errors: list[BaseException] = []
        self._changes = 0

    def __enter__(self) -> Self:
        self._own = Network() if self._network is None else None
        self._addresses = _addresses(self._own.name if self._own is not None else str(self._network))
        self._thread = LoopThread(f"fake-kubelet-{self.node}")
        try:
            self._thread.call(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._close())
        self._end()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the first error that happened inside, if any."""
        if self._errors:
            raise RuntimeError(f"the fake kubelet failed {len(self._errors)} times") from self._errors[0]

    def script(self, match: Mapping[str, str] | Choose, script: Script | None = None) -> None:
        """Use ``script`` for pods that carry the labels ``match``; the latest call that matches a pod holds.

        ``match`` may be a function from the pod to a script, or to ``None`` for pods that it does not concern.
        Pods that run already go on as they were; those that wait for a node are looked at again.
        """
        if callable(match):
            choose = match
        else:
            labels = dict(match)

            def choose(pod: Json) -> Script | None:
                have = pod["metadata"].get("labels") or {}
                return script if all(have.get(k) == v for k, v in labels.items()) else None

        self._thread.call(self._add_rule(choose))

    def crash(self, namespace: str, name: str, *, exit_code: int = 137) -> None:
        """End the containers of a running pod; they are restarted at once and go through their script again."""
        self._thread.call(self._restart(self._find(namespace, name), exit_code))

    def set_ready(self, namespace: str, name: str, is_ready: bool) -> None:
        """Make a running pod pass or fail its readiness probe from now on; its script ends."""
        pod = self._find(namespace, name)
        self._thread.call(self._override(pod, READY if is_ready else RUNNING))

    def set_state(self, namespace: str, name: str, state: PodState) -> None:
        """Report ``state`` for a pod from now on; its script ends."""
        self._thread.call(self._override(self._find(namespace, name), state))

    def evict(self, namespace: str, name: str) -> None:
        """Make a pod fail as evicted, as a node under memory pressure does."""
        self.set_state(namespace, name, EVICTED)

    def addresses(self) -> dict[str, str]:
        """Return the addresses in use, by ``namespace/name``."""
        return {key_of(p.obj): p.address for p in list(self._pods.values()) if p.address is not None}

    def _end(self) -> None:
        self._thread.stop()
        if self._own is not None:
            self._own.release()

    async def _start(self) -> None:
        context: ssl.SSLContext | None = None
        if self._cluster.server.startswith("https"):
            context = ssl.create_default_context(cafile=self._cluster.ca_file)
            if self._cluster.admin.cert_file:
                context.load_cert_chain(self._cluster.admin.cert_file, self._cluster.admin.key_file)
        self._changed = asyncio.Condition()
        self._api = NodeApi(self._cluster.server, context, self._cluster.admin.token)
        await self._register()
        version = await self._list()
        self._watcher = self._spawn(self._watch(version))

    async def _close(self) -> None:
        tasks = [self._watcher]
        tasks += [task for pod in self._pods.values() for task in (pod.life, pod.end) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runtime.close()
        await self._api.close()

    async def _register(self) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "10000", **{k: str(v) for k, v in self._capacity.items()}}
        labels = {"kubernetes.io/hostname": self.node, "kubernetes.io/os": "linux"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node, "labels": labels}}
        await self._api.apply(f"/api/v1/nodes/{self.node}", node)
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": conditions({}, ("Ready", True, "KubeletReady", "")),
        }
        await self._api.merge(f"/api/v1/nodes/{self.node}/status", {"status": status})
        # A new node carries the taint not-ready until its lifecycle controller, which is off here, takes it away.
        await self._api.merge(f"/api/v1/nodes/{self.node}", {"spec": {"taints": None}})

    async def _list(self) -> str:
        listed = await self._api.request("GET", self._path, query=self._query())
        present = {item["metadata"]["uid"] for item in listed["items"]}
        for uid in [uid for uid in self._pods if uid not in present]:
            await self._forget(uid)
        for item in listed["items"]:
            self._see(item)
        return str(listed["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        while True:
            try:
                async for event in self._api.watch(self._path, self._query() | {"resourceVersion": version}):
                    if event["type"] == "ERROR":
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        await self._forget(event["object"]["metadata"]["uid"])
                    elif event["type"] in {"ADDED", "MODIFIED"}:
                        self._see(event["object"])
            except aiohttp.ClientError:
                # The apiserver is down or was restarted: tests do that on purpose. The list below waits for it.
                pass
            version = await self._list()

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self._selector} if self._selector else {}

    def _see(self, obj: Json) -> None:
        metadata, spec = obj["metadata"], obj["spec"]
        if spec.get("nodeName") not in (None, self.node):
            return
        pod = self._pods.setdefault(metadata["uid"], _Pod(obj, status=dict(obj.get("status", {}))))
        pod.obj = obj
        pod.placed = pod.placed or spec.get("nodeName") == self.node
        if metadata.get("deletionTimestamp"):
            if pod.end is None:
                pod.end = self._spawn(self._remove(pod))
        elif pod.life is None and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            pod.life = self._spawn(self._live(pod))

    async def _live(self, pod: _Pod) -> None:
        if not pod.placed:
            await self._schedule(pod)
        if pod.address is None:
            pod.address = pod.status.get("podIP") or next(self._addresses)
        await self._runtime.run(pod.obj, pod.address, lambda state: self._report(pod, state))

    async def _schedule(self, pod: _Pod) -> None:
        refused: str | None = None
        while True:
            # Noted before looking: what changes while the refusal is being reported must be looked at again.
            looked_at = self._changes
            script = self._script_of(pod.obj)
            reason = script.unschedulable or self._short_of(pod)
            if reason is None:
                break
            if reason != refused:
                refused = reason
                pod.status["conditions"] = conditions(pod.status, ("PodScheduled", False, "Unschedulable", reason))
                await self._patch(pod, {"phase": "Pending", "conditions": pod.status["conditions"]})
            async with self._changed:
                while self._changes == looked_at:
                    await self._changed.wait()
        # Counted as placed before the binding is sent, or two pods could take the same device.
        pod.placed = True
        await asyncio.sleep(script.schedule_after)
        metadata = pod.obj["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node},
        }
        await self._api.request("POST", f"{_path(pod.obj)}/binding", binding, gone_is_fine=True)

    def _short_of(self, pod: _Pod) -> str | None:
        asked = _extended(pod.obj)
        for name, count in asked.items():
            used = sum(
                _extended(other.obj).get(name, 0)
                for other in self._pods.values()
                if other is not pod and other.placed and other.status.get("phase") not in ("Succeeded", "Failed")
            )
            if used + count > self._capacity.get(name, 0):
                return f"0/1 nodes are available: 1 Insufficient {name}."
        return None

    async def _report(self, pod: _Pod, state: PodState) -> None:
        if pod.restarts or pod.last_exit_code is not None:
            state = replace(state, container=_counted(state.container, pod))
            state = replace(state, containers={k: _counted(v, pod) for k, v in state.containers.items()})
        assert pod.address is not None
        pod.status = status_of(pod.obj, state, address=pod.address, before=pod.status)
        await self._patch(pod, pod.status)
        if state.phase in ("Succeeded", "Failed"):
            await self._notify()

    async def _patch(self, pod: _Pod, status: Json) -> None:
        body = {"metadata": {"uid": pod.obj["metadata"]["uid"]}, "status": status}
        await self._api.merge(f"{_path(pod.obj)}/status", body, gone_is_fine=True)

    async def _restart(self, pod: _Pod, exit_code: int) -> None:
        await self._end_life(pod)
        pod.restarts += 1
        pod.last_exit_code = exit_code
        pod.life = self._spawn(self._live(pod))

    async def _override(self, pod: _Pod, state: PodState) -> None:
        await self._end_life(pod)
        await self._report(pod, state)

    async def _end_life(self, pod: _Pod) -> None:
        if pod.life is not None:
            pod.life.cancel()
            await asyncio.gather(pod.life, return_exceptions=True)

    async def _remove(self, pod: _Pod) -> None:
        metadata = pod.obj["metadata"]
        grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
        try:
            async with asyncio.timeout(grace):
                await self._runtime.stop(pod.obj)
        except TimeoutError:
            # Its grace is over: killed, as a kubelet does.
            pass
        await self._end_life(pod)
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": metadata["uid"]},
        }
        await self._api.request("DELETE", _path(pod.obj), options, gone_is_fine=True)

    async def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            await self._end_life(pod)
            await self._notify()

    async def _add_rule(self, choose: Choose) -> None:
        self._rules.insert(0, choose)
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _script_of(self, pod: Json) -> Script:
        return next((script for rule in self._rules if (script := rule(pod)) is not None), self._default)

    def _find(self, namespace: str, name: str) -> _Pod:
        for pod in list(self._pods.values()):
            if key_of(pod.obj) == f"{namespace}/{name}" and pod.address is not None:
                return pod
        raise LookupError(f"no pod {namespace}/{name} runs on {self.node}")

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)

        def note(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._errors.append(error)

        task.add_done_callback(note)
        return task


def _counted(state: ContainerState, pod: _Pod) -> ContainerState:
    last = state.last_exit_code if state.last_exit_code is not None else pod.last_exit_code
    return replace(state, restarts=state.restarts + pod.restarts, last_exit_code=last)


def _extended(pod: Json) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if "/" in name:
                found[name] = found.get(name, 0) + int(amount)
    return found


def _addresses(network: str) -> Iterator[str]:
    return (str(address) for address in ipaddress.ip_network(network).hosts())


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

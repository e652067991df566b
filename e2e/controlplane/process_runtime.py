"""Pods as real processes: what a node runs, by the executor's code, for ``FakeKubelet``.

    runtime = ProcessRuntime(plane, engine_python=python, folder=tmp_path)
    with FakeKubelet(plane, runtime=runtime, network=runtime.network) as kubelet:
        ...

The pods are those of an object with ``spec.engine.device: cpu``. Of each, the container ``engine`` or ``router`` runs,
with its command, environment, volumes, probes, preStop hook and grace, at the pod's own loopback address. Secrets and
ConfigMaps come from the apiserver into folders of their own, readable by the owner alone. A pod with a service account
gets a token of it, in a kubeconfig that the environment variable KUBECONFIG names: the administrator's stays here.
Instead of the init container ``connector``, the repository's connector is linked.

Nothing outlives the kubelet, nor the interpreter that runs it. It cannot show what a container would: isolation,
limits of memory, a file system of its own, updates of mounted Secrets.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from e2e.controlplane.api import ApiError
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.pki import Credentials
from e2e.controlplane.pod_script import CREATING, ContainerState, Json, PodState, Report, key_of

from kvserving_operator.local import podrunner, scratch, volumes
from kvserving_operator.local.build import environment_of, pod_spec
from kvserving_operator.local.container import Placement
from kvserving_operator.local.errors import ManifestFault, NoSuchKey
from kvserving_operator.local.launchers import CONNECTOR_VOLUME, link_connector
from kvserving_operator.local.lifeline import Lifeline
from kvserving_operator.local.logfile import LogFile
from kvserving_operator.local.podrunner import PodRunner, PodSpec
from kvserving_operator.local.pods import MAIN_CONTAINERS, ROLE_LABEL, LocalPod
from kvserving_operator.local.restarting import RestartPolicy

_CONNECTOR = Path(__file__).parents[2] / "connector" / "src" / "kvserving_connector"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
_ASK_AGAIN = 1.0
_KILL_MARGIN = 5.0
FOR_EVER = RestartPolicy(attempts=None)
"""Restarts after 1 s, 2 s, 4 s … a minute: a kubelet's pauses are ten times as long."""
_TOKEN_SECONDS = 3600


@dataclass(frozen=True)
class _Running:
    runner: PodRunner
    task: asyncio.Task[None]


class ProcessRuntime:
    """A ``pod_script.Runtime`` whose containers are processes. One kubelet has it; ``folder`` is for its files alone.

    ``engine_python`` and ``router_python`` take the place of ``python3`` in the two kinds of container. Claims of
    volumes are folders below ``claims``. ``policy`` says how long the pauses between restarts are.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        folder: Path,
        engine_python: str,
        router_python: str = sys.executable,
        claims: Path | None = None,
        policy: RestartPolicy = FOR_EVER,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._interpreters = {"engine": engine_python, "router": router_python}
        self._claims = claims or folder / "claims"
        self._policy = policy
        self._instance = secrets.token_hex(8)
        self._lifeline: Lifeline | None = None
        self._temporary = ""
        self._ranks = 0
        self._dealing = threading.Lock()
        self._running: dict[str, _Running] = {}
        self.network = f"127.{128 + secrets.randbelow(126)}.{secrets.randbelow(256)}.0/24"
        """Addresses for the kubelet's pods: a random part of the loopback network, away from the executor's."""

    async def run(self, pod: Json, address: str, report: Report) -> None:
        """See ``Runtime``."""
        if self._lifeline is None:
            self._lifeline = Lifeline(self._instance)
            self._temporary = str(scratch.make(self._instance))
        await report(CREATING)
        spec = await self._prepared(pod, address, report)
        changed = asyncio.Event()
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        log = LogFile(self._folder / "logs" / f"{spec.pod.name}.log")
        runner = PodRunner(spec, log, changed.set, self._policy)
        task = asyncio.create_task(runner.run())
        self._running[key_of(pod)] = _Running(runner, task)
        try:
            await _follow(runner, task, changed, report)
        finally:
            runner.request_hurry()
            await asyncio.wait({task}, timeout=self._policy.hurry_grace + _KILL_MARGIN)
            task.cancel()
            await asyncio.wait({task})
            del self._running[key_of(pod)]

    async def stop(self, pod: Json) -> None:
        """See ``Runtime``: the preStop hook, SIGTERM, and SIGKILL when the pod's grace is over."""
        if (found := self._running.get(key_of(pod))) is not None:
            found.runner.request_stop()
            await asyncio.wait({found.task})

    async def close(self) -> None:
        """See ``Runtime``: end what pods have left."""
        if self._lifeline is not None:
            await self._lifeline.close()

    def pid(self, namespace: str, name: str) -> int:
        """Return the process of a pod's container; raise ``LookupError`` while there is none."""
        found = self._running.get(f"{namespace}/{name}")
        if found is None or (pid := found.runner.state.pid) is None:
            raise LookupError(f"pod {namespace}/{name} runs no process")
        return pid

    def volume(self, namespace: str, name: str, volume: str) -> Path:
        """Return the folder of a volume of a pod."""
        return self._folder / namespace / name / "volumes" / volume

    def tails(self, lines: int = 40) -> str:
        """Return the last lines of every pod's log."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted((self._folder / "logs").glob("*.log"))
        )

    async def _prepared(self, pod: Json, address: str, report: Report) -> PodSpec:
        """What to run, once the apiserver has all that the pod needs. As a kubelet, it asks again and says why."""
        while True:
            try:
                return await asyncio.to_thread(self._prepare, pod, address)
            except (ManifestFault, NoSuchKey) as fault:
                waiting = ContainerState(waiting="CreateContainerConfigError", message=str(fault))
                await report(PodState("Pending", waiting))
            except urllib3.exceptions.HTTPError:
                # The apiserver is down: the next attempt tells.
                pass
            await asyncio.sleep(_ASK_AGAIN)

    def _prepare(self, pod: Json, address: str) -> PodSpec:
        local = _local_pod(pod)
        folder = self._folder / local.namespace / local.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = self._reader("secrets", local.namespace, lambda value: base64.b64decode(value).decode())
        config_map = self._reader("configmaps", local.namespace, str)

        def secret_key(name: str, key: str) -> str:
            found = secret(name)
            if key not in found:
                raise NoSuchKey(f"Secret {name} has no key {key!r}")
            return found[key]

        mounts = volumes.materialise(local, folder / "volumes", volumes.Sources(secret, config_map, self._claims))
        if local.is_engine and (folder / "volumes" / CONNECTOR_VOLUME).is_dir():
            link_connector(_CONNECTOR, folder / "volumes" / CONNECTOR_VOLUME)
        environment = environment_of(address, self._instance)
        # DO_NOT_TRACK: vLLM would report its use to its makers. The only device of a pod here is the loopback one.
        defaults = {"TMPDIR": self._temporary, "HOME": str(folder), "DO_NOT_TRACK": "1", "UCX_NET_DEVICES": "lo"}
        if local.is_engine:
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = self._cores(int(local.option("--tensor-parallel-size") or 1))
        if _wants_token(pod):
            environment["KUBECONFIG"] = str(self._kubeconfig(pod))
        place = Placement(
            address=address,
            interpreter=self._interpreters[str(local.container["name"])],
            mounts=mounts,
            environment=environment,
            defaults=defaults,
            secret=secret_key,
            config_map=config_map,
        )
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return pod_spec(local, place, folder, (address, local.port), inherited)

    def _reader(self, plural: str, namespace: str, decode: Callable[[str], str]) -> Callable[[str], Mapping[str, str]]:
        def read(name: str) -> Mapping[str, str]:
            found = self._cluster.api.find(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
            if found is None:
                raise ManifestFault(f"there is no {name} among the {plural} of {namespace}")
            return {key: decode(value) for key, value in (found.get("data") or {}).items()}

        return read

    def _kubeconfig(self, pod: Json) -> Path:
        """Write what the pod's service account may use; the token ends with the pod, as that of a real one."""
        metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
        namespace = metadata["namespace"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        try:
            answer = self._cluster.api.request(
                "POST",
                f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
                {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound},
                },
            )
        except ApiError as error:
            raise ManifestFault(f"{metadata['name']}: no token of service account {account}: {error.reason}") from error
        who = Credentials(f"system:serviceaccount:{namespace}:{account}", token=answer["status"]["token"])
        return self._cluster.kubeconfig(who, namespace=namespace)

    def _cores(self, ranks: int) -> str:
        """Deal cores round robin, one to each rank of each engine."""
        cores = sorted(os.sched_getaffinity(0))
        with self._dealing:
            first, self._ranks = self._ranks, self._ranks + ranks
        return "|".join(str(cores[(first + rank) % len(cores)]) for rank in range(ranks))


async def _follow(runner: PodRunner, task: asyncio.Task[None], changed: asyncio.Event, report: Report) -> None:
    """Report every change of the pod until it has ended."""
    told: PodState | None = None
    while True:
        changed.clear()
        state = _state(runner)
        if state != told:
            told = state
            await report(state)
        if task.done():
            task.result()
            return
        waiting = asyncio.create_task(changed.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()


def _state(runner: PodRunner) -> PodState:
    shown = runner.state
    code = runner.exit_code
    if code is not None and code < 0:
        code = 128 - code
    if shown.phase == podrunner.PENDING:
        return CREATING
    if shown.phase == podrunner.ENDED:
        ended = ContainerState(restarts=runner.restarts, exit_code=code or 0)
        return PodState("Failed" if code else "Succeeded", ended)
    if shown.phase == podrunner.WAITING:
        # Counted by the runner when the process ends, by a kubelet when it is started again.
        down = ContainerState(
            restarts=runner.restarts - 1,
            waiting="CrashLoopBackOff",
            last_exit_code=code,
            message=shown.last_exit or "",
        )
        return PodState("Running", down)
    return PodState("Running", ContainerState(ready=runner.ready, restarts=runner.restarts, last_exit_code=code))


def _local_pod(pod: Json) -> LocalPod:
    """The pod as the executor sees it; the token's volume, which the apiserver added, is left out."""
    metadata, spec = pod["metadata"], pod["spec"]
    main = [c for c in spec["containers"] if c["name"] in MAIN_CONTAINERS]
    if len(main) != 1:
        raise ManifestFault(f"{metadata['name']}: needs one container named {' or '.join(MAIN_CONTAINERS)}")
    mounts = [m for m in main[0].get("volumeMounts") or () if m["mountPath"] != _SERVICE_ACCOUNT]
    found = LocalPod(
        name=metadata["name"],
        role=(metadata.get("labels") or {}).get(ROLE_LABEL, ""),
        namespace=metadata["namespace"],
        metadata=metadata,
        spec=spec,
        container={**main[0], "volumeMounts": mounts},
    )
    if found.gpus:
        raise ManifestFault(f"{found.name} asks for a GPU: this node has none. Set spec.engine.device to cpu")
    return found


def _wants_token(pod: Json) -> bool:
    containers: list[dict[str, Any]] = pod["spec"]["containers"]
    mounted = [m["mountPath"] for c in containers if c["name"] in MAIN_CONTAINERS for m in c.get("volumeMounts") or ()]
    return _SERVICE_ACCOUNT in mounted

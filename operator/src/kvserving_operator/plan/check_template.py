"""Checks of the users' pod templates: pieces that belong to the operator are refused, not merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..amounts import enough
from ..api import owned
from ..api.faults import Fault
from ..api.types import Quantity
from ..api.v1alpha1 import RoleName
from ..memory import host_memory
from ..routers import ANNOTATION_PREFIX
from . import check_fields, check_pod, check_values, engine, labels, roles, sources, storage, template
from .context import Context

_POD = {
    "automountServiceAccountToken": "engines get no token",
    "enableServiceLinks": "a Service named vllm would stop the engine",
    "terminationGracePeriodSeconds": "use drainTimeout and spec.transfer.lease",
    "restartPolicy": "engines restart always",
    "subdomain": "names are the operator's",
    "hostname": "names are the operator's",
}
_NEVER = {
    "activeDeadlineSeconds": "is for pods that end, and Kubernetes refuses it in a Deployment",
    "ephemeralContainers": "is for pods that run (kubectl debug), and Kubernetes refuses it in a Deployment",
}
_ENGINE = {
    "command": "use args of the role for further flags",
    "args": "use args of the role",
    "image": "use spec.engine.image",
    "resources": "use resources of the role",
    "lifecycle": "use drainTimeout of the role",
    "ports": "use --port in args of the role",
    "envFrom": "name each variable in env of the role, so that it can be checked",
}
_VOLUMES = frozenset({"keys", "connector", "home", "shm", "model-cache", "l2", "mooncake"})
_CLAIM = re.compile(r"claim-[0-9]+")
_SHM = "/dev/shm"  # noqa: S108 - vLLM's own path


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``template`` of each role."""
    for role in ctx.roles:
        user = ctx.role(role).template
        if user is not None:
            path = f"spec.{role}.template"
            found = [*check_fields.faults(user, path)]
            found += _beside(found, _template(ctx, role, user, path))
            yield from found or _merged(ctx, role, path)


def _beside(found: Sequence[Fault], others: Iterable[Fault]) -> list[Fault]:
    """The faults of ``others`` that are not about the same field as one of ``found``, inside it or around it."""
    broken = tuple(fault.path for fault in found)
    around = {re.split(r"[.\[][^.\[]*$", path)[0] for path in broken}
    inside = tuple(path + mark for path in broken for mark in ".[")
    return [o for o in others if o.path not in broken and o.path not in around and not o.path.startswith(inside)]


def _template(ctx: Context, role: RoleName, user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    metadata, spec = template.section(user, "metadata"), template.section(user, "spec")
    for kind in ("labels", "annotations"):
        for key in template.section(metadata, kind):
            if str(key).startswith((labels.PREFIX, ANNOTATION_PREFIX)) or str(key) in labels.object_labels(ctx.name):
                yield Fault(f"{path}.metadata.{kind}", f"{key} is set by the operator: remove it", str(key))
    for key in metadata:
        if metadata[key] is not None and key not in ("labels", "annotations", "finalizers"):
            message = "is lost on the way: the pods of a Deployment take labels and annotations only; remove it"
            yield Fault(f"{path}.metadata.{key}", message)
    for key, hint in _POD.items():
        if spec.get(key) is not None:
            yield Fault(f"{path}.spec.{key}", f"is set by the operator: {hint}", str(spec[key]))
    for key, reason in _NEVER.items():
        if spec.get(key) is not None:
            yield Fault(f"{path}.spec.{key}", f"{reason}: remove it")
    yield from _engine(spec, f"{path}.spec.containers[engine]")
    for container in template.listed(spec, "initContainers"):
        name = container.get("name")
        if name == "connector" or (name == roles.PREFETCH and sources.fetched(ctx)):
            yield Fault(f"{path}.spec.initContainers", f"the name {name} is the operator's: choose another")
    for volume in template.listed(spec, "volumes"):
        name = str(volume.get("name"))
        if name in _VOLUMES or _CLAIM.fullmatch(name):
            yield Fault(f"{path}.spec.volumes", f"the name {name} is the operator's: choose another", name)
    for claim in template.listed(spec, "resourceClaims"):
        if claim.get("name") == "rdma" and engine.uses_rdma(ctx):
            yield Fault(f"{path}.spec.resourceClaims", "the name rdma is the operator's: choose another", "rdma")
    yield from _shm(ctx, role, user, path)
    yield from check_pod.faults(user, path)
    yield from check_values.faults(user, path)


def _merged(ctx: Context, role: RoleName, path: str) -> Iterator[Fault]:
    """Faults that show only beside what the operator renders; the template itself must be sound."""
    spec = roles.pod_template(ctx, role)["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    names = [container["name"] for container in containers]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Fault(f"{path}.spec.containers", f"the name {name} is the operator's: choose another", name)
    for container in containers:
        for mount in template.listed(container, "volumeMounts"):
            name = str(mount.get("name"))
            if name not in volumes:
                message = f"{name[:60]} is mounted, but no volume has this name: add it to {path}.spec.volumes"
                yield Fault(f"{path}.spec.containers[{container['name']}].volumeMounts", message, name[:60])


def _engine(spec: Mapping[str, Any], path: str) -> Iterator[Fault]:
    container = template.engine_container(spec)
    for key, hint in _ENGINE.items():
        if container.get(key) is not None:
            yield Fault(f"{path}.{key}", f"is set by the operator: {hint}")
    for index, variable in enumerate(template.listed(container, "env")):
        name, value = str(variable.get("name")), variable.get("value")
        found = (v for v in owned.VARIABLES if v.matches(name, value if isinstance(value, str) else None))
        for variables in found:
            yield Fault(f"{path}.env[{index}]", f"{name} {variables.why}", name)
    filled = (
        *(engine.KEYS_PATH, engine.CONNECTOR_PATH, storage.L2_PATH, storage.MOONCAKE_PATH),
        *(sources.CACHE_PATH, sources.CLAIM_ROOT),
    )
    for mount in template.listed(container, "volumeMounts"):
        mounted = template.mounted_at(mount)
        # The home folder starts empty: what is mounted below it hides nothing.
        above = next((place for place in (*filled, engine.HOME_PATH) if template.is_within(place, mounted)), None)
        hidden = above or next((place for place in filled if template.is_within(mounted, place)), None)
        if hidden is not None:
            message = f"{mounted[:60]} would hide what the operator mounts at {hidden}: mount it elsewhere"
            yield Fault(f"{path}.volumeMounts", message, mounted[:60])
        elif (name := str(mount.get("name"))) in _VOLUMES or _CLAIM.fullmatch(name):
            message = f"{name} is the operator's volume: a second mount of it is not allowed"
            yield Fault(f"{path}.volumeMounts", message, name)


def _shm(ctx: Context, role: RoleName, user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    volume = template.mounts_path(user, _SHM)
    if volume is None:
        return
    need = host_memory(ctx.spec, role)
    memory = volume.get("emptyDir")
    limit = memory.get("sizeLimit") if isinstance(memory, Mapping) else None
    where = f"{path}.spec.volumes"
    if not isinstance(memory, Mapping) or memory.get("medium") != "Memory":
        if "hostPath" not in volume:
            yield Fault(where, "the volume at /dev/shm must be an emptyDir with medium Memory, or left to the operator")
        return
    if limit is None:
        return
    try:
        given = Quantity(limit).bytes
    except ValueError as error:
        yield Fault(where, f"sizeLimit: {error}", str(limit))
        return
    if given < need.shm:
        holds = f"spec.cache.l1.size {ctx.spec.cache.l1.size}" if ctx.spec.cache.l1 is not None else "the engine"
        message = (
            f"sizeLimit {limit} of the volume at /dev/shm is too small for {holds} and 2Gi of the engine's own: "
            f"leave /dev/shm to the operator or make it at least {enough(need.shm)}"
        )
        yield Fault(where, message, str(limit))

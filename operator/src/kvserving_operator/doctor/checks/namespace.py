"""What the namespace of one object refuses its pods and claims: Pod Security, quotas, limit ranges, storage classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...amounts import size
from ...api.v1alpha1 import RoleName
from ...control.permissions import CHILDREN
from ...memory import host_memory
from ...plan import template
from ...plan.workloads import pod_template, pods_each
from ..explain import main_container, role_of, workloads
from ..facts import Body, Live, ObjectFacts, name_of
from ..findings import Finding, error, warning
from . import claims
from .placement import Amounts, amounts

ENFORCED = "pod-security.kubernetes.io/enforce"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# What the standards let a container add: https://kubernetes.io/docs/concepts/security/pod-security-standards/
_RESTRICTED = frozenset({"NET_BIND_SERVICE"})
_BASELINE = _RESTRICTED | {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_VOLUMES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"),
        *("projected", "secret"),
    }
)
_ROLES: Mapping[str, RoleName] = {"prefill": "prefill", "decode": "decode"}


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about the namespace of one object; none about what may not be read."""
    if facts.plan is None:
        return
    made = workloads(facts.plan.objects)
    yield from _kinds(facts, live)
    yield from _security(facts, made, live.namespace)
    for quota in live.quotas or ():
        yield from _quota(facts, made, quota, live.ranges or ())
    for limits in live.ranges or ():
        yield from _ranges(facts, made, limits)
    yield from _classes(facts, live)


def _kinds(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    assert facts.plan is not None
    for manifest in facts.plan.objects:
        if manifest["kind"] in live.absent:
            why = next(resource.why for resource in CHILDREN if resource.kind == manifest["kind"])
            yield error(
                "kind-missing",
                name_of(manifest),
                f"the cluster has no {manifest['kind']} of {manifest['apiVersion']}",
                why=f"the object asks for it ({why}), and it is not made",
                fix="install the CRD and the controller of that kind, or leave out the field that needs it",
            )


def _security(facts: ObjectFacts, made: Sequence[Body], namespace: Body | None) -> Iterator[Finding]:
    level = (((namespace or {}).get("metadata") or {}).get("labels") or {}).get(ENFORCED)
    if level not in ("baseline", "restricted"):
        return
    for manifest in made:
        pod = pod_template(manifest)["spec"]
        refused = list(dict.fromkeys(_refused(pod, restricted=level == "restricted")))
        if refused:
            rdma = any("IPC_LOCK" in word for word in refused)
            yield error(
                "pod-security",
                f"{manifest['kind']} {manifest['metadata']['name']}",
                f"its namespace enforces the Pod Security standard {level}, which refuses {', '.join(refused)}",
                why="none of its pods is made"
                + (": RDMA locks the memory that it registers, which takes IPC_LOCK" if rdma else ""),
                fix=f"`kubectl label namespace {facts.namespace} --overwrite {ENFORCED}=privileged`"
                + (", or leave out spec.transfer.rdma" if rdma else ", or take it out of the template"),
            )


def _refused(pod: Mapping[str, Any], *, restricted: bool) -> Iterator[str]:
    """What of a pod its standard refuses, in the words of the pod's fields."""
    yield from (field for field in _HOST if pod.get(field))
    for volume in template.listed(pod, "volumes"):
        if "hostPath" in volume:
            yield f"hostPath {volume.get('name')}"
        elif restricted and not _VOLUMES & volume.keys():
            yield f"volume {volume.get('name')}"
    shared: Mapping[str, Any] = template.section(pod, "securityContext")
    for container in (*template.listed(pod, "initContainers"), *template.listed(pod, "containers")):
        own = template.section(container, "securityContext")
        capabilities = template.section(own, "capabilities")
        allowed = _RESTRICTED if restricted else _BASELINE
        yield from (f"capability {name}" for name in capabilities.get("add") or () if name not in allowed)
        if own.get("privileged"):
            yield f"privileged in {container.get('name')}"
        yield from (
            f"hostPort {port['hostPort']}" for port in template.listed(container, "ports") if port.get("hostPort")
        )
        if restricted:
            both = {**shared, **own}
            if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
                yield f"root in {container.get('name')}"
            if own.get("allowPrivilegeEscalation") is not False:
                yield f"allowPrivilegeEscalation in {container.get('name')}"
            if "ALL" not in (capabilities.get("drop") or ()):
                yield f"capabilities that {container.get('name')} does not drop"
            if template.section(both, "seccompProfile").get("type") not in ("RuntimeDefault", "Localhost"):
                yield f"no seccompProfile in {container.get('name')}"


def _quota(facts: ObjectFacts, made: Sequence[Body], quota: Body, ranges: Sequence[Body]) -> Iterator[Finding]:
    spec = quota.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return  # It counts some pods alone, by what only their admission knows.
    where = f"ResourceQuota {quota['metadata']['name']}"
    hard = amounts((quota.get("status") or {}).get("hard") or spec.get("hard") or {})
    wanted = _sums(facts, made)
    short = [
        f"{name} {_words(name, wanted[name])} (of {_words(name, bound)})"
        for name, bound in hard.items()
        if wanted.get(name, Decimal(0)) > bound
    ]
    if short:
        yield error(
            "quota-small",
            where,
            f"the object asks for {', '.join(short)}",
            why="pods or claims beyond the quota are refused (QuotaExceeded)",
            fix=f"`kubectl edit quota {quota['metadata']['name']} -n {facts.namespace}`, or lower replicas, resources "
            "or tiers",
        )
    for manifest in made:
        unset = sorted({name for name in hard if _unset(name, pod_template(manifest)["spec"], ranges)})
        if unset:
            yield error(
                "quota-needs-resources",
                f"{manifest['kind']} {manifest['metadata']['name']}",
                f"{where} counts {', '.join(unset)}, and a container names none",
                why="a pod with such a container is refused (must specify ...)",
                fix=(f"set them in spec.{role}.resources, or " if (role := role_of(manifest)) in _ROLES else "")
                + "give the namespace a LimitRange with defaults for containers",
            )


def _sums(facts: ObjectFacts, made: Sequence[Body]) -> Amounts:
    """What a quota would count of the object: pods with all their containers, and claims."""
    assert facts.plan is not None
    total: Amounts = {}

    def add(name: str, amount: Decimal) -> None:
        total[name] = total.get(name, Decimal(0)) + amount

    for manifest in made:
        count = Decimal(int(manifest["spec"].get("replicas", 1)) * pods_each(manifest))
        add("pods", count)
        for container in template.listed(pod_template(manifest)["spec"], "containers"):
            limits = amounts(template.section(template.section(container, "resources"), "limits"))
            given = amounts(template.section(template.section(container, "resources"), "requests"))
            for name, amount in {**limits, **given}.items():
                add(f"requests.{name}", amount * count)
                if name in ("cpu", "memory"):
                    add(name, amount * count)
            for name, amount in limits.items():
                add(f"limits.{name}", amount * count)
    for claim in (m for m in facts.plan.objects if m["kind"] == "PersistentVolumeClaim"):
        add("persistentvolumeclaims", Decimal(1))
        asked = amounts(template.section(template.section(claim["spec"], "resources"), "requests"))
        add("requests.storage", asked.get("storage", Decimal(0)))
    return total


def _unset(name: str, pod: Mapping[str, Any], ranges: Sequence[Body]) -> bool:
    """Whether a quota counts ``name`` (as limits.memory), and a container has neither it nor a default of it."""
    kind, _, resource = name.rpartition(".") if "." in name else ("requests", "", name)
    if kind not in ("limits", "requests") or resource not in ("cpu", "memory"):
        return False
    field = "default" if kind == "limits" else "defaultRequest"
    if any(resource in (entry.get(field) or {}) for entry in _of_containers(ranges)):
        return False
    for container in (*template.listed(pod, "initContainers"), *template.listed(pod, "containers")):
        resources = template.section(container, "resources")
        given = template.section(resources, kind)
        if resource not in given and not (kind == "requests" and resource in template.section(resources, "limits")):
            return True
    return False


def _of_containers(ranges: Sequence[Body], kind: str = "Container") -> list[Mapping[str, Any]]:
    return [
        entry for body in ranges for entry in (body.get("spec") or {}).get("limits") or () if entry.get("type") == kind
    ]


def _ranges(facts: ObjectFacts, made: Sequence[Body], limits: Body) -> Iterator[Finding]:
    assert facts.plan is not None
    where = f"LimitRange {limits['metadata']['name']}"
    fix = f"`kubectl edit limitrange {limits['metadata']['name']} -n {facts.namespace}`, or ask for less"
    for entry in _of_containers((limits,)):
        most, default = amounts(entry.get("max") or {}), amounts(entry.get("default") or {})
        for manifest in made:
            container = main_container(pod_template(manifest)["spec"])
            given = amounts(template.section(template.section(container, "resources"), "limits"))
            above = [
                f"{name} {_words(name, amount)} (at most {_words(name, most[name])})"
                for name, amount in given.items()
                if name in most and amount > most[name]
            ]
            if above:
                yield error(
                    "limit-range",
                    where,
                    f"{manifest['kind']} {manifest['metadata']['name']} asks for {', '.join(above)} in a container",
                    why="its pods are refused",
                    fix=fix,
                )
            yield from _defaults(facts, manifest, given, default, where)
    for entry in _of_containers((limits,), "PersistentVolumeClaim"):
        most = amounts(entry.get("max") or {})
        for claim in (m for m in facts.plan.objects if m["kind"] == "PersistentVolumeClaim"):
            asked = amounts(template.section(template.section(claim["spec"], "resources"), "requests"))
            if "storage" in most and asked.get("storage", Decimal(0)) > most["storage"]:
                yield error(
                    "limit-range",
                    where,
                    f"{name_of(claim)} asks for {size(int(asked['storage']))} (at most {size(int(most['storage']))})",
                    why="the claim is refused, and pods that mount it stay Pending",
                    fix=fix,
                )


def _defaults(facts: ObjectFacts, manifest: Body, given: Amounts, default: Amounts, where: str) -> Iterator[Finding]:
    role = _ROLES.get(role_of(manifest))
    if role is None or facts.serving is None or "memory" in given or "memory" not in default:
        return
    need = host_memory(facts.serving.spec, role)
    if default["memory"] < need.total:
        yield error(
            "limit-range-default",
            where,
            f"it gives containers without a limit {size(int(default['memory']))} of memory, and {role} has none; the "
            f"plan counts on {need.explain()}",
            why="the engine is killed for memory while it loads, or when its tiers fill",
            fix=f"set spec.{role}.resources.limits.memory",
        )


def _classes(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    assert facts.plan is not None
    if live.classes is None:
        return
    names = sorted(str(body["metadata"]["name"]) for body in live.classes)
    default = any((body["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true" for body in live.classes)
    there = {name_of(child) for child in live.children}
    for claim in (m for m in facts.plan.objects if m["kind"] == "PersistentVolumeClaim"):
        named = claim["spec"].get("storageClassName")
        if name_of(claim) in there or (default if named is None else named in ("", *names)):
            continue
        yield warning(
            "class-missing",
            name_of(claim),
            f"there is no storage class {named}" if named else "it names no storage class, and none is the default",
            why="the claim stays Pending until a volume is made for it by hand, and pods that mount it wait",
            fix=claims.install_or_name(names, "storageClass"),
        )


def _words(name: str, amount: Decimal) -> str:
    plain = name.rpartition(".")[2]
    return size(int(amount)) if plain in ("memory", "storage") else f"{amount:f}"

"""What others have changed: workloads against the plan, and pods against their workload (webhooks, hands)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...control import drift
from ...control.config import FIELD_MANAGER
from ...engines import arguments
from ...plan import labels, multinode, template
from ...plan.workloads import KINDS, pod_template
from ..explain import main_container, role_of, workloads
from ..facts import Body, Live, ObjectFacts, name_of
from ..findings import Finding, error, info, warning
from . import operators

_CONFIG = "--kv-transfer-config"
_ALONE = "start an operator, as the finding about it says: it sets what it planned again"
_WHOLE = ("ConfigMap", "NetworkPolicy", "Role", "RoleBinding", "Service")
"""Kinds of which every planned field is the operator's alone, whoever scales or claims."""


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about flags, variables, images and containers that are not as planned."""
    by_name = {name_of(child): child for child in live.children}
    alone = operators.runs(live, facts.namespace) is False
    planned = facts.plan.objects if facts.plan is not None and not live.behind else ()
    for manifest in workloads(planned):
        child = by_name.get(name_of(manifest))
        if child is None:
            continue
        changes = _differences(_pod_spec(manifest), _pod_spec(child))
        if changes:
            added = _variables(main_container(_pod_spec(manifest)), main_container(_pod_spec(child)))[1]
            yield _changed(child, facts.namespace, changes, added, alone=alone)
    for manifest in planned:
        child = by_name.get(name_of(manifest)) if manifest["kind"] in _WHOLE else None
        if child is not None and not _as_applied(manifest, child):
            yield _taken(child, facts.namespace, alone=alone)
    yield from _aside(facts, live, alone=alone)
    for child in live.children:
        if child.get("kind") in KINDS and _settled(child):
            for pod in live.pods:
                if _belongs(pod, child):
                    yield from _pod(pod, child)


def _changed(child: Body, namespace: str, changes: Sequence[str], added: Sequence[str], *, alone: bool) -> Finding:
    others = _others(child)
    whose = f" Fields of its spec are also set by {', '.join(others)}." if others else ""
    fix = (
        _ALONE
        if alone
        else "compare the versions of operator and command; where they are equal, the operator sets what it planned "
        "again within its resync, or its log says why it cannot"
    )
    if added:
        named = _kubectl_name(child)
        fix += (
            f". {'An operator' if alone else 'It'} leaves what others add beside it: take {', '.join(added)} out with "
            f"`kubectl edit {named} -n {namespace}`"
        )
        if not alone:
            fix += f", or `kubectl delete {named} -n {namespace}`, which stops its pods, and the operator makes it anew"
    return warning(
        "workload-changed",
        name_of(child),
        f"it is not what this version plans: {'; '.join(changes)}.{whose}",
        why="what runs was not checked, and the operator may be of another version or not come to write",
        fix=fix,
    )


def _kubectl_name(child: Body) -> str:
    return f"{str(child['kind']).lower()}/{child['metadata']['name']}"


def _aside(facts: ObjectFacts, live: Live, *, alone: bool) -> Iterator[Finding]:
    for pod in live.pods:
        metadata = pod.get("metadata") or {}
        if "deletionTimestamp" in metadata or any(o.get("controller") for o in metadata.get("ownerReferences") or ()):
            continue
        yield warning(
            "pod-aside",
            f"pod {metadata.get('name')}",
            f"it carries the object's label (role {role_of(pod) or 'none'}) and belongs to no workload, as a pod whose "
            "labels were changed by hand",
            why="it keeps its devices and memory, nobody drains or replaces it, and it outlives the object",
            fix=(
                ""
                if alone
                else f"when it is looked into, `kubectl delete pod {metadata.get('name')} -n {facts.namespace}`; or "
            )
            + f"set its labels {labels.ROLE} and {labels.REVISION} back, and its workload takes it in again",
        )


def _as_applied(manifest: Mapping[str, Any], child: Body) -> bool:
    """Whether all planned fields are still the operator's, by the apiserver's records."""
    metadata = manifest["metadata"]
    marked = {**metadata, "annotations": {**(metadata.get("annotations") or {}), drift.DIGEST: ""}}
    return drift.matches(
        {**manifest, "metadata": marked}, drift.own_fields(child["metadata"].get("managedFields") or ())
    )


def _taken(child: Body, namespace: str, *, alone: bool) -> Finding:
    others = ", ".join(_others(child)) or "somebody"
    policy = child.get("kind") == "NetworkPolicy"
    return warning(
        "child-changed",
        name_of(child),
        f"fields that the operator sets were set by {others}, or it is of another version",
        why="the engines' side channels, which have no authentication, may be reached by every pod of the cluster"
        if policy
        else "requests may reach no router, or another one, while every pod is ready",
        fix=_ALONE
        if alone
        else "the operator sets them again within its resync, or its conditions say why it cannot: then "
        f"`kubectl delete {_kubectl_name(child)} -n {namespace}`, and the operator makes it anew",
    )


def _pod(pod: Body, child: Body) -> Iterator[Finding]:
    where, wanted, spec = f"pod {pod['metadata']['name']}", _pod_spec(child), pod.get("spec") or {}
    ours, theirs = main_container(wanted), main_container(spec)
    args = _args(ours, theirs)
    if args:
        config = any(_CONFIG in change for change in args)
        yield error(
            "pod-args-changed",
            where,
            f"its arguments are not those of {name_of(child)}: {'; '.join(args)}",
            why="KV may not move at all, without an error" if config else "roles may no longer fit each other",
            fix="an admission webhook changes pods: exclude the namespace, or the label app.kubernetes.io/managed-by",
        )
    changed, added = _variables(ours, theirs)
    if child.get("kind") == multinode.KIND:
        added = [name for name in added if name not in multinode.VARIABLES]
    if changed:
        yield error(
            "pod-env-changed",
            where,
            f"variables are not those of {name_of(child)}: {', '.join(changed)}",
            why="the operator sets them for a reason: `kubectl kvserving doctor --explain` shows it",
            fix="an admission webhook changes pods: exclude the namespace, or the label app.kubernetes.io/managed-by",
        )
    if added:
        yield info(
            "pod-env-added",
            where,
            f"variables were added to the pod: {', '.join(added)}",
            why="vLLM and UCX are steered by variables: look whether one of these is theirs",
            fix="exclude the pods from the webhook that adds them, where they do harm",
        )
    if ours.get("image") != theirs.get("image"):
        yield info(
            "pod-image-rewritten",
            where,
            f"its image is {theirs.get('image')}, not {ours.get('image')}",
            why="a mirror is fine, another build is not",
            fix="compare the digests of both",
        )
    known = {c.get("name") for kind in ("containers", "initContainers") for c in template.listed(wanted, kind)}
    there = [c.get("name") for kind in ("containers", "initContainers") for c in template.listed(spec, kind)]
    if more := sorted(str(name) for name in there if name not in known):
        yield warning(
            "sidecar",
            where,
            f"containers were added to the pod: {', '.join(more)}",
            why="a proxy before the engine breaks side channels and transfers, which are no HTTP, and the drain",
            fix="switch the injection off for the pods, for example sidecar.istio.io/inject: 'false' in "
            f"spec.{role_of(pod)}.template.metadata",
        )


def _differences(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    ours, theirs = main_container(wanted), main_container(there)
    changed, added = _variables(ours, theirs)
    found = _args(ours, theirs)
    found += [f"{name} differs" for name in changed] + [f"{name} is added" for name in added]
    if ours.get("image") != theirs.get("image"):
        found.append(f"the image is {theirs.get('image')}, planned is {ours.get('image')}")
    return found


def _args(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs between two containers' arguments, by flag; no value is told, which may be the user's secret."""
    wanted, there = _flags(ours), _flags(theirs)
    found = [f"{name} is missing" for name in wanted if name not in there]
    found += [f"{name} is added" for name in there if name not in wanted]
    found += [f"{name} differs" for name in wanted if name in there and wanted[name] != there[name]]
    return found


def _flags(container: Mapping[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    flags: dict[str, list[tuple[str, ...]]] = {}
    for flag in arguments.parse([str(arg) for arg in container.get("args") or ()]):
        flags.setdefault(flag.name, []).append((flag.sub or "", *flag.values))
    return flags


def _variables(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of variables that differ or are gone, and of those that were added."""
    wanted, there = _env(ours), _env(theirs)
    changed = [name for name in wanted if there.get(name) != wanted[name]]
    return changed, [name for name in there if name not in wanted]


def _env(container: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {str(entry.get("name")): _identity(entry) for entry in template.listed(container, "env")}


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What a variable holds, without what the apiserver adds to a source (fieldRef's apiVersion)."""
    source = template.section(entry, "valueFrom")
    if not source:
        return ("value", str(entry.get("value") or ""))
    kind = next(iter(source))
    parts = template.section(source, kind)
    return (kind, *(f"{key}={parts[key]}" for key in sorted(parts) if key != "apiVersion"))


def _pod_spec(workload: Body) -> Mapping[str, Any]:
    return template.section(pod_template(workload), "spec")


def _settled(workload: Body) -> bool:
    """Whether all its pods are of its present template."""
    status, spec = workload.get("status") or {}, workload.get("spec") or {}
    wanted = spec.get("replicas", 1)
    seen = int(status.get("observedGeneration") or 0) >= int(workload["metadata"].get("generation") or 0)
    return seen and status.get("updatedReplicas", 0) == wanted == status.get("replicas", 0)


def _belongs(pod: Body, workload: Body) -> bool:
    """Whether the pod carries role and revision of the workload, and is not on its way out."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    marks, wanted = pod["metadata"].get("labels") or {}, workload["metadata"].get("labels") or {}
    same = [marks.get(name) == wanted.get(name) for name in (labels.NAME, labels.ROLE, labels.REVISION)]
    return all(same) and bool(role_of(pod))


def _others(child: Body) -> list[str]:
    """Managers beside the operator that set fields of the spec, by the apiserver's records."""
    entries = child["metadata"].get("managedFields") or ()
    return sorted(
        {
            str(entry.get("manager"))
            for entry in entries
            if entry.get("manager") != FIELD_MANAGER
            and not entry.get("subresource")
            and {"f:spec", "f:data", "f:rules", "f:subjects"} & (entry.get("fieldsV1") or {}).keys()
        }
    )

"""What a cluster lacks for the operator and its engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ... import __version__
from ...api.v1alpha1 import API_VERSION, KIND
from ...control.permissions import CHILDREN, ROLE
from ...plan import engine
from ..facts import Body, ClusterFacts
from ..findings import Finding, error, info, warning
from . import schema
from .placement import amounts, usable

_OLDEST = (1, 33)
"""Oldest minor version of Kubernetes that the manifests are checked for, as the chart says."""
_POPULATE = (5, 14)
"""Kernel from which vLLM can fill its L1 before use."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Findings about one cluster."""
    for unread in facts.unread:
        yield info("not-looked-at", unread.what, unread.reason, why="what is wrong there is not told", fix=unread.fix)
    yield from _version(facts)
    yield from _kinds(facts)
    yield from _operators(facts)
    yield from _permissions(facts)
    yield from _nodes(facts)
    yield from _storage(facts)


def _version(facts: ClusterFacts) -> Iterator[Finding]:
    found = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        yield warning(
            "kubernetes-old",
            facts.server,
            f"Kubernetes {facts.version} is older than {_OLDEST[0]}.{_OLDEST[1]}",
            why="the manifests and rules are checked for newer ones alone",
            fix="upgrade the cluster",
        )


def _kinds(facts: ClusterFacts) -> Iterator[Finding]:
    if (API_VERSION, KIND) not in facts.kinds:
        yield error(
            "crd-missing",
            f"CustomResourceDefinition {KIND}",
            f"the cluster has no {KIND} of {API_VERSION}",
            why="no object can be created, and the operator does not start",
            fix="`kubectl apply -f crds/`, or the chart with crds.install",
        )
        return
    yield from schema.findings(facts.schema)
    if (ROLE.api_version, ROLE.kind) not in facts.kinds:
        yield error(
            "crd-missing",
            f"CustomResourceDefinition {ROLE.kind}",
            f"the cluster has no {ROLE.kind} of {ROLE.api_version}",
            why="a role with autoscaling keeps its number of engines",
            fix="`kubectl apply -f crds/`, or the chart with crds.install",
        )
    absent = [r for r in CHILDREN if r.optional]
    absent = [r for r in absent if (r.api_version, r.kind) not in facts.kinds]
    if absent:
        named = ", ".join(f"{r.kind} ({r.why})" for r in absent)
        yield info(
            "optional-kinds",
            facts.server,
            f"the cluster lacks {named}",
            why="an object that asks for one is served without it; a role on several nodes is not made at all",
            fix="install their CRDs and controllers where you need them",
        )


def _operators(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.operators is None:
        return
    if not facts.operators:
        yield warning(
            "operator-missing",
            facts.server,
            "no Deployment of the operator is there",
            why="objects are stored and nothing is made for them, unless an operator runs outside of the cluster",
            fix="`helm install` of charts/kvserving-operator, or `kubectl apply -f deploy/install.yaml`",
        )
    for body in facts.operators:
        where, status = _deployment(body), body.get("status") or {}
        if not status.get("availableReplicas"):
            yield error(
                "operator-down",
                where,
                "none of its pods is available",
                why="what runs goes on; changes, repairs and proofs wait",
                fix="`kubectl logs` of its pods: the last lines name a missing permission, CRD or Lease",
            )
        version = (body["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
        if version and version != __version__:
            yield warning(
                "operator-version",
                where,
                f"it is of version {version}, this command of {__version__}",
                why="plans and explanations of this command may differ from what the operator does",
                fix=f"use version {version} of the command, or upgrade the operator",
            )
    everywhere = [_deployment(body) for body in facts.operators if not _arguments(body, "--namespace")]
    if len(everywhere) > 1:
        yield error(
            "several-operators",
            facts.server,
            f"{len(everywhere)} operators serve all namespaces: {', '.join(everywhere)}",
            why="they undo each other's changes; a Lease keeps replicas of one release apart, not releases",
            fix="keep one, or give each its namespaces (--namespace)",
        )


def _permissions(facts: ClusterFacts) -> Iterator[Finding]:
    for who in dict.fromkeys(p.who for p in facts.permissions):
        lacking = [p for p in facts.permissions if p.who == who and not p.allowed]
        if not lacking:
            continue
        make = warning if who == "you" else error
        shown = ", ".join(p.what for p in lacking)
        needed = dict.fromkeys(p.needed_for for p in lacking)
        yield make(
            "permissions" if who == "you" else "operator-permissions",
            who,
            f"{'you may' if who == 'you' else 'it may'} not {shown}",
            why=f"needed for: {'; '.join(needed)}",
            fix="ask for these rights, or go without"
            if who == "you"
            else "apply the RBAC of the operator's version: the chart, or deploy/install.yaml",
        )


def _nodes(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.nodes is None:
        return
    ready = [node for node in facts.nodes if usable(node)]
    if not ready:
        yield error(
            "no-ready-node",
            facts.server,
            f"none of {len(facts.nodes)} nodes is ready and takes pods",
            why="every pod stays Pending",
            fix="`kubectl describe node` says why",
        )
        return
    with_devices = [node for node in ready if any(map(engine.names_device, _resources(node)))]
    if not with_devices:
        yield warning(
            "no-devices",
            "nodes",
            "no node offers a GPU",
            why="engines with device gpu (the default) stay Pending",
            fix="install the GPU vendor's device plugin, or set spec.engine.device: cpu",
        )
    elif len(with_devices) > 1 and not any("rdma" in name for node in with_devices for name in _resources(node)):
        yield info(
            "no-rdma",
            "nodes",
            f"none of the {len(with_devices)} nodes with GPUs offers an RDMA resource",
            why="KV moves between nodes over TCP",
            fix="install an RDMA device plugin, and name its resource in spec.transfer.rdma.resource",
        )
    architectures = {str(_info(node).get("architecture")) for node in ready}
    if len(architectures) > 1:
        yield warning(
            "architectures",
            "nodes",
            f"nodes are of {', '.join(sorted(architectures))}",
            why="prefill and decode on different machines run different builds",
            fix="choose one by template.spec.nodeSelector[kubernetes.io/arch] in both roles",
        )
    for node in ready:
        yield from _node(node)


def _node(node: Body) -> Iterator[Finding]:
    where = f"node {node['metadata']['name']}"
    conditions = (node.get("status") or {}).get("conditions") or ()
    pressed = [c["type"] for c in conditions if c.get("type") in _PRESSURES and c.get("status") == "True"]
    if pressed:
        yield warning(
            "node-pressure",
            where,
            f"it reports {', '.join(pressed)}",
            why="the kubelet evicts pods; engines with large tiers go first",
            fix="free memory or disk, or move engines",
        )
    kernel = re.match(r"(\d+)\.(\d+)", str(_info(node).get("kernelVersion", "")))
    if kernel and (int(kernel[1]), int(kernel[2])) < _POPULATE:
        yield info(
            "kernel-old",
            where,
            f"Linux {_info(node)['kernelVersion']} cannot fill memory ahead of use (5.14 can)",
            why="engines with a large L1 start slower; vLLM before 0.23 ends",
            fix="a newer kernel, or a newer vLLM",
        )


def _storage(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.storage_classes is None:
        return
    marks = [(body["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) for body in facts.storage_classes]
    if "true" not in marks:
        names = ", ".join(str(body["metadata"]["name"]) for body in facts.storage_classes) or "none"
        yield info(
            "no-default-storage-class",
            facts.server,
            f"no storage class is the default; there are: {names}",
            why="claims without a class stay Pending: spec.model.cache.size and cache.l2.type filesystem make some",
            fix="name storageClass in the object; it must be able to do ReadWriteMany",
        )


def _deployment(body: Body) -> str:
    return f"Deployment {body['metadata']['namespace']}/{body['metadata']['name']}"


def _arguments(body: Body, flag: str) -> list[str]:
    """Values of a flag in the containers of a Deployment."""
    pod: dict[str, Any] = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    args = [str(arg) for container in pod.get("containers") or () for arg in container.get("args") or ()]
    return [arg.partition("=")[2] for arg in args if arg.startswith(f"{flag}=")]


def served(body: Body) -> tuple[str, ...]:
    """Namespaces that an operator's Deployment serves; all when empty."""
    return tuple(_arguments(body, "--namespace"))


def _resources(node: Body) -> list[str]:
    found = amounts((node.get("status") or {}).get("allocatable") or {})
    return [name for name, amount in found.items() if amount > 0]


def _info(node: Body) -> dict[str, Any]:
    return (node.get("status") or {}).get("nodeInfo") or {}

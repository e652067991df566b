"""Whether the nodes can hold what is asked for: one pod at all, all of them, and one more for a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...amounts import size
from ...api.types import ResourceQuantity
from ...plan import engine
from ...plan.workloads import pod_template, pods_each
from ..explain import main_container, role_of, workloads
from ..facts import Body, Live, ObjectFacts
from ..findings import Finding, error, warning

Amounts = dict[str, Decimal]
_REPELLING = ("NoSchedule", "NoExecute")


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about nodes; none where they may not be read. What other pods take of them is not counted."""
    if facts.plan is None or facts.serving is None or live.nodes is None:
        return
    nodes = [node for node in live.nodes if usable(node)]
    devices: dict[str, Decimal] = {}
    surge: dict[str, Decimal] = {}
    bounds = facts.serving.spec.rollout
    placed = {role_of(pod) for pod in live.pods if (pod.get("spec") or {}).get("nodeName")}
    for manifest in workloads(facts.plan.objects):
        pod = pod_template(manifest)["spec"]
        asked = _asked(pod)
        fitting = [node for node in nodes if _fits(node, pod, asked)]
        if role_of(manifest) in placed:
            pass  # The scheduler has found nodes: it knows more than this.
        elif not fitting:
            yield _nowhere(manifest, pod, asked, nodes)
        elif taints := _in_the_way(fitting, pod):
            yield _tainted(manifest, taints)
        if role_of(manifest) not in ("prefill", "decode"):
            continue
        replicas = int(manifest["spec"].get("replicas") or 0) * pods_each(manifest)
        more = bounds.max_surge * pods_each(manifest) if bounds.strategy != "Recreate" and replicas else 0
        for name, amount in asked.items():
            if engine.names_device(name):
                devices[name] = devices.get(name, Decimal(0)) + amount * replicas
                surge[name] = max(surge.get(name, Decimal(0)), amount * more)
    for name, wanted in devices.items():
        there = sum((_allocatable(node).get(name, Decimal(0)) for node in nodes), Decimal(0))
        yield from _devices(name, wanted, surge[name], there)


def _devices(name: str, wanted: Decimal, surge: Decimal, there: Decimal) -> Iterator[Finding]:
    if wanted > there:
        yield error(
            "too-few-devices",
            name,
            f"the engines ask for {wanted}, all nodes together have {there}",
            why="some pods stay Pending",
            fix="lower replicas or parallelism, or add nodes",
        )
    elif wanted + surge > there:
        yield warning(
            "no-room-for-a-rollout",
            "spec.rollout.maxSurge",
            f"the engines ask for {wanted} of {there} {name}, and a rollout for {surge} more",
            why="a new revision waits for devices that the old one holds (InsufficientCapacity)",
            fix="set spec.rollout.maxSurge: 0 with maxUnavailable: 1, or strategy: Recreate, or keep devices free",
        )


def _nowhere(manifest: Body, pod: Body, asked: Amounts, nodes: Sequence[Body]) -> Finding:
    selector = pod.get("nodeSelector") or {}
    matching = [node for node in nodes if _selected(node, selector)]
    if not matching:
        what = f"no ready node has the labels {selector}" if selector else "there is no ready node"
    else:
        short = [
            f"{name} {_words(name, amount)} (most on a node: {_words(name, most)})"
            for name, amount in asked.items()
            if (most := max(_allocatable(node).get(name, Decimal(0)) for node in matching)) < amount
        ]
        what = f"no node has {', '.join(short)}" if short else "no single node has all that it asks for together"
    return error(
        "no-node-fits",
        f"{manifest['kind']} {manifest['metadata']['name']}",
        what,
        why="its pods stay Pending",
        fix="lower resources, parallelism or tiers, or add such a node; a missing device resource means that its "
        "device plugin does not run",
    )


def _tainted(manifest: Body, taints: Sequence[str]) -> Finding:
    role = role_of(manifest)
    return warning(
        "tainted",
        f"{manifest['kind']} {manifest['metadata']['name']}",
        f"every node that it fits on has a taint that its pods do not tolerate: {', '.join(taints)}",
        why="its pods stay Pending, unless the cluster adds tolerations for devices itself",
        fix=f"add them to spec.{role}.template.spec.tolerations"
        if role in ("prefill", "decode")
        else f"leave a node without the taint for the {role}",
    )


def _in_the_way(nodes: Sequence[Body], pod: Body) -> list[str]:
    """Keys of the taints that keep a pod from every one of ``nodes``; empty where one takes it."""
    found: set[str] = set()
    for node in nodes:
        taints = [t for t in (node.get("spec") or {}).get("taints") or () if t.get("effect") in _REPELLING]
        keys = {str(t.get("key")) for t in taints if not any(_tolerates(o, t) for o in pod.get("tolerations") or ())}
        if not keys:
            return []
        found |= keys
    return sorted(found)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def usable(node: Body) -> bool:
    """Whether a node is ready and takes pods."""
    conditions = {c.get("type"): c.get("status") for c in (node.get("status") or {}).get("conditions") or ()}
    return conditions.get("Ready") == "True" and not (node.get("spec") or {}).get("unschedulable")


def _fits(node: Body, pod: Body, asked: Amounts) -> bool:
    there = _allocatable(node)
    return _selected(node, pod.get("nodeSelector") or {}) and all(
        there.get(name, Decimal(0)) >= amount for name, amount in asked.items()
    )


def _selected(node: Body, selector: Mapping[str, Any]) -> bool:
    return selector.items() <= ((node.get("metadata") or {}).get("labels") or {}).items()


def _asked(pod: Body) -> Amounts:
    """What the scheduler looks for: requests, and limits where there is no request."""
    resources = main_container(pod).get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _allocatable(node: Body) -> Amounts:
    return amounts((node.get("status") or {}).get("allocatable") or {})


def amounts(given: Mapping[str, Any]) -> Amounts:
    """Quantities as numbers; what is none is left out."""
    found: Amounts = {}
    for name, value in given.items():
        try:
            found[name] = ResourceQuantity(value).value
        except ValueError:
            continue
    return found


def _words(name: str, amount: Decimal) -> str:
    return size(int(amount)) if name in ("memory", "ephemeral-storage") else f"{amount:f}"

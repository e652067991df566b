"""What the nodes of a cluster offer engines, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...api.data_spec import Transfer
from ...plan import engine
from ..facts import Body, ClusterFacts
from ..findings import Finding, error, info, warning
from .placement import amounts, usable

_POPULATE = (5, 14)
"""Kernel from which vLLM can fill its L1 before use."""
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_PRODUCT = "nvidia.com/gpu.product"
_PRESENT = "nvidia.com/gpu.present"
_BEHIND = 3
"""https://kubernetes.io/releases/version-skew-policy/"""
_APART = 5
_LEASE = Transfer().lease
"""For which prefill keeps KV by default, by its own clock; decode looks at its own."""


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Findings about the nodes of a cluster; none where they may not be read."""
    yield from _clocks(facts)
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
    yield from _products(with_devices)
    newest = _minor(facts.version)
    for node in ready:
        yield from _node(node)
        yield from _plugin(node)
        yield from _kubelet(node, newest)


def _clocks(facts: ClusterFacts) -> Iterator[Finding]:
    if len(facts.clocks) < 2:
        return
    first, last = (sorted(facts.clocks, key=lambda name: facts.clocks[name])[at] for at in (0, -1))
    apart = facts.clocks[last] - facts.clocks[first]
    if apart > _APART:
        make = error if apart > _LEASE.seconds else warning
        yield make(
            "clocks-differ",
            f"node {last}",
            f"its clock is {apart:.0f} s ahead of that of node {first}",
            why=f"decode judges a lease ({_LEASE} by default) by its clock: ahead, it refuses KV that is kept; "
            "behind, it may read blocks that prefill has reused",
            fix="let chrony or systemd-timesyncd set the time of all nodes from one source",
        )


def _products(with_devices: Sequence[Body]) -> Iterator[Finding]:
    kinds = {str(name) for node in with_devices if (name := _labels(node).get(_PRODUCT))}
    if len(kinds) > 1:
        yield warning(
            "gpus-differ",
            "nodes",
            f"their GPUs are of {len(kinds)} kinds: {', '.join(sorted(kinds))}",
            why="attention backends may differ between them, and vLLM's handshake refuses that",
            fix=f"choose one by template.spec.nodeSelector[{_PRODUCT}] in both roles",
        )


def _plugin(node: Body) -> Iterator[Finding]:
    """Findings about devices that a node has and does not give away."""
    where = f"node {node['metadata']['name']}"
    status = node.get("status") or {}
    there, given = amounts(status.get("capacity") or {}), amounts(status.get("allocatable") or {})
    for name, amount in there.items():
        if (engine.names_device(name) or "rdma" in name) and given.get(name, Decimal(0)) < amount:
            yield warning(
                "devices-unhealthy",
                where,
                f"{given.get(name, Decimal(0)):f} of its {amount:f} {name} can be had",
                why="the device plugin calls the rest unhealthy: pods that need them stay Pending",
                fix="the plugin's log on that node and `nvidia-smi` or `dmesg` (Xid) there say why; a reset of the "
                "device or a restart of the node brings it back",
            )
    if _labels(node).get(_PRESENT) == "true" and not any(map(engine.names_device, there)):
        yield error(
            "device-plugin",
            where,
            f"its label {_PRESENT} says that it has GPUs, and it offers none",
            why="pods that ask for one are never placed there",
            fix="the device plugin does not run there: `kubectl get pods -A -o wide` of that node, then its log; "
            "with the GPU operator also the driver's and the toolkit's pods",
        )


def _kubelet(node: Body, newest: int | None) -> Iterator[Finding]:
    own = _minor(str(_info(node).get("kubeletVersion", "")))
    if own is not None and newest is not None and newest - own > _BEHIND:
        yield warning(
            "kubelet-old",
            f"node {node['metadata']['name']}",
            f"its kubelet is of {_info(node)['kubeletVersion']}",
            why=f"Kubernetes supports kubelets of up to {_BEHIND} minor versions before the apiserver's",
            fix="upgrade the node",
        )


def _minor(version: str) -> int | None:
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def _labels(node: Body) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node["metadata"].get("labels") or {}
    return found


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


def _resources(node: Body) -> list[str]:
    found = amounts((node.get("status") or {}).get("allocatable") or {})
    return [name for name, amount in found.items() if amount > 0]


def _info(node: Body) -> dict[str, Any]:
    return (node.get("status") or {}).get("nodeInfo") or {}

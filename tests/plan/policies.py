"""What NetworkPolicies allow, decided as the API defines it: for tests that ask who reaches whom.

A pod that no policy of a direction selects is open in that direction. One that a policy selects is reached, or reaches
out, only as some rule of some policy says: policies add up, and none forbids. A connection needs both ends' consent.
What comes from a pod's own node (the kubelet's probes) is always let in, and what is on a host's network belongs to
its node: policies neither cover it nor select it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Policy = Mapping[str, Any]
Protocol = Literal["TCP", "UDP"]
_NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Pod:
    """A pod on the cluster's network. ``ports`` are its named ports."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Address:
    """What is no pod: a machine outside the cluster, a node, or a pod on a node's network."""

    name: str
    ip: str


End = Pod | Address


@dataclass(frozen=True)
class Cluster:
    """The policies of a cluster. A namespace has the label of its name and no other."""

    policies: tuple[Policy, ...]

    def leaves(self, source: End, target: End, port: int, protocol: Protocol = "TCP") -> bool:
        """Whether the policies of ``source`` let it open a connection to ``port`` of ``target``."""
        return not isinstance(source, Pod) or self._passes("Egress", source, target, port, protocol)

    def enters(self, source: End, target: End, port: int, protocol: Protocol = "TCP") -> bool:
        """Whether the policies of ``target`` let a connection of ``source`` to ``port`` in."""
        return not isinstance(target, Pod) or self._passes("Ingress", target, source, port, protocol)

    def _passes(self, direction: str, of: Pod, other: End, port: int, protocol: Protocol) -> bool:
        bound = [policy for policy in self.policies if _covers(policy, of, direction)]
        if not bound:
            return True
        target = of if direction == "Ingress" else other
        rules = (rule for policy in bound for rule in policy["spec"].get(direction.lower()) or ())
        return any(
            _from(rule.get("from" if direction == "Ingress" else "to"), policy_namespace=of.namespace, other=other)
            and _ports(rule.get("ports"), target, port, protocol)
            for rule in rules
        )


def _covers(policy: Policy, pod: Pod, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
    same = policy["metadata"].get("namespace", "default") == pod.namespace
    return same and direction in types and selects(spec.get("podSelector") or {}, pod.labels)


def _from(peers: Iterable[Mapping[str, Any]] | None, *, policy_namespace: str, other: End) -> bool:
    listed = list(peers or ())
    return not listed or any(_peer(peer, policy_namespace, other) for peer in listed)


def _peer(peer: Mapping[str, Any], policy_namespace: str, other: End) -> bool:
    if unknown := peer.keys() - {"ipBlock", "podSelector", "namespaceSelector"}:
        raise ValueError(f"unknown fields of a peer: {sorted(unknown)}")
    if "ipBlock" in peer:
        # Addresses of pods are left to selectors: the API does not promise which address a block is compared with.
        if not isinstance(other, Address):
            return False
        block, ip = peer["ipBlock"], ipaddress.ip_address(other.ip)
        excepted = any(ip in ipaddress.ip_network(part) for part in block.get("except", ()))
        return ip in ipaddress.ip_network(block["cidr"]) and not excepted
    if not isinstance(other, Pod):
        return False
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], {_NAMESPACE: other.namespace}):
            return False
    elif other.namespace != policy_namespace:
        return False
    return "podSelector" not in peer or selects(peer["podSelector"], other.labels)


def _ports(ports: Iterable[Mapping[str, Any]] | None, target: End, port: int, protocol: Protocol) -> bool:
    listed = list(ports or ())
    return not listed or any(_port(entry, target, port, protocol) for entry in listed)


def _port(entry: Mapping[str, Any], target: End, port: int, protocol: Protocol) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    first = entry.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return isinstance(target, Pod) and target.ports.get(first) == port
    return bool(first <= port <= entry.get("endPort", first))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes ``labels``; an empty one takes all."""
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise ValueError(f"unknown fields of a selector: {sorted(unknown)}")
    equal = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return equal and all(_holds(term, labels) for term in selector.get("matchExpressions") or ())


def _holds(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(term["key"]), term["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is (operator == "Exists")
    if operator not in ("In", "NotIn"):
        raise ValueError(f"unknown operator {operator!r}")
    return (value in term["values"]) is (operator == "In")


def pods(manifests: Iterable[Mapping[str, Any]]) -> list[End]:
    """One pod of each workload of ``manifests``; one that is on its host's network is an address."""
    made: list[End] = []
    for number, obj in enumerate(o for o in manifests if o["kind"] in ("Deployment", "StatefulSet")):
        template, name = obj["spec"]["template"], f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        if template["spec"].get("hostNetwork"):
            made.append(Address(name, f"10.200.0.{number + 1}"))
            continue
        declared = [port for container in template["spec"]["containers"] for port in container.get("ports", ())]
        named = {port["name"]: port["containerPort"] for port in declared if "name" in port}
        made.append(Pod(name, obj["metadata"]["namespace"], template["metadata"]["labels"], named))
    return made

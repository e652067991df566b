"""The checks: pure functions from facts to findings. None of them imports a client."""

from __future__ import annotations

from ..facts import ClusterFacts, Live, ObjectFacts, ServiceFacts
from ..facts_machine import MachineFacts
from ..findings import Finding, ordered


def of_object(facts: ObjectFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with one object, and with what runs for it where it is in a cluster."""
    from . import counters, live, namespace, operators, placement, pods, spec, tampering

    found = [] if facts.live is None else [*operators.of_object(facts, facts.live)]
    found += spec.findings(facts)
    if facts.live is not None:
        for part in (live, namespace, pods, tampering, placement, counters):
            found += part.findings(facts, facts.live)
    return ordered(found)


def of_service(facts: ServiceFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with a service on this machine."""
    from ...plan import labels
    from . import counters, service

    pods = tuple({"metadata": {"name": pod.name, "labels": {labels.ROLE: pod.role}}} for pod in facts.pods)
    status = {"engine": {"version": facts.version}} if facts.version else {}
    live = Live(body={"status": status}, pods=pods, engines=facts.engines, disk=facts.disk)
    counted = counters.findings(ObjectFacts(facts.name, "", None, None), live)
    return ordered((*service.findings(facts), *counted))


def of_cluster(facts: ClusterFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with one cluster."""
    from . import cluster

    return ordered(cluster.findings(facts))


def of_machine(facts: MachineFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with this machine."""
    from . import machine

    return ordered(machine.findings(facts))

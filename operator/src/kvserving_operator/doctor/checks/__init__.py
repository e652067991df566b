"""The checks: pure functions from facts to findings. None of them imports a client."""

from __future__ import annotations

from ..facts import ClusterFacts, MachineFacts, ObjectFacts
from ..findings import Finding, ordered


def of_object(facts: ObjectFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with one object, and with what runs for it where it is in a cluster."""
    from . import counters, live, placement, pods, spec, tampering

    found = [*spec.findings(facts)]
    if facts.live is not None:
        for check in (live.findings, pods.findings, tampering.findings, placement.findings, counters.findings):
            found += check(facts, facts.live)
    return ordered(found)


def of_cluster(facts: ClusterFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with one cluster."""
    from . import cluster

    return ordered(cluster.findings(facts))


def of_machine(facts: MachineFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with this machine."""
    from . import machine

    return ordered(machine.findings(facts))

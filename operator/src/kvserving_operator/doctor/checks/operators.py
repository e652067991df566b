"""Which operators a cluster has, whether one looks after an object, and whether they are in each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ... import __version__
from ...control.permissions import NAME
from ...engines.catalog import tag_version
from ..facts import Body, ClusterFacts, Live, ObjectFacts
from ..findings import Finding, error, warning

SELECTOR = f"app.kubernetes.io/name={NAME}"
"""Of the operators' Deployments and their pods."""
_INSTALL = "`helm install` of charts/kvserving-operator, or `kubectl apply --server-side -f deploy/install.yaml`"


def of_object(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Whether an operator runs that looks after the object."""
    if runs(live, facts.namespace) is not False:
        return
    assert live.operators is not None
    ours = [body for body in live.operators.deployments if _serves(body, facts.namespace)]
    others = [body for body in live.operators.deployments if body not in ours]
    waits = "what runs goes on; changes of the spec, repairs and proofs wait"
    for body in ours:
        stopped = (body.get("spec") or {}).get("replicas") == 0
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        yield error(
            "operator-down",
            facts.name,
            f"no operator runs: {deployment(body)} "
            + ("is scaled to no pods" if stopped else "has no pod that is available"),
            why=waits,
            fix=f"`kubectl scale deployment/{name} -n {namespace} --replicas=2`, and the value replicas in the chart"
            if stopped
            else f"`kubectl describe pods -n {namespace} -l {SELECTOR}` and `kubectl logs deployment/{name} "
            f"-n {namespace}` say why",
        )
    if not ours:
        elsewhere = ", ".join(f"{deployment(body)} serves {', '.join(served(body))} alone" for body in others)
        outside = ", unless one runs outside of the cluster" if live.operators.held is None else ""
        yield error(
            "operator-missing",
            facts.name,
            f"no operator of namespace {facts.namespace} runs"
            + (f": {elsewhere}" if others else ": the cluster has no Deployment of one")
            + outside,
            why=waits,
            fix=f"add {facts.namespace} to the value namespaces of one of them, or install one for it"
            if others
            else _INSTALL,
        )


def runs(live: Live, namespace: str) -> bool | None:
    """Whether an operator looks after objects of ``namespace``; ``None`` where that may not be known."""
    known = live.operators
    if known is None:
        return None
    if any(
        _serves(body, namespace) and (body.get("status") or {}).get("availableReplicas") for body in known.deployments
    ):
        return True
    # Whoever holds a Lease writes, also from outside of the cluster; which namespaces that one serves is not known.
    of_others = {_lease(body) for body in known.deployments if not _serves(body, namespace)}
    return any(lease not in of_others for lease in known.held or ())


def of_cluster(facts: ClusterFacts) -> Iterator[Finding]:
    """Findings about the operators of a cluster."""
    if facts.operators is None:
        return
    if not facts.operators:
        yield warning(
            "operator-missing",
            facts.server,
            "no Deployment of the operator is there",
            why="objects are stored and nothing is made for them, unless an operator runs outside of the cluster",
            fix=_INSTALL,
        )
    for body in facts.operators:
        where, status = deployment(body), body.get("status") or {}
        if not status.get("availableReplicas"):
            yield error(
                "operator-down",
                where,
                "none of its pods is available",
                why="what runs goes on; changes, repairs and proofs wait",
                fix="`kubectl logs` of its pods: the last lines name a missing permission, CRD or Lease",
            )
        version = _runs(body)
        if version and version != __version__:
            yield warning(
                "operator-version",
                where,
                f"it is of version {version}, this command of {__version__}",
                why="plans and explanations of this command may differ from what the operator does",
                fix=f"use version {version} of the command, or upgrade the operator",
            )
    everywhere = [deployment(body) for body in facts.operators if not _arguments(body, "--namespace")]
    if len(everywhere) > 1:
        yield error(
            "several-operators",
            facts.server,
            f"{len(everywhere)} operators serve all namespaces: {', '.join(everywhere)}",
            why="they undo each other's changes; a Lease keeps replicas of one release apart, not releases",
            fix="keep one, or give each its namespaces (--namespace)",
        )


def deployment(body: Body) -> str:
    """An operator's Deployment as findings name it."""
    return f"Deployment {body['metadata']['namespace']}/{body['metadata']['name']}"


def _runs(body: Body) -> str | None:
    """The version that a Deployment runs: its image's, as whoever sets another image leaves the label; else that."""
    pod: dict[str, Any] = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    tags = (tag_version(str(container.get("image") or "")) for container in pod.get("containers") or ())
    label: str | None = (body["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    return next(filter(None, tags), label)


def _arguments(body: Body, flag: str) -> list[str]:
    """Values of a flag in the containers of a Deployment."""
    pod: dict[str, Any] = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    args = [str(arg) for container in pod.get("containers") or () for arg in container.get("args") or ()]
    return [arg.partition("=")[2] for arg in args if arg.startswith(f"{flag}=")]


def served(body: Body) -> tuple[str, ...]:
    """Namespaces that an operator's Deployment serves; all when empty."""
    return tuple(_arguments(body, "--namespace"))


def _serves(body: Body, namespace: str) -> bool:
    return not served(body) or namespace in served(body)


def _lease(body: Body) -> tuple[str, str]:
    return str(body["metadata"]["namespace"]), next(iter(_arguments(body, "--lease-name")), NAME)

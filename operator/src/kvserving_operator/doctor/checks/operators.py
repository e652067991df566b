"""Which operators a cluster has, whether one looks after an object, and whether they are in each other's way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ... import __version__
from ...api.v1alpha1 import API_VERSION, KIND
from ...control.permissions import NAME
from ...control.pods import pod_state
from ...engines.catalog import tag_version
from ...listing import some
from ..facts import Body, ClusterFacts, Live, ObjectFacts
from ..findings import Finding, error, warning
from . import operator_pods

SELECTOR = f"app.kubernetes.io/name={NAME}"
"""Of the operators' Deployments and their pods."""
IMAGE_FAULTS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
_ROLLED_OUT = "deployment.kubernetes.io/revision"
_INSTALL = "`helm install` of charts/kvserving-operator, or `kubectl apply --server-side -f deploy/install.yaml`"


def of_object(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Whether an operator runs that looks after the object."""
    for both, finding in _rivals(live.operators.deployments if live.operators is not None else (), facts.name, ()):
        if not both or facts.namespace in both:
            yield finding
    if runs(live, facts.namespace) is not False:
        return
    assert live.operators is not None
    ours = [body for body in live.operators.deployments if serves(body, facts.namespace)]
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
        serves(body, namespace) and (body.get("status") or {}).get("availableReplicas") for body in known.deployments
    ):
        return True
    # Whoever holds a Lease writes, also from outside of the cluster; which namespaces that one serves is not known.
    of_others = {_lease(body) for body in known.deployments if not serves(body, namespace)}
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
        pods = [pod for pod in facts.pods or () if _of(pod, body)]
        if facts.kinds is not None and (API_VERSION, KIND) not in facts.kinds:
            yield from _without_crd(body, pods)
        else:
            yield from _deployed(body, pods, known=facts.pods is not None)
        yield from operator_pods.restarted(deployment(body), pods)
    namespaces = {name.partition("/")[0] for names in facts.needs.values() for name in names}
    for _, finding in _rivals(facts.operators, facts.server, namespaces):
        yield finding


def _without_crd(body: Body, pods: Sequence[Body]) -> Iterator[Finding]:
    """What is told of an operator in a cluster without the CRD: that is why it does not run, and no upgrade is."""
    metadata = body["metadata"]
    if (body.get("status") or {}).get("availableReplicas"):
        return
    stuck = operator_pods.stuck(pods)
    yield error(
        "operator-down",
        deployment(body),
        f"none of its pods is available: the CRD is missing{stuck and '; '}{stuck}",
        why="it does not start without the CRD; objects that there were went with it, and all that was made for them",
        fix=f"apply the CRD, as crd-missing says, and the objects anew; `kubectl rollout restart "
        f"deployment/{metadata['name']} -n {metadata['namespace']}` spares the wait for the next attempt",
    )


def _deployed(body: Body, pods: Sequence[Body], *, known: bool) -> Iterator[Finding]:
    """Findings about one operator: whether it runs, whether its new pods start, and of which version it is."""
    where, status = deployment(body), body.get("status") or {}
    stuck = _stuck(body, pods, known=known)
    if not status.get("availableReplicas"):
        yield error(
            "operator-down",
            where,
            f"none of its pods is available{stuck and ': '}{stuck}",
            why="what runs goes on; changes, repairs and proofs wait",
            fix=_restart(body, pods)
            if stuck
            else "`kubectl logs` of its pods: the last lines name a missing permission, CRD or Lease",
        )
    elif stuck:
        former = [state.name for state in map(pod_state, pods) if state.ready]
        yield warning(
            "operator-upgrade-stuck",
            where,
            f"its new pods do not start: {stuck}" + (f"; {some(former)} of before still run" if former else ""),
            why="the operator of before works on; what the upgrade was to bring does not come, and where the last of "
            "its pods moves, none is left",
            fix=_restart(body, pods),
        )
    for version in _running(body, pods):
        if version != __version__:
            yield warning(
                "operator-version",
                where,
                f"it is of version {version}, this command of {__version__}",
                why="plans and explanations of this command may differ from what the operator does",
                fix=f"use version {version} of the command, or upgrade the operator",
            )


def _of(pod: Body, body: Body) -> bool:
    wanted = ((body.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    marks = pod["metadata"].get("labels") or {}
    return pod["metadata"].get("namespace") == body["metadata"]["namespace"] and wanted.items() <= marks.items()


def _stuck(body: Body, pods: Sequence[Body], *, known: bool) -> str:
    """Which pod does not start and why; that a rollout does not end, where pods may not be read; else empty."""
    if found := operator_pods.stuck(pods):
        return found
    conditions = (body.get("status") or {}).get("conditions") or ()
    late = next((c for c in conditions if c.get("type") == "Progressing" and c.get("status") == "False"), None)
    return "" if known or late is None else f"{late.get('reason')}: {late.get('message')}"


def _restart(body: Body, pods: Sequence[Body]) -> str:
    """The way out of pods of an operator that do not start."""
    namespace, state = body["metadata"]["namespace"], operator_pods.failing(pods)
    back = _back(body)
    if state is None:
        return f"`kubectl describe pods -n {namespace} -l {SELECTOR}` says why{back}"
    if state.failing in IMAGE_FAULTS:
        right = change(body, "--set image.repository=REPOSITORY,image.tag=TAG", "with another image")
        return f"name an image that there is, and imagePullSecrets where its registry wants some: {right}{back}"
    if state.unschedulable and not state.failing:
        return f"give the cluster room for one more pod of the operator{back}"
    log = f"`kubectl logs {state.name} -n {namespace} --previous` says why"
    return f"{log}; {known}" if (known := operator_pods.way_out(state)) else f"{log}{back}"


def _back(body: Body) -> str:
    """What takes an upgrade back, after what else is to be done; empty where there has been none."""
    metadata = body["metadata"]
    marks = metadata.get("annotations") or {}
    if marks.get(_ROLLED_OUT) == "1":
        return ""
    if release := marks.get("meta.helm.sh/release-name"):
        return f"; if an upgrade brought it, `helm rollback {release} -n {metadata['namespace']}` takes that back"
    undo = f"`kubectl rollout undo deployment/{metadata['name']} -n {metadata['namespace']}`"
    return f"; if an upgrade brought it, {undo} takes that back"


def _running(body: Body, pods: Sequence[Body]) -> list[str]:
    """The versions of its pods that are ready; that of its template where none is, or they may not be read."""
    ready = [pod for pod in pods if pod_state(pod).ready]
    return sorted({version for pod in ready if (version := _of_pod(pod)) is not None} or filter(None, [_runs(body)]))


def _of_pod(pod: Body) -> str | None:
    return _version(pod.get("spec") or {}, pod["metadata"])


def _rivals(deployments: Sequence[Body], where: str, objects: Iterable[str]) -> Iterator[tuple[set[str], Finding]]:
    """Pairs of operators that write in the same namespaces, and in which; in all where none is named.

    ``objects`` are namespaces that have objects, as far as that is known.
    """
    active = [body for body in deployments if (body.get("spec") or {}).get("replicas") != 0]
    for one, other in combinations(sorted(active, key=lambda body: len(served(body))), 2):
        here, there = set(served(one)), set(served(other))
        both = here & there if here and there else here | there
        if here and not both:
            continue
        told = (f"{deployment(body)} serves {', '.join(served(body)) or 'all namespaces'}" for body in (one, other))
        yield (
            both,
            error(
                "several-operators",
                where,
                f"{' and '.join(told)}: both write in {_some(both)}",
                why="they undo each other's changes without end, network policies among them; a Lease keeps replicas "
                "of one release apart, not releases",
                fix=_parted(one, other, set(objects)),
            ),
        )


def _some(namespaces: set[str]) -> str:
    return f"namespace {', '.join(sorted(namespaces))}" if len(namespaces) == 1 else some(sorted(namespaces)) or "all"


def _parted(one: Body, other: Body, objects: set[str]) -> str:
    """The way out for two operators of which the first serves all namespaces, where one does."""
    here, there = set(served(one)), set(served(other))
    if not here and there:
        rest = objects - there
        named = f"; {', '.join(sorted(rest))} have objects now" if len(rest) > 1 else ""
        return f"give the first the namespaces that the other does not serve: {_serving(one, rest)}{named}"
    if wide := next((body for body in (other, one) if set(served(body)) - here & there), None):
        return f"leave {_some(here & there)} to one of them: {_serving(wide, set(served(wide)) - here & there)}"
    return f"remove one of them, or give each namespaces of its own: {_serving(one, set())}, {_serving(other, set())}"


def _serving(body: Body, namespaces: set[str]) -> str:
    """The command after which an operator serves ``namespaces``, to be filled in where there are none."""
    names = sorted(namespaces) or ["NAMESPACE"]
    return change(
        body,
        f"--set 'namespaces={{{','.join(names)}}}'",
        f"with {' and '.join(f'--namespace={name}' for name in names)} in its args",
    )


def change(body: Body, values: str, fields: str) -> str:
    """The command that changes an operator: ``values`` where helm installed it, else ``fields`` of its Deployment."""
    metadata = body["metadata"]
    release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
    if release:
        return f"`helm upgrade {release} charts/kvserving-operator -n {metadata['namespace']} --reuse-values {values}`"
    return f"`kubectl edit deployment/{metadata['name']} -n {metadata['namespace']}`, {fields}"


def deployment(body: Body) -> str:
    """An operator's Deployment as findings name it."""
    return f"Deployment {body['metadata']['namespace']}/{body['metadata']['name']}"


def _runs(body: Body) -> str | None:
    """The version that a Deployment is to run."""
    return _version(((body.get("spec") or {}).get("template") or {}).get("spec") or {}, body["metadata"])


def _version(pod: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The version of a pod: its image's, as whoever sets another image leaves the label; else that."""
    tags = (tag_version(str(container.get("image") or "")) for container in pod.get("containers") or ())
    label: str | None = (metadata.get("labels") or {}).get("app.kubernetes.io/version")
    return next(filter(None, tags), label)


def _arguments(body: Body, flag: str) -> list[str]:
    """Values of a flag in the containers of a Deployment."""
    pod: dict[str, Any] = ((body.get("spec") or {}).get("template") or {}).get("spec") or {}
    args = [str(arg) for container in pod.get("containers") or () for arg in container.get("args") or ()]
    return [arg.partition("=")[2] for arg in args if arg.startswith(f"{flag}=")]


def served(body: Body) -> tuple[str, ...]:
    """Namespaces that an operator's Deployment serves; all when empty."""
    return tuple(_arguments(body, "--namespace"))


def serves(body: Body, namespace: str) -> bool:
    """Whether an operator's Deployment serves a namespace."""
    return not served(body) or namespace in served(body)


def _lease(body: Body) -> tuple[str, str]:
    return str(body["metadata"]["namespace"]), next(iter(_arguments(body, "--lease-name")), NAME)

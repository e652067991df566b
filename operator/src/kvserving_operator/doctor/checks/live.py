"""What the cluster says of one object: its status, children, Secrets, claims and events."""

from __future__ import annotations

from collections.abc import Iterator

from ...control.conditions import LEAVES
from ...control.permissions import CHILDREN
from ...plan import labels
from ...plan.secret_refs import PULL_KEY, PULL_TYPE, SecretNeed, needed
from ...reasons import Reason
from ..facts import Live, ObjectFacts, name_of
from ..findings import Finding, Severity, error, info, warning
from . import claims, events, operators, pods, room, schema

_PASSING = frozenset(
    {
        *(Reason.STARTING, Reason.LOADING_MODEL, Reason.VERIFYING, Reason.ROLLING_OUT),
        *(Reason.WAITING_FOR_DELETION, Reason.SUSPENDED, Reason.NOTHING_TO_DO, Reason.CONFLICT),
    }
)
_COSTS = {
    "ConfigValid": "nothing is changed while the spec is invalid",
    "PrefillReady": "prompts wait for the engines that are left, or fail",
    "DecodeReady": "answers wait for the engines that are left, or fail",
    "RouterReady": "clients reach fewer routers, or none",
    "StorageReady": "engines serve without the shared store, at the price of computing",
    "TransferVerified": "decode computes prompts that prefill has computed already, or requests fail",
    "ScalingReady": "the number of engines does not follow the load",
}
_START = "start an operator, as the finding about it says: nothing is made or changed for the object until then"
_OF_A_SET = ("PrefillReady", "DecodeReady", "RouterReady", "TransferVerified")
_OTHER_SERVES = ("Available", "True", Reason.ROLLING_OUT)
_SERVED = "the former revision serves meanwhile; what was changed waits"
_FIXES = {
    Reason.CLAIM_MISSING: "create the claim that the message names in the object's namespace",
    Reason.CLAIM_UNBOUND: "`kubectl describe pvc` of the claim says why; name a storage class that makes such volumes",
    Reason.QUOTA_EXCEEDED: "raise the quota of the namespace or lower the spec",
    Reason.POD_FAILING: "`kubectl logs` of the pod with --previous says why; the findings about pods below as well",
    Reason.POD_LOST: "`kubectl get events` says why it went while they are kept; the one in its place is coming up",
    Reason.RECOMPUTING_KV: "`kubectl kvserving verify` names the leg; compare the engines' versions and connectors",
    Reason.HANDSHAKE_INCOMPATIBLE: "run one image, KV type and hybrid setting in both roles: leave them to the object",
    Reason.TRANSFER_FAILED: "look for NIXL's error in the log of the decode engine: peer, network, memlock",
    Reason.PROBE_FAILED: "look into the log of the engine that the message names",
    Reason.ENGINE_UNREACHABLE: "let the operator's namespace reach the engines' HTTP port (network policies, CNI)",
    Reason.ENGINE_HUNG: "the operator replaces the engine, or says why not; keep its log, which goes with the pod",
    Reason.PEER_STALE: "the operator replaces the engine, or says why not; keep its log, which goes with the pod",
    Reason.L2_UNREACHABLE: "`kubectl describe pod` of the store, and its log with --previous, say why",
    Reason.METRICS_UNAVAILABLE: "let Prometheus scrape the engines, and give HPA an adapter for custom metrics",
    Reason.SCALER_FAILED: "`kubectl describe` the scaler that the message names",
    Reason.SECRET_MISSING: "create the Secret with the key that the message names",
    Reason.OWNED_BY_OTHER: "rename the object, or remove the other one",
    Reason.ROLLOUT_FAILED: "`kubectl describe` a pod of the new revision, and set the former spec again meanwhile",
    Reason.FORBIDDEN: "grant the operator the verb: `kvserving doctor --cluster` lists those that it lacks",
    Reason.KIND_MISSING: "install the CRD of that kind, or leave out the field that needs it",
    Reason.APPLY_FAILED: "the message names the field or the policy that refuses it",
    Reason.INVALID_SPEC: "change the fields as the message says",
}


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about one object in its cluster, its pods apart."""
    for unread in live.unread:
        yield info("not-looked-at", unread.what, unread.reason, why="what is wrong there is not told", fix=unread.fix)
    yield from schema.findings(live.schema)
    yield from _status(facts, live)
    yield from _conditions(facts, live)
    if facts.plan is not None:
        yield from _children(facts, live)
        yield from _secrets(facts, live)
    yield from claims.findings(facts, live)
    yield from events.findings(live)


def _status(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    seen = live.status.get("observedGeneration")
    if seen is None:
        yield error(
            "not-reconciled",
            facts.name,
            "it has no status: no operator has looked at it",
            why="nothing is made for the object",
            fix=_START
            if operators.runs(live, facts.namespace) is False
            else "`kvserving doctor --cluster` says whether an operator runs; one that serves single namespaces names "
            "them in --namespace",
        )
    elif live.behind:
        yield warning(
            "status-behind",
            facts.name,
            f"its status is of generation {seen}, its spec of {live.generation}",
            why="what is told below may be about the former spec; what is there is compared with the plan later",
            fix=_START
            if operators.runs(live, facts.namespace) is False
            else "wait a few seconds; if it stays, look into the operator's log and its /readyz",
        )


def _awaited(facts: ObjectFacts, live: Live) -> str:
    """What has to come before anything that the operator makes; empty where nothing has."""
    if operators.runs(live, facts.namespace) is False:
        return _START
    return f"the operator has not taken up generation {live.generation} of the spec yet: wait" if live.behind else ""


def _conditions(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    conditions = live.status.get("conditions") or ()
    # True while a set comes up: another one takes the requests.
    served = any((c.get("type"), c.get("status"), c.get("reason")) == _OTHER_SERVES for c in conditions)
    for condition in conditions:
        kind, status = str(condition.get("type")), condition.get("status")
        if kind not in (*LEAVES, "ScalingReady") or status == "True":
            continue
        reason = str(condition.get("reason"))
        severity = Severity.INFO if reason in _PASSING or status == "Unknown" else Severity.ERROR
        known = Reason(reason) if reason in tuple(Reason) else None
        message = str(condition.get("message") or "")
        fix = _way_out(facts, live, kind, known, message) if known is not None else ""
        yield Finding(
            severity,
            f"condition-{kind}",
            f"status.conditions[{kind}]",
            f"{reason}: {message}",
            _SERVED if served and kind in _OF_A_SET else _COSTS[kind],
            fix or ("wait" if severity is Severity.INFO else "the operator's reference explains the reason"),
        )


def _way_out(facts: ObjectFacts, live: Live, kind: str, reason: Reason, message: str) -> str:
    if reason is Reason.SUSPENDED:
        stopped = (live.body.get("spec") or {}).get("suspend")
        return "set spec.suspend to false" if stopped else "raise the replicas of the role that has none"
    if reason is Reason.INSUFFICIENT_CAPACITY:
        return room.of_condition(facts, kind, message)
    return (pods.way_out(facts, message) if reason is Reason.POD_FAILING else "") or _FIXES.get(reason, "")


def _children(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    assert facts.plan is not None
    left_out = {resource.kind for resource in CHILDREN if resource.optional} | live.hidden
    there = {name_of(child) for child in live.children}
    uid = (live.body.get("metadata") or {}).get("uid")
    for manifest in facts.plan.objects:
        if manifest["kind"] in left_out or not live.status:
            continue
        name = name_of(manifest)
        if name not in there:
            policy = manifest["kind"] == "NetworkPolicy"
            yield error(
                "network-policy-missing" if policy else "child-missing",
                name,
                "it is planned, and not there",
                why="every pod of the cluster reaches the engines' side channels, which have no authentication"
                if policy
                else "the service is incomplete",
                fix=_awaited(facts, live) or "the conditions say why the operator cannot make it",
            )
    for child in live.children:
        owners = (child.get("metadata") or {}).get("ownerReferences") or ()
        if uid and not any(owner.get("uid") == uid for owner in owners):
            yield warning(
                "child-of-other",
                name_of(child),
                "it carries the object's label and is not its child",
                why="selectors by the label take it for a part of the service",
                fix=f"remove it, or its label {labels.NAME}",
            )


def _secrets(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    assert facts.plan is not None
    if live.secrets is None:
        return
    generated = {secret.name for secret in facts.plan.generated_secrets}
    for name, need in needed(facts.plan.objects).items():
        found = live.secrets.get(name)
        lacking = sorted(need.keys if found is None else need.keys - found.names | need.keys & found.empty)
        if found is not None and not lacking:
            continue
        yield error(
            "secret-missing" if found is None else "secret-key-missing",
            f"Secret {name}",
            "it does not exist" if found is None else f"it lacks or has nothing in: {', '.join(lacking)}",
            why="pods that need it do not start (CreateContainerConfigError, FailedMount, ImagePullBackOff)",
            fix=_awaited(facts, live) or "the operator makes it; delete one that lacks a key"
            if name in generated
            else _creation(name, facts.namespace, need),
        )


def _creation(name: str, namespace: str, need: SecretNeed) -> str:
    """The command that makes a Secret as pods need it."""
    command = f"kubectl create secret generic {name} -n {namespace}"
    if PULL_KEY in need.keys:
        # The kubelet pulls with no Secret of another type.
        command += f" --type={PULL_TYPE}"
    if not need.keys:
        return f"`{command} --from-file=FOLDER`, with the files that pods are to find in the volume"
    files = " ".join(f"--from-file={key}" for key in sorted(need.keys))
    return f"`{command} {files}`, with values in files so called"

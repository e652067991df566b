"""From what is known of an object to its conditions. Pure.

Leaves tell of one concern each; ``Ready`` is true when all leaves are. ``Reconciling`` and
``Stalled`` say the same in the words that kstatus (kubectl wait, GitOps tools) knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..plan import labels
from ..plan.secret_refs import needed
from ..plan.types import Manifest
from ..plan.workloads import ENGINES
from ..reasons import ENGINE_CONDITIONS, MENDS_ITSELF, WORKING, Reason
from ..redaction import redact
from . import asks, scaling, sets
from .causes import failure_of, why
from .claims import Claims, lacking
from .facts import Condition, Facts, serving_revisions, workload
from .failures import Problem, named
from .pods import PodState
from .refused_args import placed

TYPES: Mapping[str, str] = {
    "Ready": "The revision of this generation has the traffic, and those of ConfigValid, PrefillReady, DecodeReady, "
    "RouterReady, StorageReady and TransferVerified that apply are true: a request was served with transferred KV.",
    "Available": "A request can be served now, by this or the previous revision.",
    "Progressing": "The operator or the cluster is still working towards the spec.",
    "Degraded": "Something needs attention: a child cannot be made, pods fail or hang, or decodes recompute KV.",
    "ConfigValid": "The spec can be planned.",
    "PrefillReady": "All prefill engines are ready. Absent in aggregated mode.",
    "DecodeReady": "All decode engines are ready.",
    "RouterReady": "All routers are ready. Absent where the router is not the operator's.",
    "StorageReady": "Claims are made, and the L2 store that the operator deploys is ready, or there is none.",
    "TransferVerified": "A probe proved that KV moves from prefill to decode. Absent in aggregated mode.",
    "ScalingReady": "Scale targets and scalers are in place, and the scalers work. Absent without a scaler and "
    "while suspended. Ready may be True beside False here: the engines asked for last serve.",
    "Reconciling": "As Progressing, for kstatus.",
    "Stalled": "No progress without a change of the spec or by an administrator, for kstatus.",
}
"""Every type of condition, documented from here."""

LEAVES = ("ConfigValid", "PrefillReady", "DecodeReady", "RouterReady", "StorageReady", "TransferVerified")
_OF_ROLES = (*ENGINE_CONDITIONS, "RouterReady")

_STUCK = frozenset(
    (
        Reason.INVALID_SPEC,
        Reason.OWNED_BY_OTHER,
        Reason.APPLY_FAILED,
        Reason.FORBIDDEN,
        Reason.ROLLOUT_FAILED,
        Reason.INSUFFICIENT_CAPACITY,
        Reason.CLAIM_MISSING,
        Reason.CLAIM_UNBOUND,
        Reason.SECRET_MISSING,
        Reason.QUOTA_EXCEEDED,
    )
)


def conditions(facts: Facts) -> tuple[Condition, ...]:
    """Return all conditions that apply, in the order of ``TYPES``."""
    leaves = [found for found in (_leaf(name, facts) for name in LEAVES) if found is not None]
    causes = _causes(leaves)
    scaled = _scaling(facts)
    available = _available(facts)
    ready = _ready(facts, causes)
    degraded = _degraded(facts, leaves)
    progressing = _progressing(facts, causes)
    stalled = _stalled(facts, causes, degraded)
    if stalled.holds:
        progressing = Condition("Progressing", "False", stalled.reason, stalled.message)
    reconciling = Condition("Reconciling", progressing.status, progressing.reason, progressing.message)
    found = {
        condition.type: condition
        for condition in (ready, available, progressing, degraded, *leaves, *scaled, reconciling, stalled)
    }
    return tuple(found[name] for name in TYPES if name in found)


def _leaf(name: str, facts: Facts) -> Condition | None:
    match name:
        case "ConfigValid":
            return _config_valid(facts)
        case "PrefillReady":
            return _role(facts, name, "prefill") if facts.disaggregated else None
        case "DecodeReady":
            return _role(facts, name, "decode")
        case "RouterReady":
            return _role(facts, name, "router") if facts.routed else None
        case "StorageReady":
            return _storage(facts)
        case _:
            return _transfer(facts)


def _config_valid(facts: Facts) -> Condition:
    if not facts.faults:
        notes = "".join(f"; {notice}" for notice in (facts.plan.notices if facts.plan is not None else ()))
        return Condition("ConfigValid", "True", Reason.VALID, redact(f"the spec is valid{notes}"))
    more = f" (and {len(facts.faults) - 10} more)" if len(facts.faults) > 10 else ""
    message = "; ".join(str(fault) for fault in facts.faults[:10]) + more
    return Condition("ConfigValid", "False", Reason.INVALID_SPEC, message)


def _role(facts: Facts, name: str, role: str) -> Condition:
    def not_ready(reason: Reason, message: str) -> Condition:
        return Condition(name, "False", reason, message)

    child, blocked = workload(facts, role), _problem_of(facts, role)
    if facts.suspended:
        return not_ready(Reason.SUSPENDED, "spec.suspend stops all engines and routers")
    if blocked is not None:
        return not_ready(blocked.reason, blocked.message)
    if child is None or child.workload is None:
        return not_ready(Reason.STARTING, f"what makes the {role} pods is being created")
    state, ready = child.workload, facts.ready(child)
    wanted, exchanging = facts.wanted(role, state.replicas), facts.rollout is not None and facts.rollout.visible
    summary = f"{ready} of {wanted} {role} pods are ready"
    if role == "router" and exchanging and ready >= wanted:
        # More of them divide the traffic between the revisions.
        more = f"{ready} router pods are ready, of which {wanted} stay: more divide the traffic of two revisions"
        return Condition(name, "True", Reason.READY, more if ready > wanted else summary)
    if wanted == 0:
        return not_ready(Reason.SUSPENDED, f"no {role} pod is asked for")
    progress = state.condition("Progressing")
    if progress is not None and progress[1] == "DeploymentPaused" and state.updated < state.replicas:
        return not_ready(Reason.ROLLING_OUT, f"{summary}; spec.rollout.paused holds the rollout")
    former = max(0, state.total - state.updated)
    if state.current and not former and min(ready, state.updated, state.replicas) >= wanted:
        return Condition(name, "True", Reason.READY, summary)
    if not state.current:
        return not_ready(Reason.STARTING, f"{summary}, before the newest spec is taken up")
    if former:
        summary = f"{summary}, {former} of them of a former template" if ready else summary
    if state.replicas < wanted and ready >= state.replicas and facts.rollout is not None:
        return not_ready(facts.rollout.reason, f"{summary}: {facts.rollout.message}")
    members = (role, labels.worker(role))
    engines = any(pod.role == "decode" and pod.revision == child.revision for pod in facts.serving)
    ours = [pod for pod in facts.view.pods if pod.role in members and not pod.deleting]
    surge = exchanging and any(revision != facts.revision for revision in sets.revisions(facts.view))
    reason, detail = why(child, ours, claims=_claims(facts), engines=engines, surge=surge)
    detail = placed(facts.view.serving.spec, role, detail)
    if reason is Reason.LOADING_MODEL and (gone := facts.lost.get(role)):
        went = f"pod {', '.join(gone)} was deleted, and not by the operator"
        return not_ready(Reason.POD_LOST, f"{summary}: {went}; in its place: {detail}")
    return not_ready(reason, f"{summary}: {detail}" if detail else summary)


def _problem_of(facts: Facts, role: str) -> Problem | None:
    """Return the first problem with a child that carries the label of ``role``, or with a Secret that its pods need.

    Scalers have their own condition.
    """
    for manifest in facts.plan.objects if facts.plan is not None else ():
        if manifest["metadata"]["labels"].get(labels.ROLE) == role and manifest["kind"] not in scaling.KINDS:
            found = facts.problems.get((str(manifest["kind"]), manifest["metadata"]["name"]))
            if found is not None and not _optional(str(manifest["kind"]), found):
                return found
            for secret in needed((manifest,)):
                if (found := facts.problems.get(("Secret", secret))) is not None:
                    return found
    return None


def _optional(kind: str, found: Problem) -> bool:
    """Whether it is only a kind that clusters may lack; a kind that is always there is missed for a moment alone."""
    return _absent(found) and kind not in ENGINES


def _absent(found: Problem) -> bool:
    return found.reason is Reason.KIND_MISSING and not found.again


def _storage(facts: Facts) -> Condition:
    for (kind, name), found in sorted(facts.problems.items()):
        if kind == "PersistentVolumeClaim":
            return Condition("StorageReady", "False", found.reason, named(kind, name, found))
    if (unbound := _unbound(facts)) is not None:
        return unbound
    store = workload(facts, "store", ("StatefulSet",))
    planned = facts.plan is not None and any(m["kind"] == "StatefulSet" for m in facts.plan.objects)
    if store is None and not planned:
        return Condition("StorageReady", "True", Reason.NOTHING_TO_DO, "the operator deploys no store for this object")
    blocked = _problem_of(facts, "store")
    if blocked is not None:
        return Condition("StorageReady", "False", blocked.reason, blocked.message)
    if store is None or store.workload is None:
        return Condition("StorageReady", "False", Reason.STARTING, "the store's StatefulSet is being created")
    state, ready = store.workload, facts.ready(store)
    summary = f"{ready} of {state.replicas} store pods are ready"
    if state.current and ready >= state.replicas:
        return Condition("StorageReady", "True", Reason.READY, summary)
    pods = [pod for pod in facts.view.pods if pod.role == "store" and not pod.ready]
    failing = next((pod for pod in pods if pod.failing), None)
    if failing is not None:
        detail = f"{summary}: {failure_of(failing, 'store')}"
        return Condition("StorageReady", "False", Reason.POD_FAILING, detail)
    detail = next((f": {_held(pod)}" for pod in pods if pod.unschedulable or pod.last_end), "")
    if state.current and state.updated >= state.replicas and _role(facts, "DecodeReady", "decode").holds:
        # Engines of this spec serve, which takes longer than the first start of a store: it has gone.
        lost = f"{summary}: engines serve without it, at the price of computing{detail}"
        return Condition("StorageReady", "False", Reason.L2_UNREACHABLE, lost)
    return Condition("StorageReady", "False", Reason.STARTING, f"{summary}{detail}")


def _claims(facts: Facts) -> Claims:
    serving = facts.view.serving
    made = {child.name: child.claim for child in facts.view.owned() if child.claim is not None}
    return Claims(serving.key.name, serving.spec, made)


def _unbound(facts: Facts) -> Condition | None:
    """What is known of claims of the object without a volume, where pods wait for one.

    A class may wait for the first pod: a claim by itself does not tell whether it is at fault, its pods do.
    """
    claims = _claims(facts)
    waits = None
    for pod in facts.view.pods:
        mounted = tuple(name for name in pod.claims if name in claims.made and not claims.made[name].bound)
        if not mounted or not pod.unschedulable or pod.deleting:
            continue
        found = lacking(pod.name, pod.unschedulable, mounted, claims)
        if found is not None and found[0] is Reason.CLAIM_UNBOUND:
            return Condition("StorageReady", "False", *found)
        message = f"claim {mounted[0]} has no volume before pod {pod.name} has a node"
        waits = waits or Condition("StorageReady", "False", Reason.STARTING, message)
    return waits


def _held(pod: PodState) -> str:
    wants = f"; {asks.room('store', pod.unschedulable, {}, surge=False)}" if pod.unschedulable else ""
    return f"pod {pod.name}: {pod.unschedulable or pod.last_end}{wants}"


def _transfer(facts: Facts) -> Condition | None:
    if facts.transfer is None:
        return None
    return Condition("TransferVerified", facts.transfer.status, facts.transfer.reason, facts.transfer.message)


def _causes(leaves: Sequence[Condition]) -> list[Condition]:
    """The leaves that do not hold, but for those that only follow from others; engines that fail before what waits.

    Without engines routers are not ready, and without one of these no probe is made or succeeds.
    """
    unmet = [leaf for leaf in leaves if not leaf.holds]
    engines = [leaf for leaf in unmet if leaf.type in ENGINE_CONDITIONS]
    roles = [leaf for leaf in unmet if leaf.type in _OF_ROLES]

    def follows(leaf: Condition) -> bool:
        waits = leaf.type == "RouterReady" and leaf.reason in WORKING and bool(engines)
        return waits or (leaf.type == "TransferVerified" and bool(roles))

    def later(leaf: Condition) -> bool:
        fails = leaf.type in ENGINE_CONDITIONS and leaf.reason not in WORKING | {Reason.SUSPENDED}
        return leaf.type != "ConfigValid" and not fails

    return sorted((leaf for leaf in unmet if not follows(leaf)), key=later)


def _ready(facts: Facts, causes: Sequence[Condition]) -> Condition:
    if (failed := facts.failed) is not None:
        return replace(failed, type="Ready")
    waits = not causes or causes[0].reason in MENDS_ITSELF | {Reason.POD_FAILING}
    if waits and (blocked := _blocked(facts)) is not None:
        # What only takes its time does not help, and pods that fail may fail of it.
        return Condition("Ready", "False", *blocked)
    if causes:
        former = facts.plan is not None and any(r != facts.revision for r in serving_revisions(facts))
        reason = Reason.ROLLING_OUT if former and causes[0].reason in WORKING else causes[0].reason
        return Condition("Ready", "False", reason, f"{causes[0].type}: {causes[0].message}")
    for (kind, name), found in sorted(facts.problems.items()):
        # What runs may be ready, but it is not yet what this generation asks for.
        if not _optional(kind, found):
            return Condition("Ready", "False", found.reason, named(kind, name, found))
    if facts.rollout is not None and facts.rollout.traffic and facts.revision not in facts.rollout.traffic:
        # Who waits for Ready after a change waits for the change to serve.
        return Condition("Ready", "False", Reason.ROLLING_OUT, facts.rollout.message)
    proved = " and the transfer is verified" if facts.transfer is not None else ""
    return Condition("Ready", "True", Reason.READY, f"every role is ready{proved}")


def router_service(facts: Facts) -> Manifest | None:
    """The manifest of the Service that clients ask; ``None`` without one."""
    objects = facts.plan.objects if facts.plan is not None else ()
    services = (manifest for manifest in objects if manifest["kind"] == "Service")
    return next((m for m in services if m["metadata"]["labels"].get(labels.ROLE) == "router"), None)


def foreign_service(facts: Facts) -> Problem | None:
    """The problem with the router's Service where its name is taken: what answers there is someone else's."""
    service = router_service(facts)
    found = facts.problems.get(("Service", service["metadata"]["name"])) if service is not None else None
    return found if found is not None and found.reason is Reason.OWNED_BY_OTHER else None


def _available(facts: Facts) -> Condition:
    serving = serving_revisions(facts)
    if (foreign := foreign_service(facts)) is not None:
        return Condition("Available", "False", foreign.reason, foreign.message)
    if not serving:
        if facts.suspended:
            return Condition("Available", "False", Reason.SUSPENDED, "spec.suspend stops all engines and routers")
        return Condition("Available", "False", Reason.STARTING, "no revision has a ready pod of every role")
    if facts.revision not in serving:
        message = f"revision {serving[0][:8]} serves while {facts.revision[:8]} comes up"
        return Condition("Available", "True", Reason.ROLLING_OUT, message)
    return Condition("Available", "True", Reason.READY, "requests can be served")


def _degraded(facts: Facts, leaves: Sequence[Condition]) -> Condition:
    if (failed := facts.failed) is not None:
        return replace(failed, type="Degraded", status="True")
    for (kind, name), found in sorted(facts.problems.items()):
        if found.reason not in WORKING:
            return Condition("Degraded", "True", found.reason, named(kind, name, found))
    for leaf in leaves:
        if not leaf.holds and leaf.reason not in WORKING | {Reason.SUSPENDED, Reason.INVALID_SPEC}:
            roles = [role for role in leaves if role.type in _OF_ROLES and not role.holds]
            # The transfer may be at fault beside a role that starts, or because of it.
            told = [*roles[:1], leaf] if leaf.type == "TransferVerified" else [leaf]
            return Condition("Degraded", "True", leaf.reason, "; ".join(f"{t.type}: {t.message}" for t in told))
    return Condition("Degraded", "False", Reason.READY, "nothing needs attention")


def _progressing(facts: Facts, causes: Sequence[Condition]) -> Condition:
    for (kind, name), found in sorted(facts.problems.items()):
        if found.again:
            return Condition("Progressing", "True", found.reason, named(kind, name, found))
    for leaf in causes:
        if leaf.reason in MENDS_ITSELF:
            return Condition("Progressing", "True", leaf.reason, f"{leaf.type}: {leaf.message}")
    for revision in sets.revisions(facts.view):
        resting = facts.rollout is not None and facts.rollout.resting
        if facts.plan is not None and revision != facts.plan.revision and not resting:
            message = f"revision {revision[:8]} is still there"
            if facts.rollout is not None:
                return Condition("Progressing", "True", facts.rollout.reason, f"{message}: {facts.rollout.message}")
            return Condition("Progressing", "True", Reason.ROLLING_OUT, message)
    if causes:
        return Condition("Progressing", "False", causes[0].reason, f"{causes[0].type}: {causes[0].message}")
    return Condition("Progressing", "False", Reason.READY, "the spec is met")


def _stalled(facts: Facts, causes: Sequence[Condition], degraded: Condition) -> Condition:
    if (failed := facts.failed) is not None:
        return replace(failed, type="Stalled", status="True")
    if (blocked := _blocked(facts)) is not None:
        return Condition("Stalled", "True", *blocked)
    for leaf in causes:
        if leaf.reason in _STUCK or (leaf.reason is Reason.POD_FAILING and _fails_for_good(facts)):
            return Condition("Stalled", "True", leaf.reason, f"{leaf.type}: {leaf.message}")
    if degraded.holds:
        return Condition("Stalled", "False", degraded.reason, f"it may go on by itself: {degraded.message}")
    return Condition("Stalled", "False", Reason.READY, "nothing blocks progress")


def _blocked(facts: Facts) -> tuple[Reason, str] | None:
    """The first problem with a child that no waiting mends."""
    for (kind, name), found in sorted(facts.problems.items()):
        if found.reason in _STUCK or (_absent(found) and kind in ENGINES):
            return found.reason, named(kind, name, found)
    return None


def _fails_for_good(facts: Facts) -> bool:
    """Whether a pod fails in a way that another attempt does not mend, or pods are refused before they are there."""
    failing = [pod for pod in facts.view.pods if pod.failing and not pod.ready and not pod.deleting]
    return not failing or any(pod.fails_for_good for pod in failing)


def _scaling(facts: Facts) -> tuple[Condition, ...]:
    if facts.plan is None or facts.suspended:
        return ()
    found = scaling.standing(facts.view, facts.plan, facts.problems, facts.scaling)
    return (Condition("ScalingReady", *found),) if found is not None else ()

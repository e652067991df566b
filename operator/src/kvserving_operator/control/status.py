"""The status document of an object. Pure: facts, conditions and the last status in, the next one out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from .. import times
from ..api.faults import Fault
from ..api.v1alpha1 import API_VERSION, KIND, KVServing, KVServingSpec
from ..connectors import l1_owners, l2_type
from ..plan.rollout_types import ROLES, RevisionSet
from ..reasons import Reason
from ..redaction import MASK, redact
from . import scaling
from .conditions import foreign_service, router_service
from .facts import Condition, Facts, serving_revisions, workload, workloads
from .observe import Serving
from .rollouts import Rollout
from .sets import revisions

_SHORTEST_SECRET = 6
_MOST_ERRORS = 64
_LONGEST = 4096


def document(facts: Facts, conditions: tuple[Condition, ...], serving: KVServing | None, *, now: str) -> dict[str, Any]:
    """Return the whole status. ``now`` (RFC 3339) becomes the time of conditions whose status changed.

    ``serving`` is ``None`` where the spec could not be read; what was known of it then stays.
    """
    last = facts.view.serving.status
    generation = facts.view.serving.generation
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": _merged(conditions, last, generation, now),
        "roles": _roles(facts, last),
        "transfer": _transfer_word(facts),
        "revision": (serves := _revision(facts, last)),
        "updatingRevision": facts.revision if facts.revision != serves else None,
        "rollout": _rollout(facts, last),
        "errors": [
            {"path": _cut(fault.path, 1024), "message": _cut(fault.message)} for fault in facts.faults[:_MOST_ERRORS]
        ],
    }
    if facts.plan is not None and serving is not None:
        found |= _of_plan(facts, serving)
    else:
        found |= {name: last.get(name) for name in ("url", "model", "engine", "tiers")}
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def patch(serving: Serving, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that applies ``document`` as the status of this very object."""
    metadata = {"name": serving.key.name, "namespace": serving.key.namespace, "uid": serving.uid}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": dict(document)}


def changed(last: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether ``document`` says anything that ``last`` does not, the times of conditions apart."""
    return comparable(last) != comparable(document)


def comparable(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``document`` without the times of conditions, and these in a fixed order."""
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in document.get("conditions") or ()
    ]
    return {**document, "conditions": sorted(conditions, key=lambda condition: str(condition.get("type")))}


def public(faults: tuple[Fault, ...], spec: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Return ``faults`` fit for status and events: values of environment, arguments and templates are masked.

    A fault may quote what the user wrote, and users write tokens into the wrong field.
    """
    clean = cleaner(spec)
    return tuple(Fault(clean(fault.path), clean(fault.message), None) for fault in faults)


def cleaner(spec: Mapping[str, Any]) -> Callable[[str], str]:
    """Return what masks the values of environment, arguments and templates of ``spec`` in a text."""
    told = {form for text in _private(spec, False) for form in _forms(text)}
    hidden = sorted((text for text in told if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)

    def clean(text: str) -> str:
        for value in hidden:
            text = text.replace(value, MASK)
        return redact(text)

    return clean


def _forms(text: str) -> Iterator[str]:
    """How messages may quote ``text``: as it is, escaped as in JSON, and a line of it alone."""
    for part in (text, *text.splitlines()):
        yield part
        yield json.dumps(part)[1:-1]
        yield json.dumps(part, ensure_ascii=False)[1:-1]


def _private(node: Any, within: bool) -> list[str]:
    """Collect the texts below env, args and template; of ``--flag=value`` the value."""
    if isinstance(node, Mapping):
        return [
            text
            for key, value in node.items()
            for text in _private(value, within or key in ("env", "args", "template"))
            if key not in ("name", "key", "kind")
        ]
    if isinstance(node, list):
        return [text for value in node for text in _private(value, within)]
    if isinstance(node, str) and within:
        return [node.partition("=")[2] if node.startswith("-") else node]
    return []


def _merged(
    conditions: tuple[Condition, ...], last: Mapping[str, Any], generation: int, now: str
) -> list[dict[str, Any]]:
    before = {c.get("type"): c for c in last.get("conditions") or () if isinstance(c, Mapping)}
    merged = []
    for condition in conditions:
        known = before.get(condition.type)
        same = known is not None and known.get("status") == condition.status
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "observedGeneration": generation,
                "lastTransitionTime": known["lastTransitionTime"] if same and known else now,
                "reason": condition.reason.value,
                "message": _cut(condition.message, 8192),
            }
        )
    return merged


def _roles(facts: Facts, last: Mapping[str, Any]) -> dict[str, Any]:
    """The engines of both roles, of all revisions. Without a plan, the numbers that were asked for stay.
    Of an object that was never planned nothing is known."""
    found = {}
    for role in ("prefill", "decode") if facts.disaggregated else ("decode",):
        child = workload(facts, role)
        asked = child.workload.replicas if child and child.workload else 0
        ready = sum(map(facts.ready, workloads(facts, role)))
        told = scaling.recorded(last, role) if facts.plan is None else None
        if facts.plan is None and child is None and not told:
            continue
        wanted = facts.wanted(role, asked if told is None else told)
        found[role] = {"replicas": wanted, "ready": ready, "summary": f"{ready}/{wanted}"}
    return found


def _transfer_word(facts: Facts) -> str | None:
    if facts.transfer is None:
        return None
    return Reason.VERIFIED.value if facts.transfer.status == "True" else facts.transfer.reason.value


def _revision(facts: Facts, last: Mapping[str, Any]) -> str:
    """The revision that serves. Where none does now, the one that did while it is there: no loss ends a rollout."""
    serving = serving_revisions(facts)
    if facts.revision in serving:
        return facts.revision
    if last.get("revision") in (serving or revisions(facts.view)):
        return str(last["revision"])
    return serving[0] if serving else facts.revision


def _rollout(facts: Facts, last: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the rollout is, while there is one. Without a plan, what was known of it stays."""
    rollout = facts.rollout
    if rollout is None:
        return last.get("rollout") if facts.plan is None else None
    if not rollout.visible:
        return None
    found: dict[str, Any] = {
        "phase": rollout.phase.value,
        "message": _cut(redact(rollout.message), 1024),
        "progressedAt": times.stamp(datetime.fromtimestamp(rollout.progressed_at, UTC)),
        "sets": [_set(known, rollout) for known in sorted(rollout.observation.sets, key=lambda s: -s.number)],
    }
    if (failure := rollout.failure) is not None:
        found["failed"] = {
            "revision": failure.revision,
            "generation": failure.generation,
            "message": _cut(redact(failure.message)),
        }
    return found


def _set(known: RevisionSet, rollout: Rollout) -> dict[str, Any]:
    found: dict[str, Any] = {
        "revision": known.revision,
        "traffic": known.revision in rollout.traffic,
        "verification": known.verification.value,
    }
    for role in ROLES:
        if (pods := known.pods(role)) is not None:
            found[role] = f"{pods.ready}/{pods.wanted}"
    return found


def _of_plan(facts: Facts, serving: KVServing) -> dict[str, Any]:
    assert facts.plan is not None
    profile = facts.plan.profile
    service, url = router_service(facts), None
    if service is not None and foreign_service(facts) is None:
        port = service["spec"]["ports"][0]["port"]
        url = f"http://{service['metadata']['name']}.{facts.plan.namespace}.svc:{port}"
    spec = serving.spec
    l2 = spec.cache.l2
    return {
        "url": url,
        "model": redact(spec.model.served_name),
        "engine": {"version": profile.engine_version, "image": redact(profile.engine_image)},
        "tiers": {
            "l1": _l1(spec),
            "l2": "off" if l2 is None else " ".join(filter(None, (l2_type(l2), str(l2.size or "")))),
        },
    }


def _l1(spec: KVServingSpec) -> str:
    """The size, and the owners unless the scheduler alone is one."""
    l1 = spec.cache.l1
    if l1 is None:
        return "off"
    owners = l1_owners(spec)
    return str(l1.size) if owners == ("scheduler",) else " ".join((str(l1.size), *owners))


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 4] + " ..."

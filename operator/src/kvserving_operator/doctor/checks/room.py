"""The way out where a pod finds no node: the fields that decide what it asks for, by role and the scheduler's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...control import asks
from ...plan import labels, template
from ..facts import ObjectFacts
from . import images

_ENGINES = ("prefill", "decode")
_OF_CONDITION = {"PrefillReady": "prefill", "DecodeReady": "decode", "RouterReady": "router", "StorageReady": "store"}
_POD = re.compile(r"\bpod (\S+): ")


def of_condition(facts: ObjectFacts, kind: str, message: str) -> str:
    """The way out of a condition that says that there is no room."""
    named = _POD.search(message)
    role = (images.role_of_pod(facts, named[1]) if named else "") or _OF_CONDITION.get(kind, "")
    return way_out(facts, role, message)


def way_out(facts: ObjectFacts, role: str, message: str) -> str:
    """The way out for a pod of a role of which the scheduler says ``message``."""
    of_engine = role.removesuffix(labels.worker(""))
    lacking = asks.lacking(message)
    if of_engine in _ENGINES:
        ways = _of_engine(facts, of_engine, lacking)
        placed = f"change nodeSelector, affinity or tolerations in spec.{of_engine}.template.spec"
    else:
        ways = [_of_service(facts, of_engine, lacking)]
        placed = "its pods have no nodeSelector and no tolerations: they need a node without taints"
    if asks.placed(message):
        ways = [placed] if not lacking else [*ways, placed]
    return f"add nodes of the kind; or {'; or '.join(ways)}"


def _of_engine(facts: ObjectFacts, role: str, lacking: list[str]) -> list[str]:
    ways = []
    amounts = [name for name in lacking if name in ("cpu", "memory", "ephemeral-storage", "pods")]
    for name in (name for name in amounts if name != "pods"):
        ways.append(f"lower {_requested(facts, role, name)}")
        if name == "memory" and _l1(facts):
            ways[-1] += " or spec.cache.l1.size, which it has to hold"
    stored = _stored(facts, role)
    if len(amounts) < len(lacking) or not lacking:
        fields = [f"spec.{role}.parallelism"] if not stored or asks.spread(stored) else []
        if fields := [*fields, *([] if lacking else [f"spec.{role}.resources"])]:
            ways.append(f"lower {' or '.join(fields)}")
    fewer = f"spec.{role}.replicas, or " if not stored or asks.several(role, stored) else ""
    return [*ways, f"lower {fewer}spec.rollout.maxSurge while a rollout is on its way"]


def _stored(facts: ObjectFacts, role: str) -> Mapping[str, Any]:
    """A role as the object in the cluster has it; empty where that is not known."""
    return template.section((facts.live.body.get("spec") or {}) if facts.live is not None else {}, role)


def _requested(facts: ObjectFacts, role: str, name: str) -> str:
    """The field that says how much is asked for, with what it says; a limit stands for a request that is not there."""
    part = None
    if facts.serving is not None:
        part = facts.serving.spec.prefill if role == "prefill" else facts.serving.spec.decode
    amounts = {} if part is None else {"requests": part.resources.requests, "limits": part.resources.limits}
    for kind, written in amounts.items():
        if name in written:
            return f"spec.{role}.resources.{kind}.{name} ({written[name]})"
    return f"what the engine asks for (spec.{role}.resources.requests.{name})"


def _l1(facts: ObjectFacts) -> bool:
    l1 = facts.serving.spec.cache.l1 if facts.serving is not None else None
    return l1 is not None and l1.size is not None


def _of_service(facts: ObjectFacts, role: str, lacking: list[str]) -> str:
    if role == "store" and (not lacking or "memory" in lacking):
        return "lower spec.cache.l2.size, which its memory follows"
    engines = [f"spec.{role}.resources" for role in _ENGINES if _has(facts, role)]
    return (
        f"lower {_fewer(facts, role)}what engines ask for beside it ({', '.join(engines)}): what a {role or 'pod'} "
        "asks for is no field of the object"
    )


def _fewer(facts: ObjectFacts, role: str) -> str:
    """The number of pods that may be lowered, before another way; empty where there is only the one that must be."""
    spec = facts.serving.spec if facts.serving is not None else None
    if role == "store":
        one = spec is not None and spec.cache.l2 is not None and spec.cache.l2.replicas == 1
        return "" if one else "spec.cache.l2.replicas, or "
    return "" if spec is not None and spec.router.replicas == 1 else f"spec.{role or 'router'}.replicas, or "


def _has(facts: ObjectFacts, role: str) -> bool:
    return role == "decode" or (facts.serving is not None and facts.serving.spec.prefill is not None)

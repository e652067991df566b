"""Objects and kept specs as the operator leaves them, for the tests of ``rollout``."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from tests.control.bodies import planned, stored

from kvserving_operator.plan import history, labels

Body = dict[str, Any]
SPEC: Body = {
    "model": {"uri": "hf://Qwen/Qwen3-8B"},
    "engine": {"version": "0.33.0"},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 2},
}
"""The spec of the first revision."""


def spec(version: str | None = "0.33.0", **sections: Any) -> Body:
    """``SPEC`` with another vLLM (``None``: the operator's choice) and sections replaced; ``None`` takes one out."""
    made = {**copy.deepcopy(SPEC), "engine": {"version": version}, **sections}
    if version is None and "engine" not in sections:
        del made["engine"]
    return {name: section for name, section in made.items() if section is not None}


def revision(of: Mapping[str, Any]) -> str:
    """The revision that the operator makes of a spec where nothing runs yet."""
    plan = planned(stored(dict(of))).plan
    assert plan is not None
    return plan.revision


def config_map(of: Mapping[str, Any], number: int, *, uid: str = "u1") -> Body:
    """The kept spec of revision ``number``, which is also the minute in which it was first seen."""
    reading = planned(stored(dict(of)))
    assert reading.plan is not None
    marks = (m for m in reading.plan.objects if history.SPEC_KEY in (m.get("data") or {}))
    made: Any = copy.deepcopy(dict(next(marks)))
    made["metadata"] |= {
        "creationTimestamp": f"2026-01-01T00:{number:02}:00Z",
        "ownerReferences": [{"kind": "KVServing", "name": "qwen", "uid": uid, "controller": True}],
        "managedFields": [{"manager": "kvserving-operator", "time": f"2026-01-01T01:{number:02}:00Z"}],
    }
    return dict(made)


def unreadable(number: int, text: str = "{") -> Body:
    """A kept spec that someone has edited."""
    metadata = {
        "name": "qwen-spec-feedfeed",
        "namespace": "prod",
        "labels": {labels.NAME: "qwen", labels.REVISION: "feedfeedfeedfeed"},
        "creationTimestamp": f"2026-01-01T00:{number:02}:00Z",
        "ownerReferences": [{"uid": "u1"}],
    }
    return {"metadata": metadata, "data": {history.SPEC_KEY: text}}


def condition(kind: str, status: str, reason: str, message: str = "as it is") -> Body:
    """A condition at generation 2."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 2}


def served(now: Mapping[str, Any], **status: Any) -> Body:
    """An object of generation 2 whose spec ``now`` serves, ready; ``status`` replaces parts of its status."""
    engine = (now.get("engine") or {}).get("version") or "0.33.0"
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": "qwen", "namespace": "prod", "uid": "u1", "generation": 2, "resourceVersion": "7"},
        "spec": copy.deepcopy(dict(now)),
        "status": {
            "observedGeneration": 2,
            "revision": revision(now),
            "engine": {"version": engine, "image": f"vllm/vllm-openai:v{engine}"},
            "conditions": [
                condition("Ready", "True", "Ready", "every role is ready and the transfer is verified"),
                condition("Available", "True", "Ready"),
                condition("ConfigValid", "True", "Valid"),
            ],
            **status,
        },
    }


def known(of: Mapping[str, Any], *, traffic: bool, verification: str = "unknown", ready: int = 1) -> Body:
    """One set of ``status.rollout``."""
    counts = {"prefill": f"{min(ready, 1)}/1", "decode": f"{ready}/2", "router": "2/2"}
    return {"revision": revision(of), "traffic": traffic, "verification": verification, **counts}


def rolling(old: Mapping[str, Any], new: Mapping[str, Any], *, ready: int = 0, phase: str = "Progressing") -> Body:
    """An object on its way from the spec ``old`` to ``new``."""
    message = f"revision {revision(new)}: {ready} of 2 decode ready"
    return served(
        new,
        revision=revision(old),
        updatingRevision=revision(new),
        rollout={
            "phase": phase,
            "message": message,
            "sets": [
                known(new, traffic=False, ready=ready),
                known(old, traffic=True, verification="verified", ready=2),
            ],
        },
        conditions=[
            condition("Ready", "False", "RollingOut", message),
            condition("Available", "True", "RollingOut"),
            condition("ConfigValid", "True", "Valid"),
        ],
    )


def failed(old: Mapping[str, Any], new: Mapping[str, Any], why: str = "KV is computed again") -> Body:
    """An object whose rollout from the spec ``old`` to ``new`` has failed; ``old`` serves."""
    body = rolling(old, new, ready=2, phase="Stopped")
    body["status"]["rollout"]["failed"] = {"revision": revision(new), "generation": 2, "message": why}
    body["status"]["conditions"][0] = condition("Ready", "False", "RolloutFailed", f"{why}; change the spec")
    return body


def texts(config_maps: list[Body]) -> list[Body]:
    """The specs in ``config_maps``."""
    return [json.loads(body["data"][history.SPEC_KEY]) for body in config_maps]

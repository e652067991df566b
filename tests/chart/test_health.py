"""Argo CD's health check, run by Lua over the conditions that the operator makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import lupa.lua51
import pytest
import yaml
from tests.chart.charts import ROOT
from tests.control.test_conditions import facts, with_workload

from kvserving_operator.api.faults import Fault
from kvserving_operator.control.conditions import TYPES, conditions
from kvserving_operator.control.facts import Facts, Transfer
from kvserving_operator.control.failures import Problem
from kvserving_operator.reasons import Reason

FILE = ROOT / "examples" / "gitops" / "argocd" / "health.yaml"
(KEY,) = (entries := yaml.safe_load(FILE.read_text())["data"])
SCRIPT = entries[KEY]
STARTING = Transfer("Unknown", Reason.STARTING, "-")
RECOMPUTING = Transfer("False", Reason.RECOMPUTING_KV, "decode d computed all tokens again")


def health(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Run the script as Argo CD does: Lua 5.1, the object as the global ``obj``."""
    runtime = lupa.lua51.LuaRuntime(unpack_returned_tuples=False)
    runtime.globals()["obj"] = runtime.table_from(dict(obj), recursive=True)
    answer: Any = runtime.execute(SCRIPT)
    return answer["status"], answer["message"]


def serving(found: Facts | None, *, seen: int = 3, **spec: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {"metadata": {"name": "qwen", "generation": 3}, "spec": spec}
    if found is not None:
        made = [
            {"type": c.type, "status": c.status, "reason": str(c.reason), "message": c.message}
            for c in conditions(found)
        ]
        obj["status"] = {"observedGeneration": seen, "conditions": made}
    return obj


def test_it_is_about_our_kind() -> None:
    assert KEY == "resource.customizations.health.kvserving.dev_KVServing"


def test_conditions_that_it_asks_for_exist() -> None:
    asked = set(re.findall(r'(?:holds|told)\("(\w+)"\)', SCRIPT)) | set(re.findall(r'found\["(\w+)"\]', SCRIPT))
    assert asked == {"Ready", "Degraded", "Stalled"}
    assert asked <= set(TYPES)


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ready": (serving(facts()), "Healthy", "Ready: every role is ready and the transfer is verified"),
    "not seen by an operator": (serving(None), "Progressing", "waiting for the operator"),
    "ready at an older generation": (serving(facts(), seen=2), "Progressing", "newest spec"),
    "loading": (
        serving(with_workload(facts(transfer=STARTING), "decode", ready=1)),
        "Progressing",
        "LoadingModel: DecodeReady: 1 of 2 decode pods are ready",
    ),
    "recomputing": (serving(facts(transfer=RECOMPUTING)), "Degraded", "RecomputingKV: "),
    "a wrong spec": (
        serving(facts(plan=None, faults=(Fault("spec.engine.version", "too old"),))),
        "Degraded",
        "InvalidSpec: ",
    ),
    "a foreign object": (
        serving(facts(problems={("Service", "qwen"): Problem(Reason.OWNED_BY_OTHER, "Service prod/qwen exists")})),
        "Degraded",
        "OwnedByOther: ",
    ),
    "suspended": (serving(facts(suspended=True), suspend=True), "Suspended", "spec.suspend"),
}


@pytest.mark.parametrize("case", CASES)
def test_health_says_what_the_conditions_say(case: str) -> None:
    obj, status, words = CASES[case]
    found, message = health(obj)
    assert found == status
    assert words in message

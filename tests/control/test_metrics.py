"""What a process exports before anything has happened."""

from __future__ import annotations

import inspect
import re

from kvserving_operator.control.events import EventKind
from kvserving_operator.control.metrics import Metrics
from kvserving_operator.control.observe import Key
from kvserving_operator.control.verification import OUTCOMES, Verifications
from kvserving_operator.reasons import Reason
from kvserving_operator.verify.proof import Cause


def test_counters_of_alerts_start_at_zero_so_that_their_first_increase_counts() -> None:
    lines = Metrics().render().decode().splitlines()
    assert 'kvserving_operator_engines_replaced_total{reason="EngineHung"} 0.0' in lines
    assert 'kvserving_operator_engines_replaced_total{reason="PeerStale"} 0.0' in lines
    assert 'kvserving_operator_reconciles_total{result="error"} 0.0' in lines


def test_a_first_verification_and_a_first_event_count_as_an_increase() -> None:
    lines = Metrics().render().decode().splitlines()
    for name, reasons in (
        ("verifications", {"Verified", "SecretMissing", "ApiUnavailable", *(cause.reason.value for cause in Cause)}),
        ("events", {kind.reason for kind in EventKind}),
    ):
        series = f"kvserving_operator_{name}_total"
        assert {line for line in lines if line.startswith(series)} == {f'{series}{{reason="{r}"}} 0.0' for r in reasons}


def test_a_verification_ends_with_no_reason_but_those_that_start_at_zero() -> None:
    code = inspect.getsource(Verifications._verify) + inspect.getsource(Verifications._run)
    named = {Reason[name] for name in re.findall(r"\bReason\.([A-Z_]+)", code)}
    assert named >= {Reason.SECRET_MISSING, Reason.API_UNAVAILABLE, Reason.PROBE_FAILED}
    assert named <= set(OUTCOMES)


def test_an_object_that_nobody_wants_to_run_is_told_from_one_that_fails() -> None:
    metrics = Metrics()
    reasons = {"off": "Suspended", "bad": "PodFailing"}
    conditions = {name: [{"type": "Ready", "status": "False", "reason": reason}] for name, reason in reasons.items()}
    metrics.watch_objects(lambda: [(Key("a", name), {"conditions": found}) for name, found in conditions.items()])
    lines = metrics.render().decode().splitlines()
    assert 'kvserving_suspended{name="off",namespace="a"} 1.0' in lines
    assert 'kvserving_suspended{name="bad",namespace="a"} 0.0' in lines
    assert 'kvserving_condition{condition="Ready",name="off",namespace="a"} 0.0' in lines

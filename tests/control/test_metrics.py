"""What a process exports before anything has happened."""

from __future__ import annotations

from kvserving_operator.control.metrics import Metrics
from kvserving_operator.control.observe import Key


def test_counters_of_alerts_start_at_zero_so_that_their_first_increase_counts() -> None:
    lines = Metrics().render().decode().splitlines()
    assert 'kvserving_operator_engines_replaced_total{reason="EngineHung"} 0.0' in lines
    assert 'kvserving_operator_engines_replaced_total{reason="PeerStale"} 0.0' in lines
    assert 'kvserving_operator_reconciles_total{result="error"} 0.0' in lines


def test_an_object_that_nobody_wants_to_run_is_told_from_one_that_fails() -> None:
    metrics = Metrics()
    reasons = {"off": "Suspended", "bad": "PodFailing"}
    conditions = {name: [{"type": "Ready", "status": "False", "reason": reason}] for name, reason in reasons.items()}
    metrics.watch_objects(lambda: [(Key("a", name), {"conditions": found}) for name, found in conditions.items()])
    lines = metrics.render().decode().splitlines()
    assert 'kvserving_suspended{name="off",namespace="a"} 1.0' in lines
    assert 'kvserving_suspended{name="bad",namespace="a"} 0.0' in lines
    assert 'kvserving_condition{condition="Ready",name="off",namespace="a"} 0.0' in lines

"""What a process exports before anything has happened."""

from __future__ import annotations

from kvserving_operator.control.metrics import Metrics


def test_counters_of_alerts_start_at_zero_so_that_their_first_increase_counts() -> None:
    lines = Metrics().render().decode().splitlines()
    assert 'kvserving_operator_engines_replaced_total{reason="EngineHung"} 0.0' in lines
    assert 'kvserving_operator_engines_replaced_total{reason="PeerStale"} 0.0' in lines
    assert 'kvserving_operator_reconciles_total{result="error"} 0.0' in lines

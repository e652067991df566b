from __future__ import annotations

from kvserving_operator.control.conditions import TYPES
from kvserving_operator.control.events import EventKind
from kvserving_operator.control.exit_codes import ExitCode
from kvserving_operator.control.permissions import TABLE
from kvserving_operator.reasons import Reason
from kvserving_operator.reference import process


def test_everything_that_is_declared_is_documented() -> None:
    text = process.render()
    for name in (*TYPES, *Reason, *(kind.reason for kind in EventKind), *(right.full_name for right in TABLE)):
        assert f"| `{name}` |" in text
    for code in ExitCode:
        assert f"| {code.value} |" in text


def test_metrics_are_shown_with_their_labels() -> None:
    rows = process.render().splitlines()
    for name, labels in (
        ("kvserving_operator_reconciles_total", "`result`"),
        ("kvserving_operator_api_requests_total", "`verb`, `resource`, `status`"),
        ("kvserving_condition", "`namespace`, `name`, `condition`"),
        ("kvserving_operator_leader", ""),
    ):
        [row] = [row for row in rows if row.startswith(f"| `{name}` |")]
        assert row.split(" | ")[2] == labels

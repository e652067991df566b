"""Each alert has a test in which it fires, and a section of the runbook. promtool runs the tests (``tests/chart``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from tests.chart.charts import CHART
from tests.documents.pages import DOCS, ROOT, sections

ALERTS = CHART / "files" / "alerts.yaml"
TESTS = ROOT / "tests" / "chart" / "alerts_test.yaml"


def untested(names: Sequence[str], tests: Sequence[Any]) -> Iterator[str]:
    """Say which alerts have no case in which they fire. Whatever else fires in a case fails it by itself."""
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    yield from (
        f"{name} has no case in which it fires: add one, and one just before, to tests/chart/alerts_test.yaml"
        for name in names
        if name not in fired
    )


def names() -> list[str]:
    return [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    assert list(untested(names(), yaml.safe_load(TESTS.read_text())["tests"])) == []


def test_an_alert_without_such_a_case_is_told_with_the_way_out() -> None:
    cases = [{"alertname": "A", "exp_alerts": [{}]}, {"alertname": "B", "exp_alerts": []}]
    told = list(untested(["A", "B", "C"], [{"alert_rule_test": cases}]))
    assert [line.partition(" has no case in which it fires: add one")[0] for line in told] == ["B", "C"]


def test_the_runbook_has_a_section_for_each_alert_in_the_order_of_the_rules() -> None:
    headings = [part.heading for part in sections((DOCS / "alerts.md").read_text()) if "KVServing" in part.heading]
    assert headings == names(), "docs/alerts.md has a heading for each alert of the chart, in the order of its rules"

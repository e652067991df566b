"""The alerts, by promtool: they are right, each has tests that can fail, and a section in the docs."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.charts import CHART, ROOT, Helm, Json, one

ALERTS = CHART / "files" / "alerts.yaml"
TESTS = Path(__file__).with_name("alerts_test.yaml")
NAMES = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def run(promtool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(promtool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rendered(helm: Helm, **rules: str) -> Json:
    rule = one(helm.template({"monitoring": {"rules": {"create": "enabled", **rules}}}), "PrometheusRule")
    return dict(rule["spec"])


def test_the_rules_that_the_chart_renders_are_the_files(helm: Helm) -> None:
    assert rendered(helm) == yaml.safe_load(ALERTS.read_text())


def test_promtool_takes_the_rules_and_their_tests_hold(promtool: Path) -> None:
    checked = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run(promtool, "test", "rules", TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("alert", NAMES)
def test_an_alert_that_never_fires_or_always_does_fails_its_tests(promtool: Path, tmp_path: Path, alert: str) -> None:
    for expr in ("vector(0) == 1", "vector(1)"):
        wrong = _with(alert, expr=expr)
        file = tmp_path / "alerts.yaml"
        file.write_text(yaml.safe_dump(wrong))
        tests = yaml.safe_load(TESTS.read_text())
        (tmp_path / "tests.yaml").write_text(yaml.safe_dump({**tests, "rule_files": [str(file)]}))
        tested = run(promtool, "test", "rules", tmp_path / "tests.yaml")
        assert tested.returncode == 1
        assert f"alertname: {alert}" in tested.stdout + tested.stderr


def _with(alert: str, **changes: Any) -> Json:
    groups: Json = copy.deepcopy(yaml.safe_load(ALERTS.read_text()))
    for group in groups["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == alert:
                rule.update(changes)
                rule.pop("for", None)
    return groups


def test_each_alert_links_to_its_section_of_the_docs(helm: Helm) -> None:
    address = "https://docs.example/alerts.md"
    links = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in rendered(helm, runbooks=address)["groups"]
        for rule in group["rules"]
    }
    assert links == {name: f"{address}#{name.lower()}" for name in NAMES}
    headings = [line[3:] for line in (ROOT / "docs" / "alerts.md").read_text().splitlines() if line.startswith("## ")]
    assert headings == NAMES

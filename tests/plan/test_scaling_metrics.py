"""The example rules for prometheus-adapter: every metric that a scaler of ours asks for is made by one of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from tests.plan.support import pair, render

from kvserving_operator.api.v1alpha1 import Autoscaling

ROOT = Path(__file__).parents[2]
VALUES = ROOT / "examples" / "scaling" / "prometheus-adapter.yaml"
PAGE = ROOT / "docs" / "scaling.md"
RULES: list[dict[str, Any]] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))["rules"]["custom"]
METRICS = sorted(set(get_args(Autoscaling.model_fields["metric"].annotation)) - {"custom"})


def made(series: str) -> list[str]:
    """Names under which the rules offer a series."""
    found = []
    for rule in RULES:
        (name,) = re.findall(r'__name__(?:=|=~)"([^"]+)"', rule["seriesQuery"])
        if re.fullmatch(name, series):
            found.append(re.sub(rule["name"]["matches"], rule["name"]["as"].replace("$", "\\"), series))
    return found


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("metric", METRICS)
def test_what_hpa_asks_for_is_what_a_rule_makes_of_the_series_that_keda_reads(role: str, metric: str) -> None:
    def scaled(via: str) -> Any:
        return render(pair(**{role: {"autoscaling": {"max": 4, "metric": metric, "via": via}}}))

    name = f"qwen-{role}"
    asked = [m["pods"]["metric"]["name"] for m in scaled("hpa").one("HorizontalPodAutoscaler", name)["spec"]["metrics"]]
    queries = [t["metadata"]["query"] for t in scaled("keda").one("ScaledObject", name)["spec"]["triggers"]]
    series = [re.findall(r"vllm:[a-z_]+", query) for query in queries]
    assert [made(*found) for found in series] == [[name] for name in asked]


def test_every_rule_names_pods_and_their_namespace() -> None:
    """HPA asks for the pods that the scale target selects."""
    for rule in RULES:
        assert rule["resources"]["overrides"] == {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
        assert "<<.GroupBy>>" in rule["metricsQuery"]
        assert "<<.LabelMatchers>>" in rule["metricsQuery"]


def test_the_page_names_each_metric_with_its_series_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(vllm:\w+)`[^|]* \|.*?\b(\d+) \(?\w+\)? \|$", PAGE.read_text(), re.MULTILINE)
    rows += re.findall(r"^\| `(running)` \| `(vllm:\w+)` \|.*else (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(set(METRICS) - {"auto"})
    for name, series, default in rows:
        role = {"metric": name, "max": 4}
        (rule,) = render(pair(decode={"autoscaling": role})).one("HorizontalPodAutoscaler", "qwen-decode")["spec"][
            "metrics"
        ]
        assert rule["pods"]["metric"]["name"] in series.replace(":", "_")
        given = render(pair(decode={"autoscaling": {**role, "target": int(default)}}))
        assert given.one("HorizontalPodAutoscaler", "qwen-decode")["spec"]["metrics"] == [rule]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_page_names_what_auto_measures(role: str) -> None:
    (row,) = re.findall(rf"^\| {role} \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    scaled = render(pair(**{role: {"autoscaling": {"max": 4}}}))
    auto = scaled.one("HorizontalPodAutoscaler", f"qwen-{role}")["spec"]["metrics"]
    singly = []
    for metric in re.findall(r"`(\w+)`", row):
        one = render(pair(**{role: {"autoscaling": {"max": 4, "metric": metric}}}))
        singly += one.one("HorizontalPodAutoscaler", f"qwen-{role}")["spec"]["metrics"]
    assert auto == singly

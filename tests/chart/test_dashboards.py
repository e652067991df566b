"""The dashboards: PromQL that Prometheus takes, over series that exist.

The series of engines are looked up where vLLM is installed: ``tests/connector/test_dashboards.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import smg
import yaml
from tests.chart.charts import CHART, Helm, Json
from tests.chart.series import alerts, dashboards, series

from kvserving_operator.control.conditions import TYPES
from kvserving_operator.control.metrics import Metrics
from kvserving_operator.plan import labels


def operator_series() -> set[str]:
    """Every name that the operator's ``/metrics`` can show."""
    metrics = Metrics()
    metrics.watch_queue(lambda: 0, lambda: 0.0)
    metrics.watch_objects(lambda: ())
    found = set()
    for family in metrics.registry.collect():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        found |= {family.name + ending for ending in endings}
    return found


@pytest.mark.parametrize("where", ["dashboards", "alerts"])
def test_every_series_of_the_operator_exists(where: str) -> None:
    used = {name for expr in (dashboards() if where == "dashboards" else alerts()) for name in series(expr)}
    ours = {name for name in used if re.match(r"kvserving_(operator_|condition|suspended)", name)}
    assert len(ours) > 4
    assert ours <= operator_series()


def test_every_series_of_the_router_exists() -> None:
    """Its names are texts in the router's library, one after the other without a mark between them."""
    (library,) = Path(str(smg.__file__)).parent.glob("*.so")
    content = library.read_bytes()
    used = {name for expr in dashboards() for name in series(expr) if name.startswith("smg_")}
    assert used
    assert b"smg_worker_no_such_series" not in content
    assert [name for name in sorted(used) if name.encode() not in content] == []


def test_every_series_belongs_to_the_operator_the_router_or_the_engines() -> None:
    for expr in (*dashboards(), *alerts()):
        for name in series(expr):
            assert re.match(r"(kvserving_operator_|kvserving_(condition|suspended)$|smg_|vllm:|kvserving:)", name), name


def test_conditions_that_are_asked_for_exist() -> None:
    texts = {text for expr in (*dashboards(), *alerts()) for text in re.findall(r'condition[!=]?[=~]"([\w|]+)"', expr)}
    asked = {name for text in texts for name in text.split("|")}
    assert {"Ready", "Stalled"} <= asked
    assert asked <= set(TYPES)


def test_labels_of_pods_are_those_that_prometheus_makes_of_ours() -> None:
    made = {re.sub(r"\W", "_", label) for label in (labels.NAME, labels.ROLE, labels.REVISION)}
    used = {name for expr in (*dashboards(), *alerts()) for name in re.findall(r"kvserving_dev_\w+", expr)}
    assert used
    assert used <= made


def test_prometheus_takes_every_expression(promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"test:expression:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(dashboards())
    ]
    assert len(rules) > 50
    file = tmp_path / "rules.yaml"

    def check() -> subprocess.CompletedProcess[str]:
        file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
        command = [str(promtool), "check", "rules", "--lint=none", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    checked = check()
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules[0]["expr"] += ")"
    assert check().returncode != 0


def panels(dashboard: Json) -> Iterator[Json]:
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("path", sorted((CHART / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_panels_have_a_place_a_description_and_a_name_for_each_line(path: Path) -> None:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    assert dashboard["uid"] == f"kvserving-{path.stem}"
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends) or panel["type"] == "stat", panel["title"]
        for target in panel["targets"]:
            by = set(re.findall(r"by \(([\w, ]+)\)", target["expr"]))
            groups = {label.strip() for group in by for label in group.split(",")}
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= groups, panel["title"]


def test_the_chart_makes_a_map_of_each(helm: Helm) -> None:
    values = {"monitoring": {"dashboards": {"create": True, "annotations": {"grafana_folder": "KV"}}}}
    maps = [obj for obj in helm.template(values) if "grafana_dashboard" in obj["metadata"]["labels"]]
    written = {f"kvserving-{p.name}": p.read_text() for p in (CHART / "dashboards").glob("*.json")}
    assert {key: text for obj in maps for key, text in obj["data"].items()} == written
    assert len(written) == 3
    assert all(obj["metadata"]["annotations"]["grafana_folder"] == "KV" for obj in maps)

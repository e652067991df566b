"""checkov's remarks about our manifests: each is explained in ``scan_exceptions.yaml``, and no other is made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.objects import load_file
from tests.chart import bundle
from tests.chart.charts import ROOT, Helm, value_files
from tests.examples import files

from kvserving_operator.plan.planning import plan

EXCEPTIONS = yaml.safe_load(Path(__file__).with_name("scan_exceptions.yaml").read_text())
_PARTS = {"operator", "test", "engine", "router", "store"}
Remarks = set[tuple[str, str]]


def part(obj: Mapping[str, Any]) -> str:
    """Which part of the whole an object belongs to."""
    labels = obj["metadata"].get("labels", {})
    component = labels.get("app.kubernetes.io/component")
    return str(component) if component in _PARTS else {"Deployment": "operator", "Pod": "test"}.get(obj["kind"], "")


def remarks(checkov: Path, folder: Path, sets: Mapping[str, list[Any]]) -> Remarks:
    """Scan ``sets`` of objects, each in a file of its own; return each check that failed, with the part."""
    parts = {}
    for name, objects in sets.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all([json.loads(json.dumps(obj)) for obj in objects]))
        for obj in objects:
            where = obj["metadata"].get("namespace", "default")
            parts[f"/{name}.yaml", f"{obj['kind']}.{where}.{obj['metadata']['name']}"] = part(obj)
    command = [checkov, "--directory", folder, "--framework", "kubernetes", "--skip-download", "--output", "json"]
    done = subprocess.run([*map(str, command), "--quiet"], capture_output=True, text=True, timeout=280, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["resource_count"] >= len(parts)
    failed = report["results"]["failed_checks"]
    return {(one["check_id"], parts[one["file_path"], one["resource"]]) for one in failed}


@pytest.mark.timeout(300)
def test_every_remark_is_explained_and_every_explanation_is_needed(helm: Helm, checkov: Path, tmp_path: Path) -> None:
    sets: dict[str, list[Any]] = {
        f"chart-{name}": helm.template(values) for name, values in {"defaults": {}, **value_files()}.items()
    }
    sets["bundle"] = list(yaml.safe_load_all((ROOT / "deploy" / bundle.FILE_NAME).read_text()))
    for path in files():
        serving = load_file(path)
        metadata = serving.metadata.model_copy(update={"namespace": "serving"})
        sets[f"example-{path.stem}"] = list(plan(serving.model_copy(update={"metadata": metadata})).objects)
    explained = {(one["check"], about) for one in EXCEPTIONS for about in one["parts"]}
    assert remarks(checkov, tmp_path, sets) == explained


def test_a_manifest_that_is_worse_is_remarked(helm: Helm, checkov: Path, tmp_path: Path) -> None:
    objects = helm.template({"securityContext": {"allowPrivilegeEscalation": True}})
    assert ("CKV_K8S_20", "operator") in remarks(checkov, tmp_path, {"worse": objects})


def test_each_explanation_has_a_reason_and_stands_once() -> None:
    assert all(one["reason"].strip() and set(one["parts"]) <= _PARTS for one in EXCEPTIONS)
    checks = [one["check"] for one in EXCEPTIONS]
    assert len(checks) == len(set(checks))

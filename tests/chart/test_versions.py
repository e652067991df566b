"""Every manifest of the chart and of the bundle against the schemas of each Kubernetes that the chart supports."""

from __future__ import annotations

import pytest
import yaml
from tests.chart import bundle
from tests.chart.charts import CHART, ROOT, Helm, Json, kinds, one, value_files
from tests.kubernetes_versions import FOREIGN, VERSIONS, faults


@pytest.fixture(scope="module")
def manifests(helm: Helm) -> list[Json]:
    objects = [obj for values in ({}, *value_files().values()) for obj in helm.template(values)]
    # A real apiserver with their definitions looks at these: e2e/controlplane/test_install.py.
    assert kinds(objects) & FOREIGN == {"PodMonitor", "PrometheusRule", "ServiceMonitor"}
    return [*objects, *yaml.safe_load_all((ROOT / "deploy" / bundle.FILE_NAME).read_text())]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_every_version(manifests: list[Json], version: str) -> None:
    assert faults(manifests, version) == []
    service = one(manifests[:20], "Service")
    (told,) = faults([{**service, "spec": {**service["spec"], "typo": 1}}], version)
    assert "typo" in told


def test_the_first_version_is_the_charts() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={VERSIONS[0]}.0-0"

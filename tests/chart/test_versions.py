"""Every manifest against the schemas of each Kubernetes that the chart supports."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml
from tests.chart.charts import CHART, Helm, Json, kinds, one

VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
# No Kubernetes brings their schemas; a real apiserver with their CRDs looks at them (e2e/controlplane/test_install.py).
FOREIGN = {"PodMonitor", "PrometheusRule"}
VALUES = {
    "namespaces": ["team-a"],
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"operator": "Exists"}],
    "extraEnv": [{"name": "A", "value": "b"}],
    "networkPolicy": {"apiserver": {"cidrs": ["10.0.0.1/32"]}},
    "monitoring": {"monitor": "PodMonitor", "rules": {"create": "enabled"}, "dashboards": {"create": True}},
}


@pytest.fixture(scope="module")
def manifests(helm: Helm) -> list[Json]:
    objects = [*helm.template(), *helm.template(VALUES)]
    assert kinds(objects) >= FOREIGN
    return [obj for obj in objects if obj["kind"] not in FOREIGN]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_every_version(manifests: list[Json], version: str) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = one(manifests[:20], "Service")
    with pytest.raises(kubernetes_validate.ValidationError, match="typo"):
        kubernetes_validate.validate({**wrong, "spec": {**wrong["spec"], "typo": 1}}, version, strict=True)


def test_the_first_version_is_the_charts() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={VERSIONS[0]}.0-0"

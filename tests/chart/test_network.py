"""Who reaches the operator's pods, and where they may go, by the policies that the chart renders."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.charts import NAMESPACE, Helm, Json, one
from tests.plan.policies import Address, Cluster, Pod, pods
from tests.plan.support import pair, render

APISERVER = Address("apiserver", "10.0.0.1")
INTERNET = Address("internet", "203.0.113.7")
METADATA = Address("machine metadata", "169.254.169.254")
DNS = Pod("dns", "kube-system", {})
PROMETHEUS = Pod("prometheus", "monitoring", {})
STRANGER = Pod("stranger", "default", {})
SERVICE = pods(render(pair(cache={"l2": {"size": "8Gi"}})).plan.objects)
ELSEWHERE = [Pod("qwen elsewhere", "elsewhere", pod.labels, pod.ports) for pod in SERVICE if isinstance(pod, Pod)]


class Release:
    """The pods and policies of a release."""

    def __init__(self, helm: Helm, **values: Any) -> None:
        objects = helm.template(values)
        self.cluster = Cluster(tuple(obj for obj in objects if obj["kind"] == "NetworkPolicy"))
        (self.operator,) = (pod for pod in pods([_placed(one(objects, "Deployment"))]) if isinstance(pod, Pod))
        test = one(objects, "Pod", "kvserving-operator-test")
        self.test = Pod("test", NAMESPACE, test["metadata"]["labels"])


def _placed(obj: Json) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "namespace": NAMESPACE}}


@pytest.fixture(scope="module")
def release(helm: Helm) -> Release:
    return Release(helm)


def test_monitoring_and_the_test_reach_its_port_and_nobody_else(release: Release) -> None:
    for source in (PROMETHEUS, release.test, STRANGER, INTERNET, DNS, *SERVICE):
        wanted = source in (PROMETHEUS, release.test)
        assert release.cluster.enters(source, release.operator, 8080) is wanted, source.name
        assert not release.cluster.enters(source, release.operator, 9000), source.name
        assert not release.cluster.enters(source, release.test, 8080), source.name


def test_the_test_reaches_the_operator_and_the_apiserver(release: Release) -> None:
    assert release.cluster.leaves(release.test, release.operator, 8080)
    assert release.cluster.leaves(release.test, APISERVER, 443)


def test_it_goes_to_the_apiserver_to_names_and_to_services_and_nowhere_else(release: Release) -> None:
    def leaves(target: Any, port: int, protocol: Any = "TCP") -> bool:
        return release.cluster.leaves(release.operator, target, port, protocol)

    assert all(leaves(APISERVER, port) for port in (443, 6443))
    assert all(leaves(DNS, port, protocol) for port in (53, 5353) for protocol in ("TCP", "UDP"))
    assert all(leaves(pod, port) for pod in (*SERVICE, *ELSEWHERE) for port in (8000, 29000))
    assert not any(leaves(STRANGER, port) for port in (22, 80, 8000, 29000))
    assert not any(leaves(METADATA, port) for port in (80, 8080))


def test_networks_of_the_apiserver_and_served_namespaces_narrow_its_ways(helm: Helm) -> None:
    given = {"apiserver": {"cidrs": ["10.0.0.0/24"], "ports": [6443]}}
    release = Release(helm, namespaces=["default"], networkPolicy=given)

    def leaves(target: Any, port: int) -> bool:
        return release.cluster.leaves(release.operator, target, port)

    assert leaves(APISERVER, 6443)
    assert not leaves(APISERVER, 443)
    assert not leaves(INTERNET, 6443)
    assert all(leaves(pod, 8000) for pod in SERVICE)
    assert not any(leaves(pod, 8000) for pod in ELSEWHERE)

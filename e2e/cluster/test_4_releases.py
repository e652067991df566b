"""Releases of the operator come and go, forward and back; engines and objects stay as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from e2e.cluster.images import NEXT
from e2e.cluster.lane import Lane
from e2e.cluster.service import NAME, UP_SECONDS, Served, everything
from e2e.controlplane.api import Json
from e2e.operator.objects import path_of
from tests.chart.charts import CHART, NAMESPACE
from tests.chart.charts import NAME as RELEASE

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kvservings.kvserving.dev"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"
KEPT = {("PersistentVolumeClaim", "models"), ("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}


def version(lane: Lane) -> set[str]:
    """Return the versions that the operator's pods say of themselves."""
    pods = lane.plane.api.items(
        f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app.kubernetes.io/name={RELEASE}"
    )
    here = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {
        lane.kubectl("exec", f"--namespace={NAMESPACE}", name, "--", "kvserving", "--version").strip() for name in here
    }


@pytest.mark.usefixtures("newer")
def test_a_newer_operator_and_then_the_older_one_restart_no_engine(lane: Lane, operator: str, served: Served) -> None:
    served.wait("Ready")
    before = served.identities()
    [first] = version(lane)
    lane.install({"image": {"tag": NEXT.tag}}, command="upgrade")
    served.wait("Ready")
    [second] = version(lane)
    assert NEXT.tag in second
    assert served.identities() == before
    lane.install(command="upgrade")
    served.wait("Ready")
    assert first != second
    assert version(lane) == {first}
    assert served.identities() == before


def test_an_upgrade_of_the_crd_keeps_objects(lane: Lane, served: Served, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    file = chart / "templates" / "crds.yaml"
    text = file.read_text()
    column = "jsonPath: .metadata.creationTimestamp"
    assert text.count(column) >= 1
    file.write_text(text.replace(column, f"{column}\n      priority: 1", 1))
    before = lane.plane.api.get(path_of(served.namespace, NAME))
    pods = served.identities()
    lane.install(chart=chart, command="upgrade")
    columns = lane.plane.api.get(CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [c for c in columns if c["jsonPath"] == ".metadata.creationTimestamp" and c.get("priority") == 1]
    assert same(before, lane.plane.api.get(path_of(served.namespace, NAME)))
    assert served.identities() == pods


def same(before: Json, after: Json) -> bool:
    """Whether an object is the one that it was: its identity and what its user wrote."""
    return all(before["metadata"][key] == after["metadata"][key] for key in ("uid", "generation")) and (
        before["spec"] == after["spec"]
    )


def test_a_removed_release_leaves_the_service_alone_and_a_new_one_takes_it_over(lane: Lane, served: Served) -> None:
    served.wait("Ready")
    pods = served.identities()
    before = lane.plane.api.get(path_of(served.namespace, NAME))
    lane.uninstall()
    assert lane.plane.api.find(DEPLOYMENT) is None
    assert same(before, lane.plane.api.get(path_of(served.namespace, NAME)))
    assert served.ask(1).finish_reason == "length"
    lane.install()
    served.wait("Ready")
    assert served.identities() == pods


def test_helm_test_succeeds(lane: Lane, operator: str) -> None:
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(lane.kubeconfig), "--timeout", "100s")
    assert "Succeeded" in lane.helm.run("test", RELEASE, *where)


def test_deletion_leaves_nothing_behind(served: Served) -> None:
    made = everything(served.lane, served.namespace) - KEPT
    assert {kind for kind, _ in made} >= {"KVServing", "Deployment", "StatefulSet", "Secret", "Service", "Pod"}
    served.lane.kubectl("delete", f"--namespace={served.namespace}", f"kvs/{NAME}", "--timeout=60s")
    served.gone(KEPT)
    assert json.loads(served.lane.kubectl("get", "kvs", "--all-namespaces", "-o=json"))["items"] == []


def test_a_release_that_keeps_no_crd_takes_the_services_with_it(lane: Lane, place: Served) -> None:
    # Engines that load would hold their pods for the whole grace.
    place.apply(suspend=True)
    place.wait("Ready", "False", "Suspended")
    lane.install({"crds": {"keep": False}}, command="upgrade")
    lane.uninstall()
    lane.plane.api.wait(CRD, lambda found: found is None, what="the CRD's deletion", timeout=60)
    place.gone(KEPT)

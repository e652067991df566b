"""Faults of a real node: the operator dies while it creates, engines' pods go, containerd is restarted."""

from __future__ import annotations

import pytest
from e2e.cluster.lane import Lane
from e2e.cluster.service import NAME, UP_SECONDS, Served, answered
from e2e.operator.objects import condition, path_of
from tests.chart.charts import NAMESPACE

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]


def test_an_operator_that_is_killed_while_it_creates_is_replaced_by_the_other(
    lane: Lane, operator: str, served: Served
) -> None:
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kvserving-operator"
    holder = lane.plane.api.get(leases)["spec"]["holderIdentity"]
    [writing] = [pod for pod in lane.plane.api.items(pods) if pod["metadata"]["name"] in holder]
    served.apply(decode={"replicas": 2})
    secrets = f"/api/v1/namespaces/{served.namespace}/secrets"
    # The first that the operator makes: all else is still to come.
    next(lane.plane.api.watch(secrets, timeout=60, labelSelector="kvserving.dev/name"))
    lane.plane.api.delete(f"{pods}/{writing['metadata']['name']}", gracePeriodSeconds=0)
    obj = served.wait("Ready")
    assert condition(obj, "TransferVerified")["reason"] == "Verified"
    assert lane.plane.api.get(leases)["spec"]["holderIdentity"] != holder


def test_a_decode_pod_that_is_deleted_is_missed_by_nobody(served: Served) -> None:
    served.wait("Ready")
    gone = served.pods("decode")[0]
    with served.traffic() as statuses:
        answered(statuses, 5)
        served.delete_pod(gone)
        served.wait("Ready", "False", timeout=60)
        answered(statuses, 10)
        served.wait("Ready")
        answered(statuses, 5)
    assert set(statuses) == {200}
    assert gone["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in served.pods("decode")}


def test_all_engines_deleted_at_once_come_back_and_the_transfer_is_proved_again(served: Served) -> None:
    served.wait("Ready")
    engines = [*served.pods("prefill"), *served.pods("decode")]
    router = served.pod("router")
    for pod in engines:
        served.delete_pod(pod, grace=0)
    served.wait("Ready", "False", timeout=60)
    served.wait("Ready")
    assert served.ask(7).finish_reason == "length"
    assert served.pod("router")["metadata"]["uid"] == router["metadata"]["uid"]


def test_containerd_is_restarted_under_traffic_and_no_pod_is(served: Served) -> None:
    served.wait("Ready")
    before = served.identities()
    with served.traffic() as statuses:
        answered(statuses, 3)
        served.lane.node.containerd.restart(downtime=5)
        answered(statuses, 10)
    assert set(statuses) == {200}
    assert served.identities() == before
    served.wait("Ready")


def test_the_object_is_the_same_one_still(served: Served) -> None:
    obj = served.lane.plane.api.get(path_of(served.namespace, NAME))
    assert "deletionTimestamp" not in obj["metadata"]
    assert "finalizers" not in obj["metadata"]

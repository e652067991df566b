"""An object is applied where helm has installed the operator, and serves: its KV moves between pods."""

from __future__ import annotations

import ipaddress

import pytest
from e2e.cluster.lane import Lane
from e2e.cluster.layout import POD_RANGE
from e2e.cluster.service import CACHE, NAME, PROMPT, ROLES, UP_SECONDS, Served
from e2e.local.tiers import BLOCK
from e2e.operator.objects import condition, path_of
from tests.chart.charts import NAMESPACE

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]


def test_an_applied_object_gets_ready_and_is_proved_though_the_operator_is_killed_while_it_creates(
    lane: Lane, place: Served
) -> None:
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kvserving-operator"
    holder = lane.plane.api.get(leases)["spec"]["holderIdentity"]
    [writing] = [pod for pod in lane.plane.api.items(pods) if pod["metadata"]["name"] in holder]
    place.apply(cache=CACHE)
    secrets = f"/api/v1/namespaces/{place.namespace}/secrets"
    # The first that the operator makes: all else is still to come.
    next(lane.plane.api.watch(secrets, timeout=60, labelSelector="kvserving.dev/name"))
    lane.plane.api.delete(f"{pods}/{writing['metadata']['name']}", gracePeriodSeconds=0)
    wait = ("wait", f"--namespace={place.namespace}", "--for=condition=Ready", f"kvs/{NAME}")
    lane.kubectl(*wait, f"--timeout={UP_SECONDS}s")
    obj = lane.plane.api.get(path_of(place.namespace, NAME))
    proved = condition(obj, "TransferVerified")
    assert (proved["status"], proved["reason"]) == ("True", "Verified")
    assert "through the router" in proved["message"]
    assert lane.plane.api.get(leases)["spec"]["holderIdentity"] != holder


def test_the_connector_is_the_one_that_the_init_container_brought(served: Served) -> None:
    code = "import kvserving_connector as c; print(c.__file__)"
    for role in ROLES:
        where = (f"--namespace={served.namespace}", served.pod(role)["metadata"]["name"], "--container=engine")
        told = served.lane.kubectl("exec", *where, "--", "python3", "-c", code)
        assert told.strip() == "/opt/kvserving/kvserving_connector/__init__.py"


def test_an_answer_of_the_service_equals_one_engines_and_its_kv_came_from_prefill(served: Served) -> None:
    served.wait("Ready")
    alone = served.ask(1, served.engine_url("prefill"), salt="alone")
    before = served.read("decode")
    through = served.ask(1, salt="through")
    moved = served.read("decode").since(before)
    assert len(alone.ids[0]) > 1
    assert through.ids == alone.ids
    assert moved.of("vllm:nixl_xfer_time_seconds_count") == 1
    assert moved.external >= PROMPT // BLOCK * BLOCK
    other = served.ask(2, salt="through")
    assert other.ids != through.ids


def test_prefill_names_the_address_of_its_pod_and_each_pod_has_one_of_its_own(served: Served) -> None:
    served.wait("Ready")
    addresses = {role: served.pod(role)["status"]["podIP"] for role in ROLES}
    assert len(set(addresses.values())) == len(ROLES)
    assert all(ipaddress.ip_address(ip) in ipaddress.ip_network(POD_RANGE) for ip in addresses.values())
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    params = served.prefilled(3, kv_transfer_params=asked)
    assert params["remote_host"] == addresses["prefill"]

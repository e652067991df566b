"""An object is applied where helm has installed the operator, and serves: its KV moves between pods, and is kept."""

from __future__ import annotations

import ipaddress
import json

import pytest
from e2e.cluster.layout import POD_RANGE
from e2e.cluster.service import CHUNKS, NAME, PROMPT, ROLES, UP_SECONDS, Served, everything
from e2e.local.tiers import BLOCK
from e2e.operator.objects import condition, path_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]

CACHE = {"l1": {"size": "256Mi"}, "l2": {"size": "256Mi"}}


def test_an_applied_object_gets_ready_with_its_transfer_proved(served: Served) -> None:
    served.apply(cache=CACHE)
    wait = ("wait", f"--namespace={served.namespace}", "--for=condition=Ready", f"kvs/{NAME}")
    served.lane.kubectl(*wait, f"--timeout={UP_SECONDS}s")
    obj = served.lane.plane.api.get(path_of(served.namespace, NAME))
    proved = condition(obj, "TransferVerified")
    assert (proved["status"], proved["reason"]) == ("True", "Verified")
    assert "through the router" in proved["message"]


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


def test_what_an_engine_stored_in_valkey_is_loaded_by_the_pod_that_takes_its_place(served: Served) -> None:
    served.wait("Ready")
    with served.storing("prefill", CHUNKS):
        cold = served.ask(4)
    old = served.pod("prefill")
    served.delete_pod(old)
    served.wait("PrefillReady", "False", timeout=60)
    served.wait("Ready")
    assert served.pod("prefill")["metadata"]["uid"] != old["metadata"]["uid"]
    before = served.read("prefill")
    warm = served.ask(4)
    assert warm.ids == cold.ids
    assert served.read("prefill").since(before).loaded == {"l1": 0, "l2": CHUNKS * BLOCK}


def test_deletion_leaves_nothing_behind(served: Served) -> None:
    kept = {("PersistentVolumeClaim", "models"), ("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
    made = everything(served.lane, served.namespace) - kept
    assert {kind for kind, _ in made} >= {"KVServing", "Deployment", "StatefulSet", "Secret", "Service", "Pod"}
    served.lane.kubectl("delete", f"--namespace={served.namespace}", f"kvs/{NAME}", "--timeout=60s")
    served.gone(kept)
    assert json.loads(served.lane.kubectl("get", "kvs", "--all-namespaces", "-o=json"))["items"] == []

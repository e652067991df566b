"""KVServingRole on a real apiserver: what /scale takes and refuses, and that a scaler's number outlives every apply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import urllib3
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.cluster import Cluster

from kvserving_operator.api.schema import role_definition
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.control import role_status, scaling
from kvserving_operator.control.apply import Applier, Outcome
from kvserving_operator.control.config import FIELD_MANAGER, Config
from kvserving_operator.control.credentials import access, client
from kvserving_operator.control.kube import Kube
from kvserving_operator.control.observe import Key, Store, View, child_of, serving_of
from kvserving_operator.control.pods import pod_state
from kvserving_operator.control.workqueue import TokenBucket
from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Plan
from kvserving_operator.reasons import Reason

KIND = "KVServingRole"
GROUP = "kvserving.dev/v1alpha1"


class Operator:
    """The operator's writer of scale targets, one step at a time, for one object with a scaled decode role."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._kubeconfig = cluster.kubeconfig(namespace=namespace)
        self.key = Key(namespace, "qwen")
        self.store = Store(lambda _: None)
        self.path = f"/apis/{GROUP}/namespaces/{namespace}/kvservingroles/qwen-decode"
        obj = {"apiVersion": GROUP, "kind": "KVServing", "metadata": {"name": "qwen", "namespace": namespace}}
        self._obj = cluster.api.create({**obj, "spec": self.spec(2, 6)})
        self.store.put_serving(serving_of(self._obj))

    @staticmethod
    def spec(low: int, high: int) -> Json:
        decode = {"autoscaling": {"min": low, "max": high, "via": "external"}}
        return {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "decode": decode}

    def plan(self, low: int = 2, high: int = 6) -> Plan:
        """The plan of the object with these bounds, its scale targets alone."""
        made = plan(KVServing.model_validate({"metadata": self._obj["metadata"], "spec": self.spec(low, high)}))
        return replace(made, objects=tuple(m for m in made.objects if m["kind"] == KIND))

    @property
    def view(self) -> View:
        found = self.store.view(self.key)
        assert found is not None
        return found

    def apply(self, low: int = 2, high: int = 6) -> Outcome:
        """Apply the scale target with these bounds, from what the operator knows now."""
        outcome = Outcome()
        self._with(lambda kube: Applier(kube, self.store).apply(self.view, self.plan(low, high), outcome))
        return outcome

    def report(self) -> Outcome:
        """Write the scale target's status."""
        outcome = Outcome()
        self._with(lambda kube: role_status.report(kube, self.store, self.view, self.plan(), outcome))
        return outcome

    def watch(self) -> Json:
        """Let the operator know the scale target as it is now, and return it."""
        live = self._cluster.api.get(self.path)
        self.store.put_child(self.key, child_of(live, GROUP, KIND))
        return live

    def _with(self, work: Callable[[Kube], Awaitable[None]]) -> None:
        async def run() -> None:
            async with client((await access(Config(kubeconfig=self._kubeconfig))).settings) as api:
                clock: Any = asyncio.get_running_loop()
                limit = TokenBucket(clock, 100.0, 100)
                await work(
                    Kube(
                        api,
                        limit=limit,
                        timeout=30.0,
                        may_write=lambda: True,
                        observe=lambda _: None,
                        now=time.monotonic,
                    )
                )

        asyncio.run(run())


@pytest.fixture
def operator(cluster: Cluster, namespace: str) -> Operator:
    made = Operator(cluster, namespace)
    assert made.apply().problems == {}
    return made


def scale(cluster: Cluster, operator: Operator, replicas: int, manager: str = "hpa") -> Json:
    """Write the number as scalers do."""
    patch = {"spec": {"replicas": replicas}}
    return cluster.api.merge(f"{operator.path}/scale", patch, fieldManager=manager)


def owners(obj: Json) -> set[tuple[str, str]]:
    """Managers of the number, with the subresource that they wrote through."""
    return {
        (entry["manager"], entry.get("subresource", ""))
        for entry in obj["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }


def test_scale_shows_the_number_the_pods_and_a_selector_that_finds_them(cluster: Cluster, operator: Operator) -> None:
    pod = cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "engine",
                "namespace": operator.key.namespace,
                "labels": {"kvserving.dev/name": "qwen", "kvserving.dev/role": "decode"},
            },
            "spec": {"containers": [{"name": "engine", "image": "x"}]},
        }
    )
    operator.store.put_pod(operator.key, pod_state(pod))
    assert operator.report().writes == 1
    assert operator.report().writes == 0
    found = cluster.api.get(f"{operator.path}/scale")
    assert found["kind"] == "Scale"
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (2, 1)
    pods = f"/api/v1/namespaces/{operator.key.namespace}/pods"
    assert [p["metadata"]["name"] for p in cluster.api.items(pods, labelSelector=found["status"]["selector"])] == [
        "engine"
    ]


def test_a_scalers_number_is_kept_through_every_apply(cluster: Cluster, operator: Operator) -> None:
    assert owners(cluster.api.get(operator.path)) == {(FIELD_MANAGER, "")}
    scale(cluster, operator, 5)
    assert owners(operator.watch()) == {("hpa", "scale")}
    for high in (6, 9, 6):
        assert operator.apply(high=high).problems == {}
        live = operator.watch()
        assert (live["spec"]["replicas"], live["spec"]["bounds"]["max"]) == (5, high)
        assert owners(live) == {("hpa", "scale")}
    assert operator.apply().writes == 0


def test_bounds_that_shrink_below_the_number_are_taken_and_leave_it(cluster: Cluster, operator: Operator) -> None:
    scale(cluster, operator, 6)
    operator.watch()
    assert operator.apply(high=4).problems == {}
    assert operator.watch()["spec"]["replicas"] == 6
    assert scale(cluster, operator, 4)["spec"]["replicas"] == 4


def test_a_number_that_the_operator_has_not_seen_is_not_overwritten(cluster: Cluster, operator: Operator) -> None:
    scale(cluster, operator, 5)
    assert operator.apply(high=9).problems[KIND, "qwen-decode"].reason is Reason.CONFLICT
    assert operator.watch()["spec"]["replicas"] == 5
    assert operator.apply(high=9).problems == {}
    live = operator.watch()
    assert (live["spec"]["replicas"], live["spec"]["bounds"]["max"]) == (5, 9)


def test_four_zero_four(cluster: Cluster, operator: Operator) -> None:
    for number in (4, 0, 4):
        scale(cluster, operator, number, manager="kubectl")
        operator.watch()
        assert operator.apply().problems == {}
        assert operator.watch()["spec"]["replicas"] == number
        assert scaling.asked(operator.view) == {"decode": number}


def test_a_number_that_was_taken_away_is_given_again(cluster: Cluster, operator: Operator) -> None:
    scale(cluster, operator, 5)
    cluster.api.merge(operator.path, {"spec": {"replicas": None}})
    assert "replicas" not in operator.watch()["spec"]
    assert operator.apply().problems == {}
    assert operator.watch()["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("patch", "field", "words"),
    [
        ({"replicas": 7}, "spec.replicas", "is outside spec.bounds"),
        ({"replicas": 1}, "spec.replicas", "is outside spec.bounds"),
        ({"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
        ({"replicas": "many"}, "spec.replicas", "must be of type integer"),
        ({"role": "prefill"}, "spec.role", "never changes"),
        ({"servingName": "other"}, "spec.servingName", "never changes"),
        ({"bounds": {"min": 7}}, "spec.bounds.min", "is above max"),
        ({"role": "router"}, "spec.role", 'supported values: "prefill", "decode"'),
        ({"selector": ""}, "spec.selector", "at least 1 chars long"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    cluster: Cluster, operator: Operator, patch: Json, field: str, words: str
) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.api.merge(operator.path, {"spec": patch})
    assert refused.value.status == 422
    causes = refused.value.body["details"]["causes"]
    assert any(c["field"] == field and words in c["message"] for c in causes), causes


def test_scale_refuses_a_number_outside_the_bounds_by_name(cluster: Cluster, operator: Operator) -> None:
    with pytest.raises(ApiError, match=r"spec\.replicas.*is outside spec\.bounds"):
        scale(cluster, operator, 7)
    assert operator.watch()["spec"]["replicas"] == 2


def test_the_apiserver_stores_the_definition_as_it_is_written(cluster: Cluster) -> None:
    stored = cluster.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kvservingroles.kvserving.dev")
    assert stored["spec"]["versions"] == role_definition()["spec"]["versions"]


def test_columns_tell_what_is_asked_for_and_what_there_is(cluster: Cluster, operator: Operator) -> None:
    operator.report()
    pool = urllib3.PoolManager(ca_certs=str(cluster.ca_file) if cluster.ca_file else None)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    headers = {"Authorization": f"Bearer {cluster.admin.token}", "Accept": accept}
    table = pool.request("GET", cluster.server + operator.path, headers=headers).json()
    names = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert names == ["Name", "Serving", "Role", "Asked", "Engines", "Min", "Max", "Age"]
    assert table["rows"][0]["cells"][1:7] == ["qwen", "decode", 2, 0, 2, 6]


def test_kubernetes_own_autoscaler_reads_and_writes_it(cluster: Cluster, operator: Operator) -> None:
    """It raises a number below its least without asking for metrics, as it does here."""
    if not cluster.has_controllers:
        pytest.skip("the cluster runs no controllers")
    operator.report()
    reference = {"apiVersion": GROUP, "kind": KIND, "name": "qwen-decode"}
    metric = {"name": "vllm_kv_cache_usage_perc"}
    pods = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "800m"}}
    cluster.api.create(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "qwen-decode", "namespace": operator.key.namespace},
            "spec": {
                "scaleTargetRef": reference,
                "minReplicas": 4,
                "maxReplicas": 6,
                "metrics": [{"type": "Pods", "pods": pods}],
            },
        }
    )
    cluster.api.wait(
        operator.path, lambda o: o is not None and o["spec"]["replicas"] == 4, what="a number by HPA", timeout=90
    )
    live = operator.watch()
    assert owners(live) == {("kube-controller-manager", "scale")}
    assert operator.apply(high=9).problems == {}
    assert operator.watch()["spec"]["replicas"] == 4
    path = f"/apis/autoscaling/v2/namespaces/{operator.key.namespace}/horizontalpodautoscalers/qwen-decode"
    told = cluster.api.wait(
        path,
        lambda o: any(
            c["type"] == "ScalingActive" and c["status"] == "False"
            for c in ((o or {}).get("status") or {}).get("conditions") or ()
        ),
        what="HPA to miss its metrics",
        timeout=90,
    )
    assert told is not None
    (failing,) = child_of(told, "autoscaling/v2", "HorizontalPodAutoscaler").failing
    assert failing[:2] == ("ScalingActive", "FailedGetPodsMetric")

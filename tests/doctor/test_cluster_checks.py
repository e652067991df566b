"""What is told of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.world import CLASS, SPEC, node, operator
from tests.plan.support import edited

from kvserving_operator import __version__
from kvserving_operator.api.schema import object_schema
from kvserving_operator.api.v1alpha1 import API_VERSION, KIND
from kvserving_operator.control.permissions import CHILDREN, GROUPS
from kvserving_operator.doctor import checks
from kvserving_operator.doctor.facts import ClusterFacts, Permission, Unread
from kvserving_operator.doctor.findings import Finding, Severity
from kvserving_operator.doctor.gather_cluster import clock, needs

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


CLUSTER = ClusterFacts(
    server="https://c",
    version="v1.35.2",
    kinds=frozenset({(API_VERSION, KIND), *((r.api_version, r.kind) for r in CHILDREN)}),
    schema=object_schema(),
    nodes=(node("a"), node("b")),
    operators=(operator(),),
    storage_classes=(CLASS,),
    permissions=(Permission("you", "get secrets", True, "verify"),),
    daemons=({"metadata": {"name": "cilium", "namespace": "kube-system"}},),
    dns=({"metadata": {}, "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {}}]},),
    clocks={"a": 0.4, "b": -0.7},
)


def of_cluster(**changes: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.of_cluster(replace(CLUSTER, **changes))}


def changed_node(**info: Any) -> dict[str, Any]:
    made = node("a")
    made["status"]["nodeInfo"].update(info)
    return made


def pressed() -> dict[str, Any]:
    made = node("a")
    made["status"]["conditions"].append({"type": "DiskPressure", "status": "True"})
    return made


def plain(name: str, **changes: Any) -> dict[str, Any]:
    return node(name, **{"rdma/hca": None, **changes})


def labelled(name: str, product: str) -> dict[str, Any]:
    made = node(name)
    made["metadata"]["labels"]["nvidia.com/gpu.product"] = product
    return made


def having(there: str, given: str) -> dict[str, Any]:
    """A node with so many GPUs of which so many can be had."""
    made = node("a", **{"nvidia.com/gpu": given})
    made["status"]["capacity"] = {"nvidia.com/gpu": there, "memory": "950Gi"}
    return made


def unplugged() -> dict[str, Any]:
    made = node("a", **{"nvidia.com/gpu": None})
    made["status"]["capacity"] = {"memory": "950Gi"}
    made["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    return made


def daemon(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "kube-system"}}


def dns(*, ready: bool | None) -> dict[str, Any]:
    return {"metadata": {"name": "kube-dns-x"},
            "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": ready}}]}  # fmt: skip


def spanning() -> dict[str, Any]:
    """An object whose decode engines span two nodes."""
    spec = edited(edited(SPEC, "decode.nodes", 2), "decode.parallelism.tensor", 2)
    return {"metadata": {"name": "qwen", "namespace": "prod", "uid": "u"}, "spec": spec}


WITHOUT_GROUPS = (CLUSTER.kinds or frozenset()) - {(GROUPS.api_version, GROUPS.kind)}


def test_a_cluster_without_a_flaw_has_no_finding() -> None:
    assert of_cluster() == {}


@pytest.mark.parametrize(
    ("check", "changes", "severity", "what"),
    [
        ("not-looked-at", {"unread": (Unread("nodes", "nodes may not be read", "ask"),)}, INFO, "may not"),
        ("kubernetes-old", {"version": "v1.29.1"}, WARNING, "v1.29.1"),
        ("crd-missing", {"kinds": frozenset()}, ERROR, API_VERSION),
        ("crd-missing", {"kinds": frozenset({(API_VERSION, KIND)})}, ERROR, "KVServingRole"),
        ("optional-kinds", {"kinds": frozenset({(API_VERSION, KIND)})}, INFO, "PodMonitor"),
        ("operator-missing", {"operators": ()}, WARNING, "no Deployment"),
        ("operator-down", {"operators": (operator(available=0),)}, ERROR, "available"),
        ("operator-version", {"operators": (operator(version="0.0.9"),)}, WARNING, "0.0.9"),
        ("several-operators", {"operators": (operator(), operator("op2"))}, ERROR, "kvserving-system/op2"),
        ("permissions", {"permissions": (Permission("you", "get secrets", False, "verify"),)}, WARNING, "get secrets"),
        (
            "operator-permissions",
            {"permissions": (Permission("system:serviceaccount:a:b", "patch services", False, "router"),)},
            ERROR,
            "patch services",
        ),
        ("no-ready-node", {"nodes": ()}, ERROR, "none of 0"),
        ("no-devices", {"nodes": (node("a", **{"nvidia.com/gpu": None}),)}, WARNING, "no node offers"),
        ("no-rdma", {"nodes": (plain("a"), plain("b"))}, INFO, "2 nodes"),
        ("architectures", {"nodes": (changed_node(architecture="arm64"), node("b"))}, WARNING, "amd64, arm64"),
        ("kernel-old", {"nodes": (changed_node(kernelVersion="5.10.0-1"),)}, INFO, "5.10.0-1"),
        ("node-pressure", {"nodes": (pressed(),)}, WARNING, "DiskPressure"),
        ("kubernetes-untested", {"version": "v1.99.0"}, INFO, "1.35"),
        ("kind-missing", {"kinds": WITHOUT_GROUPS, "needs": needs((spanning(),))}, ERROR, "prod/qwen"),
        ("clocks-differ", {"clocks": {"a": -3.0, "b": 4.5, "c": 0}}, WARNING, "8 s ahead of that of node a"),
        ("clocks-differ", {"clocks": {"a": 0.0, "b": 31.0}}, ERROR, "31 s"),
        ("gpus-differ", {"nodes": (labelled("a", "H100"), labelled("b", "L4"))}, WARNING, "H100, L4"),
        ("devices-unhealthy", {"nodes": (having("8", "6"),)}, WARNING, "6 of its 8 nvidia.com/gpu"),
        ("device-plugin", {"nodes": (unplugged(), node("b"))}, ERROR, "nvidia.com/gpu.present"),
        ("kubelet-old", {"nodes": (changed_node(kubeletVersion="v1.31.9"),)}, WARNING, "v1.31.9"),
        ("policies-not-enforced", {"daemons": (daemon("kube-flannel-ds"), daemon("ciliumx"))}, INFO, "no network"),
        ("dns-down", {"dns": (dns(ready=False), {"metadata": {}})}, ERROR, "none of its endpoints"),
        ("storage-of-one-node", {"storage_classes": ({**CLASS, "provisioner": "ebs.csi.aws.com"},)}, INFO, "ebs"),
        ("no-default-storage-class", {"storage_classes": ()}, INFO, "none"),
    ],
)
def test_what_a_cluster_lacks_is_told(check: str, changes: dict[str, Any], severity: Severity, what: str) -> None:
    told = of_cluster(**changes)
    assert check in told, sorted(told)
    assert told[check].severity is severity
    assert what in told[check].what
    assert told[check].fix


@pytest.mark.parametrize("kinds", [frozenset(), frozenset({(API_VERSION, KIND)})])
def test_crds_are_applied_as_they_are_upgraded_server_side(kinds: frozenset[tuple[str, str]]) -> None:
    assert "`kubectl apply --server-side -f crds/`" in of_cluster(kinds=kinds)["crd-missing"].fix


def test_the_version_of_an_operator_is_that_of_its_image_where_the_tag_tells_it() -> None:
    body = operator()
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["image"] = "mirror.example:5000/kvserving/operator:9.9.9"
    assert "it is of version 9.9.9" in of_cluster(operators=(body,))["operator-version"].what
    container["image"] = f"kvserving/operator:{__version__}"
    body["metadata"]["labels"]["app.kubernetes.io/version"] = "0.0.9"
    assert of_cluster(operators=(body,)) == {}
    container["image"] = "kvserving/operator@sha256:0"
    assert "0.0.9" in of_cluster(operators=(body,))["operator-version"].what


def pod_of(name: str, tag: str, *, waiting: str = "", words: str = "") -> dict[str, Any]:
    """A pod of the operator that is ready, or does not start."""
    image = f"kvserving/operator:{tag}"
    container = {"name": "operator", "image": image, "state": {"waiting": {"reason": waiting}} if waiting else {}}
    conditions = [{"type": "Ready", "status": "False" if waiting or words else "True"}]
    if words:
        conditions.append({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words})
    return {
        "metadata": {"name": name, "namespace": "kvserving-system", "uid": name, "labels": {"of": "op"}},
        "spec": {"containers": [{"image": image}]},
        "status": {"conditions": conditions, "containerStatuses": [container]},
    }


def upgraded(available: int = 2, *, release: str = "") -> dict[str, Any]:
    made = operator(available=available)
    made["spec"]["selector"] = {"matchLabels": {"of": "op"}}
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "kvserving/operator:9.9.9"
    made["metadata"]["annotations"] = {"meta.helm.sh/release-name": release} if release else {}
    return made


OLD = (pod_of("old-1", __version__), pod_of("old-2", __version__))


def test_an_upgrade_whose_pods_do_not_start_is_told_and_what_runs_is_compared() -> None:
    pods = (*OLD, pod_of("new-1", "9.9.9", waiting="ErrImagePull"))
    told = of_cluster(operators=(upgraded(release="kv"),), pods=pods)
    assert set(told) == {"operator-upgrade-stuck"}
    said = told["operator-upgrade-stuck"]
    assert said.severity is WARNING
    assert "pod new-1: ImagePullBackOff container operator: image kvserving/operator:9.9.9" in said.what
    assert "old-1, old-2 of before still run" in said.what
    assert "`helm upgrade kv charts/kvserving-operator -n kvserving-system --reuse-values --set image." in said.fix
    assert "`helm rollback kv -n kvserving-system`" in said.fix
    applied = of_cluster(operators=(upgraded(),), pods=pods)["operator-upgrade-stuck"].fix
    assert "`kubectl rollout undo deployment/op -n kvserving-system`" in applied


@pytest.mark.parametrize(
    ("pod", "what", "way_out"),
    [
        (
            pod_of("new", "9.9.9", waiting="CrashLoopBackOff"),
            "CrashLoopBackOff",
            "kubectl logs new -n kvserving-system",
        ),
        (pod_of("new", "9.9.9", words="0/1 nodes: Insufficient cpu"), "Insufficient cpu", "room for one more pod"),
    ],
)
def test_the_way_out_of_a_new_pod_of_the_operator_is_that_of_its_fault(
    pod: dict[str, Any], what: str, way_out: str
) -> None:
    told = of_cluster(operators=(upgraded(),), pods=(*OLD, pod))["operator-upgrade-stuck"]
    assert what in told.what
    assert way_out in told.fix
    down = of_cluster(operators=(upgraded(available=0),), pods=(pod,))
    assert what in down["operator-down"].what
    assert way_out in down["operator-down"].fix
    assert "operator-upgrade-stuck" not in down


def test_pods_of_another_operator_or_of_a_rollout_that_goes_on_are_no_fault() -> None:
    other = pod_of("new", "9.9.9", waiting="ErrImagePull")
    other["metadata"]["namespace"] = "elsewhere"
    starting = pod_of("new", "9.9.9", waiting="ContainerCreating")
    assert of_cluster(operators=(upgraded(),), pods=(*OLD, other, starting)) == {}
    both = of_cluster(operators=(upgraded(),), pods=(OLD[0], pod_of("new", "9.9.9")))
    assert "it is of version 9.9.9" in both["operator-version"].what


def test_without_its_pods_a_rollout_that_does_not_end_is_told_by_the_deployments_condition() -> None:
    late = upgraded()
    late["status"]["conditions"] = [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    ]
    assert "ProgressDeadlineExceeded: timed out" in of_cluster(operators=(late,))["operator-upgrade-stuck"].what
    assert "operator-upgrade-stuck" not in of_cluster(operators=(late,), pods=OLD)


def test_operators_of_single_namespaces_are_no_rivals() -> None:
    one, other = operator("a", __version__, 1, "--namespace=x"), operator("b", __version__, 1, "--namespace=y")
    assert of_cluster(operators=(one, other)) == {}


def released(name: str, *namespaces: str) -> dict[str, Any]:
    """An operator that helm installed as a release of this name."""
    made = operator(name, __version__, 1, *(f"--namespace={namespace}" for namespace in namespaces))
    made["metadata"] |= {"namespace": f"{name}-system", "annotations": {"meta.helm.sh/release-name": name}}
    return made


@pytest.mark.parametrize(
    ("first", "second", "both", "ways_out"),
    [
        ((), ("b",), "both write in namespace b", ["a -n a-system", "--set 'namespaces={prod}'"]),
        (("x",), (), "both write in namespace x", ["b -n b-system", "--set 'namespaces={b,prod}'"]),
        (("x", "y"), ("y", "z"), "both write in namespace y", ["b -n b-system", "--set 'namespaces={z}'"]),
        (("x", "y"), ("y",), "both write in namespace y", ["a -n a-system", "--set 'namespaces={x}'"]),
        (("x",), ("x",), "both write in namespace x", ["remove one", "a -n a-system", "b -n b-system"]),
        ((), (), "both write in all", ["remove one", "a -n a-system", "b -n b-system", "{NAMESPACE}"]),
    ],
)
def test_operators_that_share_a_namespace_are_told_with_the_command_that_parts_them(
    first: tuple[str, ...], second: tuple[str, ...], both: str, ways_out: list[str]
) -> None:
    operators = (released("a", *first), released("b", *second))
    told = of_cluster(operators=operators, needs={"Deployment": ("prod/qwen", "b/tiny")})["several-operators"]
    assert told.severity is ERROR
    assert told.what.endswith(both)
    for name, namespaces in (("a", first), ("b", second)):
        assert f"Deployment {name}-system/{name} serves {', '.join(namespaces) or 'all namespaces'}" in told.what
    for words in ways_out:
        assert words.replace(" -n", " charts/kvserving-operator -n") in told.fix, told.fix
    if first != second:
        assert told.fix.count("helm upgrade") == 1


def test_the_one_of_all_namespaces_is_given_those_of_objects_that_the_other_does_not_serve() -> None:
    operators, objects = (released("a"), released("b", "team-b")), ("team-a/x", "team-b/y", "team-c/z")
    told = of_cluster(operators=operators, needs={"Deployment": objects})["several-operators"].fix
    assert "--set 'namespaces={team-a,team-c}'" in told
    assert "team-a, team-c have objects now" in told
    bundled = of_cluster(operators=(operator("a"), released("b", "team-b")), needs={"Deployment": objects})
    assert (
        "`kubectl edit deployment/a -n kvserving-system`, with --namespace=team-a and --namespace=team-c in its args"
        in bundled["several-operators"].fix
    )


def test_an_operator_without_replicas_is_no_rival() -> None:
    stopped = released("a")
    stopped["spec"]["replicas"] = 0
    assert "several-operators" not in of_cluster(operators=(stopped, released("b", "team-b")))


def test_kinds_that_no_object_asks_for_are_no_error() -> None:
    assert "kind-missing" not in of_cluster(kinds=WITHOUT_GROUPS, needs={"Deployment": ("prod/qwen",)})
    assert "kind-missing" not in of_cluster(needs=needs((spanning(),)))


def test_what_cannot_be_planned_asks_for_nothing() -> None:
    broken = {**spanning(), "spec": {"model": {}}}
    assert needs((broken,)) == {}
    assert needs((broken, spanning()))["LeaderWorkerSet"] == ("prod/qwen",)


def test_an_endpoint_without_a_word_is_ready_and_a_cluster_without_that_service_is_not_judged() -> None:
    assert of_cluster(dns=(dns(ready=False), dns(ready=None))) == {}
    assert of_cluster(dns=()) == {}


def test_the_clock_of_a_node_is_told_by_the_apiservers_beside_its_heartbeat() -> None:
    beat: dict[str, Any] = {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}}}}}
    label: dict[str, Any] = {"f:metadata": {"f:labels": {}}}
    made = node("a")
    made["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T00:00:52Z"}]
    assert clock(made) is None
    made["metadata"]["managedFields"] = [
        {"manager": "kubectl", "time": "2026-01-02T00:09:00Z", "fieldsV1": label},
        {"manager": "kubelet", "time": "2026-01-02T00:00:10Z", "fieldsV1": beat, "subresource": "status"},
    ]
    assert clock(made) == 42
    assert clock({"metadata": made["metadata"]}) is None

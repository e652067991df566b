"""Values of pod templates: choices, bounds and names that the apiserver checks are checked here."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair

from kvserving_operator.plan import check_fields, check_values

POD = "spec.decode.template.spec"


def pod(**parts: Any) -> dict[str, Any]:
    return {"spec": parts}


def side(**parts: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "side", "image": "a/b:1", **parts}])


def volume(kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return pod(volumes=[{"name": "data", kind: source}])


def items(mode: int) -> dict[str, Any]:
    return {"secretName": "a", "items": [{"key": "a", "path": "a", "mode": mode}]}


def spread(**parts: Any) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}, **parts}
    return pod(topologySpreadConstraints=[rule])


def affinity(kind: str, operator: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "a", "operator": operator, "values": ["1"]}]}]
    if kind == "NodeSelectorRequirement":
        return pod(
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        )
    term = {"topologyKey": "a", "labelSelector": terms[0]}
    return pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})


def preferred(kind: str, weight: int, topology: str = "a") -> dict[str, Any]:
    if kind == "PreferredSchedulingTerm":
        term: dict[str, Any] = {"weight": weight, "preference": {"matchFields": []}}
        return pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}})
    term = {"weight": weight, "podAffinityTerm": {"topologyKey": topology, "labelSelector": {}}}
    return pod(affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}})


CASES: dict[tuple[str, str], Any] = {
    ("ConfigMapVolumeSource", "defaultMode"): lambda v: volume("configMap", {"name": "a", "defaultMode": v}),
    ("Container", "imagePullPolicy"): lambda v: side(imagePullPolicy=v),
    ("Container", "terminationMessagePolicy"): lambda v: side(terminationMessagePolicy=v),
    ("ContainerPort", "protocol"): lambda v: side(ports=[{"containerPort": 9, "protocol": v}]),
    ("DownwardAPIVolumeSource", "defaultMode"): lambda v: volume("downwardAPI", {"defaultMode": v}),
    ("HTTPGetAction", "scheme"): lambda v: side(livenessProbe={"httpGet": {"port": 9, "path": "/", "scheme": v}}),
    ("HostPathVolumeSource", "type"): lambda v: volume("hostPath", {"path": "/a", "type": v}),
    ("KeyToPath", "mode"): lambda v: volume("secret", items(v)),
    ("LabelSelectorRequirement", "operator"): lambda v: affinity("LabelSelectorRequirement", v),
    ("NodeSelectorRequirement", "operator"): lambda v: affinity("NodeSelectorRequirement", v),
    ("PodAffinityTerm", "topologyKey"): lambda v: preferred("PodAffinityTerm", 1, v),
    ("PodSecurityContext", "fsGroup"): lambda v: pod(securityContext={"fsGroup": v}),
    ("PodSecurityContext", "fsGroupChangePolicy"): lambda v: pod(securityContext={"fsGroupChangePolicy": v}),
    ("PodSecurityContext", "runAsGroup"): lambda v: pod(securityContext={"runAsGroup": v}),
    ("PodSecurityContext", "runAsUser"): lambda v: pod(securityContext={"runAsUser": v}),
    ("PodSpec", "dnsPolicy"): lambda v: pod(dnsPolicy=v),
    ("PodSpec", "nodeName"): lambda v: pod(nodeName=v),
    ("PodSpec", "preemptionPolicy"): lambda v: pod(preemptionPolicy=v),
    ("PodSpec", "priorityClassName"): lambda v: pod(priorityClassName=v),
    ("PodSpec", "runtimeClassName"): lambda v: pod(runtimeClassName=v),
    ("PodSpec", "serviceAccountName"): lambda v: pod(serviceAccountName=v),
    ("PreferredSchedulingTerm", "weight"): lambda v: preferred("PreferredSchedulingTerm", v),
    ("ProjectedVolumeSource", "defaultMode"): lambda v: volume("projected", {"sources": [], "defaultMode": v}),
    ("SeccompProfile", "type"): lambda v: side(securityContext={"seccompProfile": {"type": v}}),
    ("SecretVolumeSource", "defaultMode"): lambda v: volume("secret", {"secretName": "a", "defaultMode": v}),
    ("SecurityContext", "runAsGroup"): lambda v: side(securityContext={"runAsGroup": v}),
    ("SecurityContext", "runAsUser"): lambda v: side(securityContext={"runAsUser": v}),
    ("Toleration", "effect"): lambda v: pod(tolerations=[{"key": "a", "operator": "Exists", "effect": v}]),
    ("Toleration", "key"): lambda v: pod(tolerations=[{"key": v, "operator": "Exists"}]),
    ("TopologySpreadConstraint", "maxSkew"): lambda v: spread(maxSkew=v),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): lambda v: spread(whenUnsatisfiable=v),
    ("VolumeMount", "mountPropagation"): lambda v: side(
        volumeMounts=[{"name": "shm", "mountPath": "/a", "mountPropagation": v}]
    ),
    ("WeightedPodAffinityTerm", "weight"): lambda v: preferred("WeightedPodAffinityTerm", v),
}
"""A template with a given value in each field that is checked."""


def good(place: tuple[str, str]) -> tuple[Any, ...]:
    """Values that the field may have: every choice, both bounds, or a name."""
    if place in check_values.CHOICES:
        return check_values.CHOICES[place]
    if place in check_values.BOUNDS:
        return check_values.BOUNDS[place]
    return ("a.b-c",) if place in check_values.NAMES else ("example.com/a_B",)


def bad(place: tuple[str, str]) -> tuple[Any, ...]:
    """Values that it may not have."""
    if place in check_values.BOUNDS:
        least, most = check_values.BOUNDS[place]
        return (least - 1, *((most + 1,) if most < 2**31 - 1 else ()))
    return ("Sesame seed",)


def test_every_field_that_is_checked_exists_and_has_a_case() -> None:
    checked = {*check_values.CHOICES, *check_values.BOUNDS, *check_values.NAMES, *check_values.KEYS}
    assert checked == set(CASES)
    assert {(kind, field) for kind, field in checked if field in check_fields.table()[kind]} == checked


@pytest.mark.parametrize("place", CASES, ids=lambda place: ".".join(place))
def test_a_value_of_a_field_is_accepted_or_refused_once_at_its_place(place: tuple[str, str]) -> None:
    for value in good(place):
        assert faults(pair(decode={"template": CASES[place](value)})) == ""
    for value in bad(place):
        (line,) = faults(pair(decode={"template": CASES[place](value)})).splitlines()
        path, _, message = line.partition(": ")
        assert path.startswith(POD)
        assert path.endswith(f".{place[1]}")
        assert str(value) in message


def test_a_near_miss_is_told_the_choice() -> None:
    assert faults(pair(decode={"template": side(imagePullPolicy="always")})).endswith(
        "'always' is not one of Always, IfNotPresent, Never; did you mean Always?"
    )


def test_a_mode_that_was_meant_as_octal_is_shown_as_octal() -> None:
    report = faults(pair(decode={"template": volume("secret", {"secretName": "a", "defaultMode": 644})}))
    assert report.endswith("644 (0o1204) is out of bounds: Kubernetes takes 0 to 511, which is 0777")

"""Pod templates: kinds replace each other, and what the apiserver would refuse is refused here."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair, render

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
ENGINE = "spec.prefill.template.spec.containers[engine]"
SIDE = "spec.prefill.template.spec.containers[side]"
HANDLERS: dict[str, dict[str, Any]] = {
    "exec": {"command": ["true"]},
    "tcpSocket": {"port": 8000},
    "grpc": {"port": 8000},
}


def refused(template: dict[str, Any]) -> str:
    return faults(pair(prefill={"template": template}))


def with_engine(**parts: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **parts}]}}


def with_side(**parts: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "side", "image": "a/b:1", **parts}]}}


def rendered(template: dict[str, Any]) -> Any:
    return render(pair(prefill={"template": template})).prefill


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("kind", HANDLERS)
def test_a_probe_of_another_kind_replaces_the_rendered_kind(probe: str, kind: str) -> None:
    found = rendered(with_engine(**{probe: {kind: HANDLERS[kind]}})).container[probe]
    assert found[kind] == HANDLERS[kind]
    assert not {"exec", "httpGet", "tcpSocket", "grpc"} & set(found) - {kind}
    assert found["periodSeconds"] == render(pair()).prefill.container[probe]["periodSeconds"]


def test_a_probe_of_the_same_kind_is_merged() -> None:
    found = rendered(with_engine(livenessProbe={"httpGet": {"path": "/ping"}})).container["livenessProbe"]
    assert found["httpGet"] == {"path": "/ping", "port": "http"}


def test_a_variable_from_a_source_replaces_a_literal_one_and_the_other_way_round() -> None:
    source = {"secretKeyRef": {"name": "a", "key": "b"}}
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
    over = with_engine(env=[{"name": "A", "valueFrom": source}, {"name": "B", "valueFrom": source}])
    spec = pair(engine={"env": env}, prefill={"template": over})
    assert faults(spec) == ""
    found = {v["name"]: v for v in render(spec).prefill.container["env"]}
    assert found["A"] == {"name": "A", "valueFrom": source}
    assert found["B"] == {"name": "B", "valueFrom": source}
    back = with_engine(env=[{"name": "B", "value": "2"}])
    found = {
        v["name"]: v for v in render(pair(engine={"env": env}, prefill={"template": back})).prefill.container["env"]
    }
    assert found["B"] == {"name": "B", "value": "2"}


TWO = {"exec": HANDLERS["exec"], "tcpSocket": HANDLERS["tcpSocket"]}
VOLUME = {"name": "data", "emptyDir": {}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (with_engine(livenessProbe=TWO), f"{ENGINE}.livenessProbe", "exec and tcpSocket exclude each other"),
    (with_engine(livenessProbe={"exec": "true"}), f"{ENGINE}.livenessProbe.exec", "must be an object"),
    (with_engine(startupProbe={"successThreshold": 2}), f"{ENGINE}.startupProbe.successThreshold", "1 only"),
    (with_side(readinessProbe={"periodSeconds": 2}), f"{SIDE}.readinessProbe", "does nothing"),
    (with_side(lifecycle={"preStop": TWO}), f"{SIDE}.lifecycle.preStop", "exclude each other"),
    (with_engine(**{"$patch": "replace"}), f"{ENGINE}.$patch", "directive of a patch"),
    ({"spec": {"$retainKeys": ["volumes"]}}, "spec.prefill.template.spec.$retainKeys", "directive of a patch"),
    ({"spec": {"containers": [{"name": "vllm"}]}}, "containers[vllm]", "the rendered one is named engine"),
    ({"spec": {"containers": [{"name": "engine"}] * 2}}, "spec.containers", "engine names 2 containers"),
    ({"spec": {"initContainers": [{"name": "engine", "image": "a"}]}}, "spec.containers", "engine"),
    ({"spec": {"containers": [{"name": "connector", "image": "a"}]}}, "spec.containers", "choose another"),
    ({"spec": {"containers": [{"name": "Side_Car", "image": "a"}]}}, "containers[Side_Car]", "no name of a container"),
    ({"spec": {"volumes": [VOLUME, VOLUME]}}, "spec.volumes", "data names 2 volumes"),
    ({"spec": {"volumes": [{**VOLUME, "hostPath": {"path": "/a"}}]}}, "spec.volumes[data]", "emptyDir, hostPath"),
    ({"spec": {"volumes": [{"name": "Data", "emptyDir": {}}]}}, "spec.volumes", "no name of a volume"),
    ({"spec": {"volumes": [{"name": "claim-0", "emptyDir": {}}]}}, "spec.volumes", "claim-0 is the operator's"),
    (with_engine(volumeMounts=[{"name": "nowhere", "mountPath": "/a"}]), f"{ENGINE}.volumeMounts", "no volume has"),
    (with_side(volumeMounts=[{"name": "shm", "mountPath": "/a"}] * 2), f"{SIDE}.volumeMounts", "mounted twice"),
    (
        with_engine(volumeMounts=[{"name": "data", "mountPath": "/var/lib/kvserving/claims/a"}]),
        f"{ENGINE}.volumeMounts",
        "would hide",
    ),
    (with_side(ports=[{"name": "a", "containerPort": n} for n in (1, 2)]), f"{SIDE}.ports", "a names 2 ports"),
    (with_side(ports=[{"containerPort": 9}, {"containerPort": 9}]), f"{SIDE}.ports", "9/TCP is declared twice"),
    (with_side(ports=[{"containerPort": "9"}]), f"{SIDE}.ports[0].containerPort", "remove the quotes"),
    (with_side(ports=[{"containerPort": 70000}]), f"{SIDE}.ports", "not a port from 1 to 65535"),
    (with_side(ports=[{"name": "a"}]), f"{SIDE}.ports[0].containerPort", "is required"),
    (with_side(ports=[{"name": "much-too-long-name", "containerPort": 9}]), f"{SIDE}.ports", "no name of a port"),
    (with_engine(env=[{"name": "A", "value": 1}]), f"{ENGINE}.env[0].value", "put it in quotes"),
    (with_engine(env=[{"name": "A", "value": "1"}] * 2), f"{ENGINE}.env[1]", "A is given twice"),
    (with_engine(env=[{"value": "1"}]), f"{ENGINE}.env[0].name", "is required"),
    (with_engine(env=[{"name": "A", "value": "1", "valueFrom": {}}]), f"{ENGINE}.env[0]", "both value and valueFrom"),
    (with_side(env=[{"name": "A", "valueFrom": {}}]), f"{SIDE}.env[0].valueFrom", "names no source"),
    (with_side(command=["sleep", 5]), f"{SIDE}.command[1]", "is not text: put it in quotes"),
    (with_side(resources={"limits": {"memory": "64GB"}}), f"{SIDE}.resources.limits.memory", "'64GB' is not an amount"),
    *(
        (with_side(env=[{"name": n, "value": ""}]), f"{SIDE}.env[0]", "no digit first")
        for n in ("1A", "A B", "A=B", "..")
    ),
    *(
        (with_engine(livenessProbe={key: -1}), f"{ENGINE}.livenessProbe.{key}", "-1 is negative")
        for key in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold")
    ),
    (
        with_engine(readinessProbe={"terminationGracePeriodSeconds": 5}),
        f"{ENGINE}.readinessProbe.terminationGracePeriodSeconds",
        "remove it",
    ),
    (
        with_engine(livenessProbe={"terminationGracePeriodSeconds": 0}),
        f"{ENGINE}.livenessProbe.terminationGracePeriodSeconds",
        "use 1 or more",
    ),
    (
        with_engine(livenessProbe={"httpGet": {"port": 0}}),
        f"{ENGINE}.livenessProbe.httpGet.port",
        "'0' is neither a port",
    ),
    (with_engine(livenessProbe={"tcpSocket": {"port": "A_"}}), f"{ENGINE}.livenessProbe.tcpSocket.port", "name of one"),
    (with_side(livenessProbe={"grpc": {"port": 70000}}), f"{SIDE}.livenessProbe.grpc.port", "'70000' is not a port"),
    (
        {"spec": {"initContainers": [{"name": "side", "image": "a", "livenessProbe": {"grpc": {"port": 1}}}]}},
        "initContainers[side].livenessProbe",
        "set restartPolicy to Always",
    ),
    (
        {"metadata": {"annotations": {"a": "b" * 2**18}}},
        "metadata.annotations",
        "262145 bytes are more than the 262144",
    ),
    ({"metadata": {"labels": {f"{'a.' * 127}b/c": "d"}}}, "metadata.labels", "is no key"),
    ({"metadata": {"labels": {"a": 1}}}, "metadata.labels.a", "put it in quotes"),
    ({"metadata": {"labels": {"a": "b c"}}}, "metadata.labels.a", "no value of a label"),
    ({"metadata": {"annotations": {"a b": "c"}}}, "metadata.annotations", "no key"),
    ({"spec": {"nodeSelector": {"gpu": True}}}, "spec.nodeSelector.gpu", "put it in quotes"),
    ({"spec": {"priority": 2**31}}, "spec.priority", "2147483647"),
    ({"spec": {"securityContext": {"runAsUser": 1.5}}}, "securityContext.runAsUser", "has a fraction"),
]


@pytest.mark.parametrize(("template", "path", "words"), REFUSED, ids=[f"{path} {words}" for _, path, words in REFUSED])
def test_a_template_that_the_apiserver_refuses_is_refused_once(template: dict[str, Any], path: str, words: str) -> None:
    lines = refused(template).splitlines()
    assert len(lines) == 1
    field, _, message = lines[0].partition(": ")
    assert field.startswith("spec.prefill.template.")
    assert field.endswith(path)
    assert words in message


def test_what_the_apiserver_takes_is_accepted() -> None:
    side = {
        "name": "side",
        "image": "a/b:1",
        "env": [{"name": "a.b", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}],
        "resources": {"limits": {"cpu": 0.5, "memory": 8 * 2**30, "example.com/fpga": 1}, "requests": {"cpu": "1e-1"}},
        "livenessProbe": {"exec": {"command": ["true"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    template = {
        "metadata": {"annotations": {"example.com/a": "$patch"}, "labels": {"team": ""}},
        "spec": {
            "containers": [side],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": 8 * 2**30}}, {"name": "bare"}],
            "tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 2**40}],
        },
    }
    assert refused(template) == ""
    assert rendered(template).pod["containers"][1] == side

"""Fields and types of pod templates: what the apiserver's schema lacks is refused, with the nearest known name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.plan.support import faults, pair
from tests.plan.whole_template import TABLE, filled, leaves

from kvserving_operator.control import pod_fields
from kvserving_operator.plan import check_fields

POD = "spec.decode.template.spec"
SIDE = f"{POD}.containers[side]"


def refused(template: Any) -> list[str]:
    return faults(pair(decode={"template": template})).splitlines()


def pod(**parts: Any) -> dict[str, Any]:
    return {"spec": parts}


def side(**parts: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "side", "image": "a/b:1", **parts}])


def volume(**source: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "data", **source}])


def env(**source: Any) -> dict[str, Any]:
    return side(env=[{"name": "A", "valueFrom": source}])


def test_the_table_is_what_the_client_says() -> None:
    assert dict(check_fields.table()) == pod_fields.table()


def test_every_type_of_the_table_is_in_the_table() -> None:
    plain = {"text", "integer", "boolean", "quantity", "integer or text", "any"}
    named = {kind.rstrip("!").removesuffix("[]").removesuffix("{}") for of in TABLE.values() for kind in of.values()}
    assert named - plain <= set(TABLE)
    assert plain <= named


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"specs": {}}, "spec.decode.template.specs", "did you mean spec?"),
    ({"metadata": {"label": {}}}, "spec.decode.template.metadata.label", "did you mean labels?"),
    (pod(nodeSelectr={"a": "b"}), f"{POD}.nodeSelectr", "did you mean nodeSelector?"),
    (pod(securityContext={"runAsUsr": 1}), f"{POD}.securityContext.runAsUsr", "did you mean runAsUser?"),
    (pod(zzz=1), f"{POD}.zzz", "kubectl explain pod.spec lists those there are"),
    (pod(tolerations=[{"Key": "a"}]), f"{POD}.tolerations[0].Key", "did you mean key?"),
    (side(imagePullPolicie="Always"), f"{SIDE}.imagePullPolicie", "did you mean imagePullPolicy?"),
    (side(env=[{"name": "A", "value": "b", "foo": 1}]), f"{SIDE}.env[0].foo", "known here: name, value, valueFrom"),
    (side(volumeMounts=[{"name": "shm", "mountpath": "/a"}]), f"{SIDE}.volumeMounts[0].mountpath", "mountPath"),
    (volume(emptydir={}), f"{POD}.volumes[data].emptydir", "did you mean emptyDir?"),
    (volume(emptyDir={"size": "1Gi"}), f"{POD}.volumes[data].emptyDir.size", "did you mean sizeLimit?"),
    (pod(affinity={"nodeAffinty": {}}), f"{POD}.affinity.nodeAffinty", "did you mean nodeAffinity?"),
    (side(livenessProbe={"httpGett": {"port": 1}}), f"{SIDE}.livenessProbe.httpGett", "did you mean httpGet?"),
    (env(secretKeyRef={"name": "a", "key": "b", "namespace": "c"}), f"{SIDE}.env[0].valueFrom.secretKeyRef", "unknown"),
]


@pytest.mark.parametrize(("template", "path", "words"), UNKNOWN, ids=[path for _, path, _ in UNKNOWN])
def test_an_unknown_field_is_refused_once_with_the_nearest_known_one(
    template: dict[str, Any], path: str, words: str
) -> None:
    (line,) = refused(template)
    assert line.startswith(path)
    assert ": unknown field" in line
    assert words in line


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"spec": []}, "spec.decode.template.spec", "must be an object with fields such as"),
    ({"metadata": {"labels": ["a"]}}, "spec.decode.template.metadata.labels", "must be a map of texts, not a list"),
    (pod(hostNetwork="yes"), f"{POD}.hostNetwork", "'yes' is not true or false"),
    (pod(hostNetwork="true"), f"{POD}.hostNetwork", "'true' is not true or false: remove the quotes"),
    (pod(priority="5"), f"{POD}.priority", "'5' is not a whole number: remove the quotes"),
    (pod(priority=True), f"{POD}.priority", "true is not a whole number"),
    (pod(schedulerName=5), f"{POD}.schedulerName", "5 is not text: put it in quotes"),
    (pod(schedulerName={}), f"{POD}.schedulerName", "an object is not text"),
    (pod(containers={}), f"{POD}.containers", "must be a list of objects, not an object"),
    (pod(containers=["side"]), f"{POD}.containers[0]", "must be an object with fields such as"),
    (pod(containers=[None]), f"{POD}.containers[0]", "not null"),
    (pod(containers=[{"image": "a"}]), f"{POD}.containers[0].name", "is required"),
    (pod(nodeSelector="gpu"), f"{POD}.nodeSelector", "must be a map of texts, not 'gpu'"),
    (side(args="--a"), f"{SIDE}.args", "must be a list of texts, not the value"),
    (side(args=[7]), f"{SIDE}.args[0]", "a number is not text: put it in quotes"),
    (side(env={"A": "b"}), f"{SIDE}.env", "must be a list of objects, not an object"),
    (side(env=[{"name": "A", "value": 731}]), f"{SIDE}.env[0].value", "a number is not text: put it in quotes"),
    (side(livenessProbe={"httpGet": {"path": "/"}}), f"{SIDE}.livenessProbe.httpGet.port", "is required"),
    (side(livenessProbe={"httpGet": {"port": 1.5}}), f"{SIDE}.livenessProbe.httpGet.port", "neither a whole number"),
    (side(volumeMounts=["/a"]), f"{SIDE}.volumeMounts[0]", "must be an object"),
    (volume(emptyDir=True), f"{POD}.volumes[data].emptyDir", "must be an object with fields such as"),
    (volume(emptyDir={"sizeLimit": "1GB"}), f"{POD}.volumes[data].emptyDir.sizeLimit", "'1GB' is not an amount"),
    (volume(secret={"optional": "no"}), f"{POD}.volumes[data].secret.optional", "'no' is not true or false"),
    (
        env(configMapKeyRef={"name": "a", "key": "b", "optional": "yes"}),
        f"{SIDE}.env[0].valueFrom.configMapKeyRef.optional",
        "is not true or false",
    ),
    (
        env(resourceFieldRef={"resource": "limits.cpu", "containerName": 5}),
        f"{SIDE}.env[0].valueFrom.resourceFieldRef.containerName",
        "is not text",
    ),
]


# What the pods of a Deployment cannot have.
LOST: list[tuple[dict[str, Any], str, str]] = [
    (pod(activeDeadlineSeconds=5), f"{POD}.activeDeadlineSeconds", "refuses it in a Deployment"),
    (pod(ephemeralContainers=[{"name": "a"}]), f"{POD}.ephemeralContainers", "kubectl debug"),
    ({"metadata": {"name": "a"}}, "spec.decode.template.metadata.name", "is lost on the way"),
    ({"metadata": {"namespace": "a"}}, "spec.decode.template.metadata.namespace", "is lost on the way"),
]


@pytest.mark.parametrize(
    ("template", "path", "words"), WRONG + LOST, ids=[f"{path} {words}" for _, path, words in WRONG + LOST]
)
def test_what_fits_no_deployment_is_refused_once_with_the_reason(
    template: dict[str, Any], path: str, words: str
) -> None:
    (line,) = refused(template)
    assert line.startswith(f"{path}: ")
    assert words in line


def test_values_that_may_be_secret_are_not_shown() -> None:
    report = "\n".join(refused(side(env=[{"name": "A", "value": 731}], args=[731], command={"a": 731})))
    report += "\n".join(refused(pod(containers=[{"name": "engine", "args": ["--key=sesame"]}])))
    assert "731" not in report
    assert "sesame" not in report


WHOLE = filled(pod_fields.ROOT, 5)
PLACES = list(leaves(WHOLE))
# A number is an amount too, and a list without entries is a list.
OTHERS: tuple[Any, ...] = (1.5, [])


def kind_of(place: tuple[Any, ...]) -> str:
    """The type that the table gives a place of ``WHOLE``."""
    kind = pod_fields.ROOT
    for step in place:
        kind = TABLE[kind][step] if kind in TABLE else kind[: -len("[]")]
        kind = kind.removesuffix("!")
    return kind


def test_a_template_with_every_field_has_no_fault() -> None:
    assert list(check_fields.faults(WHOLE, "template")) == []
    assert len(PLACES) > 1000


def test_any_field_of_another_type_has_one_fault() -> None:
    for place in PLACES:
        kind = kind_of(place)
        for other in OTHERS:
            broken = copy.deepcopy(WHOLE)
            at = broken
            for step in place[:-1]:
                at = at[step]
            at[place[-1]] = other
            fits = kind == "any" or (kind == "quantity" if other else kind.endswith("[]"))
            found = [fault.path for fault in check_fields.faults(broken, "template")]
            assert len(found) == (0 if fits else 1), (place, kind, other, found)


def test_nulls_and_quantities_and_ports_of_both_kinds_are_accepted() -> None:
    template = {
        "metadata": {"annotations": None, "creationTimestamp": None},
        "spec": {
            "overhead": {"cpu": 0.5, "memory": "1Gi"},
            "containers": [
                {
                    "name": "side",
                    "image": "a/b:1",
                    "livenessProbe": {"httpGet": {"port": "http", "path": None}},
                    "readinessProbe": {"tcpSocket": {"port": 80}},
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {"sizeLimit": 5}}],
            "terminationGracePeriodSeconds": None,
        },
    }
    assert refused(template) == []

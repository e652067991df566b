"""The CRD on a real apiserver: it is established, takes every valid object and refuses every wrong one in our words."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.cluster import Cluster, established
from tests import specs
from tests.api.objects import serving
from tests.api.rule_examples import EXAMPLES, Example

from kvserving_operator.api.rules import RULES, violations

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kvservings.kvserving.dev"
BY_ID = {rule.id: rule for rule in RULES}


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> Iterator[str]:
    """A namespace for the module: most tests leave nothing in it (dry runs)."""
    name = cluster.namespace("crd")
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}")


def located(obj: Mapping[str, Any], namespace: str) -> Json:
    made = copy.deepcopy(dict(obj))
    made["metadata"] = {**made["metadata"], "namespace": namespace}
    return made


def dry_run(cluster: Cluster, obj: Mapping[str, Any], namespace: str) -> Json:
    return cluster.api.create(located(obj, namespace), fieldValidation="Strict", dryRun="All")


def status_of(cluster: Cluster, obj: Json) -> int:
    try:
        dry_run(cluster, obj, obj["metadata"]["namespace"])
    except ApiError as error:
        return error.status
    return 201


def told(error: ApiError) -> str:
    """Everything that the apiserver says about a refusal, as users see it."""
    causes = error.body.get("details", {}).get("causes", [])
    return "\n".join([str(error), *(f"{c.get('field')}: {c.get('message')}" for c in causes)])


def test_it_is_established_with_a_structural_schema(cluster: Cluster) -> None:
    crd = cluster.api.get(CRD)
    assert established(crd)
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert crd["spec"]["names"]["shortNames"] == ["kvs"]


def test_the_apiserver_stores_it_as_it_is_written(cluster: Cluster) -> None:
    """A key that the apiserver does not know would be dropped in silence, and a rule with it."""
    (path,) = (Path(__file__).parents[2] / "crds").glob("*kvservings.yaml")
    written = yaml.safe_load(path.read_text())
    stored = cluster.api.get(CRD)
    assert stored["spec"]["versions"] == written["spec"]["versions"]


@pytest.mark.parametrize("path", specs.accepted(), ids=lambda path: path.stem)
def test_a_valid_object_is_created_as_written(cluster: Cluster, place: str, path: Path) -> None:
    obj = yaml.safe_load(path.read_text())
    tried = dry_run(cluster, obj, place)
    created = cluster.api.create(located(obj, place), fieldValidation="Strict")
    assert tried["spec"] == created["spec"] == obj["spec"]
    cluster.api.delete(cluster.api.path_of(created))


@pytest.mark.parametrize("case", specs.refused("apiserver"), ids=lambda case: case.path.stem)
def test_a_wrong_object_is_refused_in_our_words(cluster: Cluster, place: str, case: specs.Refused) -> None:
    with pytest.raises(ApiError) as refused:
        dry_run(cluster, yaml.safe_load(case.text), place)
    assert refused.value.status in (400, 422)
    assert case.missing_from(told(refused.value)) == ()


@pytest.mark.parametrize("case", specs.refused("plan"), ids=lambda case: case.path.stem)
def test_what_the_plan_refuses_the_apiserver_takes_or_refuses_but_never_fails_on(
    cluster: Cluster, place: str, case: specs.Refused
) -> None:
    obj = located(yaml.safe_load(case.text), place)
    assert status_of(cluster, obj) in (201, 422)


@pytest.mark.parametrize("rule", sorted(BY_ID))
def test_a_rule_lets_its_good_examples_pass_and_refuses_its_bad_ones(cluster: Cluster, place: str, rule: str) -> None:
    examples = [example for example in EXAMPLES if example.rule == rule]
    assert examples
    for example in examples:
        dry_run(cluster, serving(example.good), place)
        with pytest.raises(ApiError) as refused:
            dry_run(cluster, serving(example.bad), place)
        assert refused.value.status == 422, example
        assert any(word in told(refused.value) for word in _words(example)), (example, told(refused.value))


def _words(example: Example) -> set[str]:
    """What the rule says about a bad example: with values, where the apiserver can, else its fixed message."""
    rule = BY_ID[example.rule]
    if rule.message_expression is None:
        return {rule.message}
    return {fault.message for fault in violations(serving(example.bad), rules=[rule])}


def test_rules_stay_within_their_cost_for_the_largest_object(cluster: Cluster, place: str) -> None:
    """Every list at its bound and every string in it as long as allowed: refused for its cost, it could not be used."""
    schema = cluster.api.get(CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    changes: dict[str, Any] = {}
    for section in ("engine", "prefill", "decode"):
        args = schema["properties"][section]["properties"]["args"]
        env = schema["properties"][section]["properties"]["env"]
        longest = args["items"]["maxLength"]
        changes[f"spec.{section}.args"] = [f"--{'x' * (longest - 2)}"] * args["maxItems"]
        names = env["items"]["properties"]["name"]["maxLength"]
        changes[f"spec.{section}.env"] = [
            {"name": f"{'E' * (names - 4)}{n:04}", "value": "v"} for n in range(env["maxItems"])
        ]
    dry_run(cluster, serving(changes), place)


def test_an_unknown_field_is_pruned_without_strict_validation(cluster: Cluster, place: str) -> None:
    obj = located(serving({"spec.future": {"x": 1}}), place)
    made = cluster.api.create(obj, fieldValidation="Ignore", dryRun="All")
    assert "future" not in made["spec"]
    with pytest.raises(ApiError, match=r'unknown field "spec.future"'):
        dry_run(cluster, obj, place)


def test_status_is_written_through_its_subresource_only(cluster: Cluster, place: str) -> None:
    created = cluster.api.create(located(serving({"metadata.name": "status"}), place))
    path = cluster.api.path_of(created)
    assert "status" not in cluster.api.merge(path, {"status": {"observedGeneration": 7}})
    written = cluster.api.merge(f"{path}/status", {"status": {"observedGeneration": 7}, "spec": {"suspend": True}})
    assert written["status"]["observedGeneration"] == 7
    assert "suspend" not in written["spec"]
    assert written["metadata"]["generation"] == created["metadata"]["generation"]
    changed = cluster.api.merge(path, {"spec": {"suspend": True}})
    assert changed["metadata"]["generation"] == created["metadata"]["generation"] + 1
    cluster.api.delete(path)


def test_columns_are_those_that_users_are_promised(cluster: Cluster, place: str) -> None:
    created = cluster.api.create(located(serving({"metadata.name": "columns"}), place))
    pool = urllib3.PoolManager(ca_certs=str(cluster.ca_file) if cluster.ca_file else None)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    headers = {"Authorization": f"Bearer {cluster.admin.token}", "Accept": accept}
    table = pool.request("GET", cluster.server + cluster.api.path_of(created), headers=headers).json()
    columns = [(c["name"].upper(), c["priority"] == 0) for c in table["columnDefinitions"]]
    assert [name for name, always in columns if always] == [
        *("NAME", "READY", "AVAILABLE", "REASON", "PREFILL", "DECODE", "TRANSFER", "URL", "AGE"),
    ]
    assert [name for name, always in columns if not always] == ["MODEL", "L1", "L2", "REVISION"]
    cluster.api.delete(cluster.api.path_of(created))

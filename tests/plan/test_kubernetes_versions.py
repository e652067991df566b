"""Children fit the schemas of each Kubernetes that is supported; those of the examples and of the rich cases."""

from __future__ import annotations

from typing import Any

import pytest
from tests import specs
from tests.api.objects import load_file
from tests.examples import files
from tests.kubernetes_versions import FOREIGN, VERSIONS, faults

from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Observed

HAS = Observed(kinds=frozenset({"PodMonitor"}))


@pytest.fixture(scope="module")
def children() -> list[Any]:
    rich = [path for path in specs.accepted() if path.name[:2] in ("06", "07", "09", "12")]
    paths = [*files(), *rich]
    return [obj for path in paths for obj in plan(load_file(path), observed=HAS).objects]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_child_fits_every_version(children: list[Any], version: str) -> None:
    assert faults(children, version) == []


def test_kinds_of_every_sort_are_among_them(children: list[Any]) -> None:
    own = {"ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PersistentVolumeClaim", "Role"}
    own |= {"RoleBinding", "Service", "ServiceAccount", "StatefulSet"}
    assert {obj["kind"] for obj in children} - FOREIGN == own


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_does_not_exist_is_found(children: list[Any], version: str) -> None:
    first = next(obj for obj in children if obj["kind"] == "Deployment")
    (told,) = faults([{**first, "spec": {**first["spec"], "typo": 1}}], version)
    assert "typo" in told

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.bodies import planned, stored

from kvserving_operator.control import permissions
from kvserving_operator.control.permissions import CHILDREN, TABLE, resource_of


def test_secrets_are_neither_listed_nor_watched_nor_rewritten() -> None:
    verbs = {verb for resource in TABLE if resource.plural == "secrets" for verb in resource.verbs}
    assert verbs == {"create", "get"}


def test_the_object_itself_is_never_written() -> None:
    for resource in TABLE:
        if resource.plural == "kvservings":
            assert set(resource.verbs) == {"get", "list", "watch"}


def test_the_number_of_a_scaled_role_is_never_written_through_scale() -> None:
    verbs = {resource.plural: set(resource.verbs) for resource in TABLE if resource.plural.startswith("kvservingroles")}
    assert verbs["kvservingroles/status"] == {"get", "patch"}
    assert "kvservingroles/scale" not in verbs


def test_no_rule_has_a_wildcard() -> None:
    assert "*" not in permissions.render()


def test_what_the_router_may_is_what_the_operator_may() -> None:
    # The apiserver lets nobody grant what they may not do themselves.
    plan = planned(stored()).plan
    assert plan is not None
    role = next(m for m in plan.objects if m["kind"] == "Role")
    held = {(r.group, r.plural, verb) for r in TABLE for verb in r.verbs}
    wants = {
        (g, p, v) for rule in role["rules"] for g in rule["apiGroups"] for p in rule["resources"] for v in rule["verbs"]
    }
    assert wants <= held


def test_every_planned_kind_is_in_the_table() -> None:
    plan = planned(stored()).plan
    assert plan is not None
    for manifest in plan.objects:
        assert resource_of(str(manifest["apiVersion"]), str(manifest["kind"])) in CHILDREN


def test_a_kind_outside_the_table_is_refused() -> None:
    with pytest.raises(LookupError, match="Node"):
        resource_of("v1", "Node")


def test_namespaced_mode_grants_nothing_for_the_cluster() -> None:
    kinds = {m["kind"] for m in permissions.manifests("own", ["a", "b"])}
    assert kinds == {"Role", "RoleBinding"}
    assert "ClusterRole" in {m["kind"] for m in permissions.manifests("own")}


def test_the_check_fails_for_a_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert permissions.main(["--write", str(tmp_path)]) == 0
    assert permissions.main(["--check", str(tmp_path)]) == 0
    (tmp_path / permissions.FILE_NAME).write_text("rules: []")
    assert permissions.main(["--check", str(tmp_path)]) == 1
    assert "--write" in capsys.readouterr().err

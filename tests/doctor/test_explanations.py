"""Each injected setting has a reason, and each reason a setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doctor.rendered import examples, objects, settings
from tests.plan.fields import leaves
from tests.plan.support import LOCAL, pair, serving

from kvserving_operator.api import load
from kvserving_operator.doctor.explanations_service import EXPLANATIONS
from kvserving_operator.plan.planning import check
from kvserving_operator.plan.types import CLUSTER


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.name)
def test_every_setting_of_an_example_is_explained(path: Path) -> None:
    made = load.inspect_file(path).serving
    assert made is not None
    for site in (CLUSTER, LOCAL):
        found = settings(made, site)
        assert {setting.kind for setting in found} >= {"flag", "env"}
        assert [setting.key for setting in found if setting.key not in EXPLANATIONS] == []


def test_no_setting_is_without_an_explanation_and_no_explanation_without_a_setting() -> None:
    seen = {
        setting.key: name
        for name, made in objects()
        for site in (CLUSTER, LOCAL)
        # Engines of several nodes are refused on one machine.
        if not check(made, site=site)
        for setting in settings(made, site)
    }
    assert {key: name for key, name in seen.items() if key not in EXPLANATIONS} == {}
    assert set(EXPLANATIONS) - set(seen) == set()


def test_every_field_that_an_explanation_names_exists() -> None:
    known = {f"spec.{path}" for path in leaves()}
    sections = {path.rpartition(".")[0] for path in known} | {path.rsplit(".", 2)[0] for path in known}
    named = {
        field.format(role="prefill")
        for entry in EXPLANATIONS.values()
        for field in entry.field.split(", ")
        if field and field != "metadata.name"
    }
    inside = "spec.prefill.template."
    assert {field for field in named if field not in known | sections and not field.startswith(inside)} == set()


def test_what_the_user_wrote_is_no_setting_of_ours_and_is_not_shown() -> None:
    secret = "s3cr3t-of-the-user"
    made = serving(
        pair(
            engine={"args": ["--max-num-seqs", "7", "--port=8300"], "env": [{"name": "MINE", "value": secret}]},
            prefill={
                "args": [f"--override-generation-config={secret}"],
                "template": {"spec": {"containers": [{"name": "engine", "env": [{"name": "HERS", "value": secret}]}]}},
            },
        )
    )
    found = settings(made)
    assert not {"--max-num-seqs", "--override-generation-config", "MINE", "HERS"} & {s.name for s in found}
    assert secret not in json.dumps([setting.to_json() for setting in found])
    ports = [s.value for s in found if s.name == "--port" and s.role == "prefill"]
    assert ports == ["8300"]


def test_a_setting_tells_its_role_its_connector_and_the_field_of_that_role() -> None:
    found = settings(serving(pair(cache={"l1": {"size": "8Gi"}})))
    (timeout,) = [s for s in found if s.name == "--shutdown-timeout" and s.role == "decode"]
    assert (timeout.value, timeout.field) == ("300", "spec.decode.drainTimeout")
    roles = [(s.owner, s.value) for s in found if s.name == "kv_role" and s.role == "prefill"]
    assert roles == [
        ("MultiConnector", "kv_both"),
        ("NixlConnector", "kv_producer"),
        ("TieredOffloadConnector", "kv_both"),
    ]
    assert [s.value for s in found if s.name == "cpu_bytes_to_use"] == [str(8 * 2**30)]

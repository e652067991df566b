"""Secrets that volumes take as a whole: told where they do not exist, whatever keys they would have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.world import SPEC, found, healthy, spoiled
from tests.plan.support import edited

from kvserving_operator.doctor.facts import Keys, ObjectFacts

VOLUMES: dict[str, dict[str, Any]] = {
    "whole": {"secret": {"secretName": "tls"}},
    "items": {"secret": {"secretName": "tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    "projected whole": {"projected": {"sources": [{"secret": {"name": "tls"}}]}},
    "projected items": {
        "projected": {"sources": [{"secret": {"name": "tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}
    },
}


def mounting(volume: dict[str, Any], there: Keys | None) -> ObjectFacts:
    """An object whose decode engines have a volume of the Secret tls, which is as ``there`` says."""
    template = {"spec": {"volumes": [{"name": "certificates", **volume}]}}
    facts = healthy(edited(SPEC, "decode.template", template))
    assert facts.live is not None
    return spoiled(facts, secrets={**(facts.live.secrets or {}), "tls": there})


@pytest.mark.parametrize("kind", VOLUMES)
def test_the_secret_of_a_volume_that_does_not_exist_is_told(kind: str) -> None:
    told = found(mounting(VOLUMES[kind], None))
    assert (told["secret-missing"].where, told["secret-missing"].what) == ("Secret tls", "it does not exist")
    assert "secret-key-missing" not in told
    file = "ca.crt" if "items" in kind else "FOLDER"
    assert f"`kubectl create secret generic tls -n prod --from-file={file}`" in told["secret-missing"].fix


@pytest.mark.parametrize("kind", ["items", "projected items"])
def test_a_key_that_a_volume_takes_is_told_where_the_secret_lacks_it(kind: str) -> None:
    told = found(mounting(VOLUMES[kind], Keys(frozenset({"tls.crt"}))))
    assert told["secret-key-missing"].what == "it lacks or has nothing in: ca.crt"
    assert "secret-missing" not in told


@pytest.mark.parametrize("kind", ["whole", "projected whole"])
def test_a_volume_of_a_whole_secret_takes_whatever_keys_there_are(kind: str) -> None:
    assert not {"secret-missing", "secret-key-missing"} & set(found(mounting(VOLUMES[kind], Keys(frozenset()))))


def test_an_optional_volume_starts_without_its_secret() -> None:
    told = found(mounting({"secret": {"secretName": "tls", "optional": True}}, None))
    assert not {"secret-missing", "secret-key-missing"} & set(told)

"""Secrets of the user that are not on this machine are told before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.plan.support import LOCAL, pair, render

from kvserving_operator.local import usersecrets, wanted_secrets
from kvserving_operator.local.pods import of_objects


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    usersecrets.folder().mkdir(parents=True)
    return usersecrets.folder()


def faults(**spec: Any) -> list[str]:
    planned = render(pair(**spec), site=LOCAL).plan
    made = {secret.name for secret in planned.generated_secrets}
    return wanted_secrets.faults(of_objects(planned.objects)[0], made, wanted_secrets.fields(pair(**spec)))


REFERENCE = {"name": "mine", "key": "token"}


@pytest.mark.parametrize(
    ("spec", "path", "keys"),
    [
        ({"router": {"apiKeySecretRef": "mine"}}, "spec.router.apiKeySecretRef", ["api-key"]),
        ({"model": {"uri": "hf://o/m", "secretRef": "mine"}}, "spec.model.secretRef", ["HF_TOKEN"]),
        ({"cache": {"l2": {"size": "1Gi", "secretRef": "mine"}}}, "spec.cache.l2.secretRef", ["password"]),
        (
            {"cache": {"l2": {"type": "s3", "url": "s3://b/p", "secretRef": "mine"}}},
            "spec.cache.l2.secretRef",
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
        ),
        (
            {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": REFERENCE}}]}},
            "spec.engine.env[0].valueFrom.secretKeyRef",
            ["token"],
        ),
    ],
)
def test_a_secret_that_is_not_here_is_told_with_field_and_keys(
    folder: Path, spec: dict[str, Any], path: str, keys: list[str]
) -> None:
    [problem] = faults(**spec)
    lines = " and ".join(f"{key}=..." for key in keys)
    told = f"{path}: Secret mine is not on this machine: write {lines} into {folder}/mine.env and `chmod 600` it"
    assert problem.startswith(told)
    file = folder / "mine.env"
    file.touch(mode=0o600)
    [problem] = faults(**spec)
    assert problem == f"{path}: Secret mine: {file} has no line {keys[0]}=..."
    file.write_text("".join(f"{key}=x\n" for key in keys))
    assert faults(**spec) == []
    file.chmod(0o644)
    [problem] = faults(**spec)
    assert problem == f"{path}: {file} can be read by others: `chmod 600 {file}`"


def test_what_is_optional_or_made_for_the_run_is_not_asked_for() -> None:
    optional = {"name": "A", "valueFrom": {"secretKeyRef": {**REFERENCE, "optional": True}}}
    assert faults(engine={"env": [optional]}, cache={"l2": {"size": "1Gi"}}) == []


def test_a_token_of_the_environment_stands_for_a_secret_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert faults(model={"uri": "hf://o/m", "secretRef": "mine"}) == []

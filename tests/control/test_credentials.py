"""A kubeconfig that does not do says what is missing and the way out, and nothing of its credentials."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvserving_operator.control.config import Config
from kvserving_operator.control.credentials import NoCredentials, configuration, namespace_of

_TOKEN = "t0ken-of-a-user"


def _content(**changed: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "clusters": [{"name": "east", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "users": [{"name": "ada", "user": {"token": _TOKEN}}],
        "contexts": [
            {"name": "prod", "context": {"cluster": "east", "user": "ada", "namespace": "serving"}},
            {"name": "test", "context": {"cluster": "east", "user": "ada"}},
        ],
    }
    return content | changed


def _written(folder: Path, content: object) -> Path:
    file = folder / "kubeconfig"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def _refused(file: Path, context: str | None = None) -> str:
    with pytest.raises(NoCredentials) as told:
        asyncio.run(configuration(Config(kubeconfig=file), context=context))
    assert _TOKEN not in str(told.value)
    assert str(file) in str(told.value)
    return str(told.value)


def test_a_context_gives_its_server_and_its_namespace(tmp_path: Path) -> None:
    file = _written(tmp_path, _content())
    assert asyncio.run(configuration(Config(kubeconfig=file))).host == "https://192.0.2.1:6443"
    assert namespace_of(file, None) == "serving"
    assert namespace_of(file, "test") is None


def test_a_context_that_is_named_does_not_need_a_current_one(tmp_path: Path) -> None:
    file = _written(tmp_path, _content(**{"current-context": "deleted"}))
    assert asyncio.run(configuration(Config(kubeconfig=file), context="prod")).host == "https://192.0.2.1:6443"
    assert namespace_of(file, "prod") == "serving"


def test_contexts_of_several_files_are_one_list(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(yaml.safe_dump(_content(contexts=[], **{"current-context": "far"})))
    two.write_text(yaml.safe_dump({"contexts": [{"name": "far", "context": {"cluster": "east", "user": "ada",
                                                                            "namespace": "edge"}}]}))  # fmt: skip
    both = Path(f"{one}:{two}")
    assert asyncio.run(configuration(Config(kubeconfig=both))).host == "https://192.0.2.1:6443"
    assert namespace_of(both, None) == "edge"


@pytest.mark.parametrize(
    ("changed", "context", "said"),
    [
        ({}, "stage", "there is no context stage: name one of prod, test with --context"),
        ({"current-context": "old"}, None, "its current context is missing: old: name one of prod, test"),
        ({"current-context": ""}, None, "no context is its current one: name one of prod, test"),
        ({"contexts": []}, None, "name one of none (it has no contexts)"),
        ({"contexts": [{"name": "prod", "context": {"user": "ada"}}]}, None, "context prod names no cluster"),
        ({"clusters": []}, None, "context prod names cluster east, of which there is no server"),
        ({"clusters": [{"name": "east", "cluster": {}}]}, None, "cluster east, of which there is no server"),
    ],
)
def test_what_leads_nowhere_is_named(
    tmp_path: Path, changed: dict[str, Any], context: str | None, said: str
) -> None:  # fmt: skip
    assert said in _refused(_written(tmp_path, _content(**changed)), context)


@pytest.mark.parametrize(
    "user",
    [
        {"token": _TOKEN, "auth-provider": {"name": "gcp"}},
        {"token": _TOKEN, "auth-provider": {"name": "oidc"}},
        {"password": _TOKEN, "auth-provider": {"name": "oidc", "config": {"id-token": _TOKEN}}},
    ],
)
def test_credentials_that_cannot_be_read_are_not_quoted(
    tmp_path: Path, user: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    said = _refused(_written(tmp_path, _content(users=[{"name": "ada", "user": user}])))
    assert "the credentials of its user are not as they should be" in said
    out = capfd.readouterr()
    assert _TOKEN not in out.out + out.err


@pytest.mark.parametrize(
    "content", ["", "kind", "[]", "a: [", "contexts: 3\n", f"users: {_TOKEN}\n", "contexts: [3]\n"]
)
def test_a_file_of_another_shape_is_no_kubeconfig(tmp_path: Path, content: str) -> None:
    assert "it is no kubeconfig" in _refused(_written(tmp_path, content))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = {"client-certificate": "gone.pem", "client-key": "gone.key"}
    said = _refused(_written(tmp_path, _content(users=[{"name": "ada", "user": user}])))
    assert f"{tmp_path}/gone.pem does not exist" in said


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    assert "Is a directory" in _refused(tmp_path)

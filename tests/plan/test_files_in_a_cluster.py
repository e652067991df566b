"""Models in files: on the local site they are there, in a cluster only where something brings them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import LOCAL, pair, render

MODEL = {"uri": "file:///models/a/b"}
HOST = {"name": "models", "hostPath": {"path": "/srv"}}


def told(spec: dict[str, Any], **how: Any) -> list[tuple[str, str]]:
    notices = render(spec, **how).plan.notices
    return [(notice.path, notice.message) for notice in notices if notice.reason.value == "ModelNotMounted"]


def mounted(at: str) -> dict[str, Any]:
    engine = {"name": "engine", "volumeMounts": [{"name": "models", "mountPath": at}]}
    return {"template": {"spec": {"containers": [engine], "volumes": [HOST]}}}


def test_a_model_in_a_file_is_told_with_the_way_out() -> None:
    ((path, message),) = told(pair(model=MODEL))
    assert path == "spec.model.uri"
    assert message.startswith("file:///models/a/b is a path inside the prefill and decode engines")
    assert "pvc://claim/path" in message
    assert "spec.engine.image" in message


def test_an_adapter_in_a_file_is_told() -> None:
    model = {"uri": "hf://a/b", "loras": [{"name": "c", "uri": "file:///c"}]}
    ((path, _),) = told(pair(model=model, router={"type": "vllm-router"}))
    assert path == "spec.model.loras[0].uri"


@pytest.mark.parametrize("at", ["/models", "/models/", "/models/a/b"])
def test_nothing_is_told_where_templates_mount_it(at: str) -> None:
    assert told(pair(model=MODEL, prefill=mounted(at), decode=mounted(at))) == []


def test_a_role_without_the_mount_is_named() -> None:
    ((_, message),) = told(pair(model=MODEL, prefill=mounted("/models"), decode=mounted("/models/a/bc")))
    assert "inside the decode engines" in message


def test_nothing_is_told_on_the_local_site() -> None:
    assert told(pair(model=MODEL), site=LOCAL) == []

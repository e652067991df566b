"""The name under which a model is served: one for engines, probes and the status."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.control.bodies import SPEC, planned, stored, view
from tests.control.test_reconcile import Stage
from tests.plan.support import Rendered

from kvserving_operator.control.observe import serving_of
from kvserving_operator.control.permissions import SERVING
from kvserving_operator.control.verification import subjects

MODELS: list[tuple[dict[str, Any], str]] = [
    ({"uri": "hf://Qwen/Qwen3-8B"}, "Qwen3-8B"),
    ({"uri": "pvc://weights/llama/"}, "llama"),
    ({"uri": "hf://Qwen/Qwen3-8B", "name": "qwen/large"}, "qwen/large"),
]


@pytest.mark.parametrize(("model", "name"), MODELS)
def test_engines_serve_and_probes_ask_for_the_name_or_the_last_part_of_the_address(
    model: dict[str, Any], name: str
) -> None:
    serving = stored({**SPEC, "model": model})
    reading = planned(serving)
    assert reading.plan is not None
    assert reading.serving is not None
    assert reading.serving.spec.model.served_name == name
    assert {engine.flag("--served-model-name") for engine in Rendered(reading.plan).engines} == {name}
    asked = subjects(view(serving, {}), reading.plan, reading.serving, routed=True)
    assert [subject.model for subject in asked] == [name]


@pytest.mark.parametrize(("model", "name"), MODELS)
def test_the_status_tells_the_name_that_requests_ask_for(model: dict[str, Any], name: str) -> None:
    stage = Stage()
    stage.body = {**stage.body, "spec": {**SPEC, "model": model}}
    stage.store.put_serving(serving_of(stage.api.put("KVServing", stage.body)))
    stage.run()
    now = asyncio.run(stage.api.get(SERVING, "prod", "qwen"))
    assert now is not None
    assert now["status"]["model"] == name

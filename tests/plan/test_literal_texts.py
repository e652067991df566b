"""Texts of the user's in the operator's own flags: Kubernetes expands none of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import LOCAL, Rendered, pair, render, serving

from kvserving_operator.local.variables import expand
from kvserving_operator.plan.planning import plan

NAME = "a$(POD_IP)$$(HOME)$"
VARIABLES = {"POD_IP": "10.0.0.1", "HOME": "/root"}
ADAPTER = {"name": NAME, "uri": f"pvc://adapters/{NAME}"}
STORE = {"type": "external", "url": "redis://store:6379", "tenant": NAME}
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"uri": "hf://a/b", "name": NAME}}, f"--served-model-name={NAME}"),
    ({"model": {"uri": f"pvc://claim/{NAME}"}}, f"--served-model-name={NAME}"),
    ({"model": {"uri": f"pvc://claim/{NAME}"}}, f"--model=/var/lib/kvserving/claims/claim/{NAME}"),
    ({"model": {"uri": "hf://a/b", "revision": NAME}}, f"--revision={NAME}"),
    (
        {"model": {"uri": "hf://a/b", "loras": [ADAPTER]}, "router": {"type": "vllm-router"}},
        f"{NAME}=/var/lib/kvserving/claims/adapters/{NAME}",
    ),
    # An engine of the user's own, whose types of KV are not known.
    ({"engine": {"image": "mine.example/fork:1", "kv": {"dtype": NAME}}}, f"--kv-cache-dtype={NAME}"),
]


@pytest.mark.parametrize("site", ["cluster", "local"])
@pytest.mark.parametrize(("spec", "argument"), SPECS, ids=[argument for _, argument in SPECS])
def test_a_text_reaches_the_engine_as_it_was_written(spec: dict[str, Any], argument: str, site: str) -> None:
    made = Rendered(plan(serving(pair(**spec)), site=LOCAL)) if site == "local" else render(pair(**spec))
    assert argument in [expand(word, VARIABLES) for word in made.prefill.args]


def test_the_store_of_a_tier_reaches_the_engine_as_it_was_written() -> None:
    args = render(pair(cache={"l2": STORE})).prefill.args
    (config,) = (word for word in args if word.startswith("--kv-transfer-config="))
    assert f'"tenant":"{NAME}"' in expand(config, VARIABLES)


def test_arguments_of_the_user_may_refer_to_variables() -> None:
    assert "--x=$(POD_IP)" in render(pair(engine={"args": ["--x=$(POD_IP)"]})).prefill.args

"""Stores that the operator does not deploy: objects name them, and engines get their address."""

from __future__ import annotations

import pytest
from tests.plan.support import dump, faults, pair, render

from kvserving_operator.api.stores import EXTERNAL, External


@pytest.mark.parametrize(("scheme", "store"), EXTERNAL.items(), ids=EXTERNAL)
def test_the_example_of_every_kind_is_one_that_an_object_may_name(scheme: str, store: External) -> None:
    assert store.example.startswith(f"{scheme}://")
    spec = pair(cache={"l2": {"type": "external", "url": store.example}})
    assert faults(spec) == ""
    assert f'"urls":["{store.example}"]' in dump(render(spec).plan).replace("\\", "")


def test_a_wrong_address_is_answered_with_the_example_of_its_kind() -> None:
    report = faults(pair(cache={"l2": {"type": "external", "url": "valkeys://store:0"}}))
    assert report == "spec.cache.l2.url: 'valkeys://store:0' has port 0, which nothing listens on: write it as " + (
        "valkeys://host:6379"
    )

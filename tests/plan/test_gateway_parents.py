"""Gateways that the router's route names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair, render

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, ".name", "is required"),
    ({"name": "Public_Gateway"}, ".name", "'Public_Gateway' is not the name of a Gateway"),
    ({"name": ""}, ".name", "is not the name of a Gateway"),
    ({"name": 7}, ".name", "'7' is not the name of a Gateway"),
    ({"name": "a", "namespace": "a.b"}, ".namespace", "'a.b' is not a namespace"),
    ({"name": "a", "sectionName": "-"}, ".sectionName", "is not the name of a listener"),
    ({"name": "a", "port": 0}, ".port", "is not a port from 1 to 65535"),
    ({"name": "a", "port": "80"}, ".port", "is not a port from 1 to 65535"),
    ({"name": "a", "kind": "Gate way"}, ".kind", "is not a kind"),
    ({"name": "a", "group": "a_b"}, ".group", "is not an API group"),
    ({"name": "a", "sectionname": "web"}, ".sectionname", "did you mean sectionName?"),
]


@pytest.mark.parametrize(("parent", "path", "words"), REFUSED, ids=[f"{p} {words}" for _, p, words in REFUSED])
def test_a_parent_that_the_gateway_api_refuses_is_refused_once(parent: dict[str, Any], path: str, words: str) -> None:
    (line,) = faults(pair(router={"gateway": {"parentRefs": [parent]}})).splitlines()
    assert line.startswith(f"spec.router.gateway.parentRefs[0]{path}: ")
    assert words in line


def test_the_same_parent_twice_is_refused() -> None:
    line = faults(pair(router={"gateway": {"parentRefs": [{"name": "a"}, {"name": "a"}]}}))
    assert line.startswith("spec.router.gateway.parentRefs[1]: names the same Gateway")


def test_parents_that_the_gateway_api_takes_reach_the_route() -> None:
    parents = [
        {"name": "a", "namespace": "b", "sectionName": "web", "port": 80},
        {"name": "a", "namespace": "b", "sectionName": "tls", "group": "gateway.networking.k8s.io", "kind": "Gateway"},
        {"name": "a", "group": "", "kind": "Service"},
    ]
    spec = pair(router={"gateway": {"parentRefs": parents}})
    assert faults(spec) == ""
    assert render(spec).one("HTTPRoute", "qwen")["spec"]["parentRefs"] == parents

"""Stores that the operator does not deploy: objects name them, and engines get their address."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from tests.plan.support import LOCAL, dump, faults, pair, render

from kvserving_connector.store.address import bound, server_address
from kvserving_operator.api.rules_services import L2, form_of
from kvserving_operator.api.stores import EXTERNAL, External
from kvserving_operator.reasons import Reason


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


@pytest.mark.parametrize(
    "url",
    [
        *("redis://store", "redis://store:6380", "valkeys://store/", "rediss://store/0", "redis://store//0/"),
        *("redis://store/?db=3", "redis://[::1]:6379/0", "valkey://10.0.0.1:1"),
        *("redis://store:6379/3", "rediss://store/15", "valkey://store/00", "valkeys://store/0/1", "redis://store/a?b"),
        *("redis://store?bytes=5000000", "redis://store/0?bytes=007&db=0", "redis://store?byte=5Gi", "redis://store#a"),
        *(
            f"redis://store?bytes={wrong}"
            for wrong in ("5Gi", "0", "-1", "", "1.5", "1e9", "%35Gi", "1&bytes=x", "1;2")
        ),
        *("redis://store?bytes=\u0665", f"valkey://store?bytes={'9' * 19}", "rediss://store/?a=b&bytes=%20"),
        *("redis://store:0", "redis://store:70000", "redis://store:x", "redis://:6379", "redis://[::1"),
        "other://store",
        "redis://user:hunter2@store/3",
    ],
)
def test_an_address_is_refused_here_when_the_engine_would_end_at_its_start(url: str) -> None:
    try:
        server_address(url)
        bound(url, EXTERNAL["redis"].example)
        opened = True
    except ValueError:
        opened = False
    report = faults(pair(cache={"l2": {"type": "external", "url": url}}))
    assert (report == "") == opened, report
    assert "hunter2" not in report


def test_every_text_that_offers_an_address_of_a_store_offers_every_scheme() -> None:
    offering = [rule.message for rule in L2 if "redis://" in rule.message]
    assert len(offering) == 3
    for message in offering:
        assert [scheme for scheme in EXTERNAL if f"{scheme}://" not in message] == [], message


def test_a_scheme_stands_for_itself_whatever_signs_it_has() -> None:
    form = form_of(["kv+http", "kv.s3", "kv-a"])
    for url in ("kv+http://host", "kv.s3://host", "kv-a://host"):
        assert re.search(form, url)
    for url in ("kvvhttp://host", "kvas3://host", "kvhttp://host"):
        assert not re.search(form, url)
    # Inside a text of CEL, where a backslash begins an escape.
    assert not set(form) & set("\\'")


def test_a_store_with_a_scheme_of_the_web_leaves_the_web_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = cast(dict[str, External], EXTERNAL)
    monkeypatch.setitem(stores, "http", External("http://host:8080", port=8080))
    monkeypatch.setitem(stores, "redis", External("redis://host:7000", port=7000))
    variable = {"name": "HF_ENDPOINT", "value": "http://mirror.example.org"}
    spec = pair(
        model={"uri": "pvc://weights/a"},
        cache={"l2": {"type": "external", "url": "redis://store.example.org"}},
        engine={"env": [variable]},
    )
    (engines,) = (
        policy["spec"]
        for policy in render(spec).plan.objects
        if policy["kind"] == "NetworkPolicy" and "-engines" in policy["metadata"]["name"]
    )
    opened = [rule["ports"] for rule in engines["egress"] if "to" not in rule]
    assert [[port["port"] for port in ports] for ports in opened] == [[53, 53], [7000], [80]]


def test_a_database_is_told_with_the_way_out() -> None:
    report = faults(pair(cache={"l2": {"type": "external", "url": "redis://store:6379/3?a=b"}}))
    assert report.startswith("spec.cache.l2.url: 'redis://store:6379/3?***' names a database, and engines use 0 alone")
    assert report.endswith(": write it as redis://host:6379")


def test_a_bound_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    report = faults(pair(cache={"l2": {"type": "external", "url": "valkey://store?bytes=5Gi"}}))
    problem = "has ?bytes= with what is no number of bytes above 0: write it as"
    assert report == f"spec.cache.l2.url: 'valkey://store?***' {problem} valkey://host:6379"
    monkeypatch.setitem(cast(dict[str, External], EXTERNAL), "valkey", External("valkey:///path", folder=True))
    report = faults(pair(cache={"l2": {"type": "external", "url": "valkey:///a?bytes=5Gi"}}))
    assert report == f"spec.cache.l2.url: 'valkey:///a?***' {problem} valkey:///path, or with ?bytes=5000000"


@pytest.mark.parametrize(
    "l2",
    [
        *({"type": "external", "url": url} for url in ("sqlit:///var", "redis://", "store", "other://:0")),
        *({"type": "s3", "url": url} for url in ("s3:///prefix", "s3://[", "sqlit:///var", "s3://bucket:0")),
        *({"type": "s3", "url": "s3://bucket", "endpoint": endpoint} for endpoint in ("ftp:///a", "https://")),
    ],
    ids=lambda l2: " ".join(l2.values()),
)
def test_an_address_of_another_form_is_one_fault(l2: dict[str, str]) -> None:
    (fault,) = faults(pair(cache={"l2": l2})).splitlines()
    assert fault.startswith(f"spec.cache.l2.{'endpoint' if 'endpoint' in l2 else 'url'}: ")


def _told(spec: dict[str, Any], **how: Any) -> list[tuple[str, str]]:
    notices = render(spec, **how).plan.notices
    return [(notice.path, notice.message) for notice in notices if notice.reason is Reason.STORE_NOT_MOUNTED]


def _mounted(at: str) -> dict[str, Any]:
    engine = {"name": "engine", "volumeMounts": [{"name": "kv", "mountPath": at}]}
    volume = {"name": "kv", "hostPath": {"path": "/srv"}}
    return {"template": {"spec": {"containers": [engine], "volumes": [volume]}}}


def test_a_folder_that_no_volume_is_mounted_at_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, External], EXTERNAL), "other", External("other:///path", folder=True))
    cache = {"l2": {"type": "external", "url": "other:///var/lib/kv/l2/?bytes=5000"}}
    ((path, message),) = _told(pair(cache=cache))
    assert path == "spec.cache.l2.url"
    assert message.startswith("/var/lib/kv/l2 is a path inside the prefill engines, and no volume is mounted there")
    assert "spec.prefill.template" in message
    assert _told(pair(cache=cache, prefill=_mounted("/var/lib/kv/l"), decode=_mounted("/var/lib/kv")))
    for at in ("/var/lib/kv/", "/var/lib/kv/l2"):
        assert _told(pair(cache=cache, prefill=_mounted(at))) == []
    assert _told(pair(cache=cache), site=LOCAL) == []

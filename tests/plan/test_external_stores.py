"""Stores that the operator does not deploy: objects name them, and engines get their address."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from tests.connector.store.addresses import addresses
from tests.plan.support import LOCAL, dump, faults, pair, render

from kvserving_connector.store.address import bound, check
from kvserving_operator.api.rules_services import L2, form_of
from kvserving_operator.api.stores import EXTERNAL, External
from kvserving_operator.plan.addresses import refusal
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


FORMS: dict[str, dict[str, Any]] = {
    "neither": {},
    "port": {"port": 6379},
    "databases": {"port": 6379, "databases": True},
    "paths": {"port": 80, "paths": True, "parameters": ("x", "db")},
    "bounded": {"port": 80, "bounded": True},
    "bounded, with a parameter": {"bounded": True, "parameters": ("x",)},
    "folder": {"folder": True},
    "bounded folder": {"folder": True, "bounded": True, "parameters": ("x",)},
}


def _engines_refuse(url: str, store: External) -> bool:
    try:
        check(url, store)
        bound(url, store.example)
    except ValueError as error:
        assert "hunter2" not in str(error)  # noqa: PT017 - beside what is returned
        return True
    return False


def _both_agree(scheme: str, store: External) -> None:
    """Fails for an address that one side takes and the other does not."""
    taken = 0
    for url in addresses(scheme):
        refused = _engines_refuse(url, store)
        # The rules refuse these, a folder of such a name as well.
        kept_out = re.search("[@ ]|[?&]token=", url) is not None
        if store.folder and kept_out:
            continue
        assert (kept_out or refusal(url, store) is not None) == refused, url
        taken += not refused
    assert taken > 5


@pytest.mark.parametrize("scheme", EXTERNAL)
def test_of_every_kind_an_address_is_refused_here_exactly_when_the_engine_would_end_at_its_start(scheme: str) -> None:
    _both_agree(scheme, EXTERNAL[scheme])
    others = [
        f"{scheme}://{each}" for each in ("store/x?y=1", "store?x=1", "store/0", "store#a", "store:0", "user:p@s/3")
    ]
    for url in [*list(addresses(scheme))[::25], *others]:
        report = faults(pair(cache={"l2": {"type": "external", "url": url}}))
        assert (report == "") != _engines_refuse(url, EXTERNAL[scheme]), (url, report)
        assert report == "" or report.startswith("spec.cache.l2.url: "), report
        assert "hunter2" not in report


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_a_kind_may_say_of_its_addresses_means_the_same_to_both(form: dict[str, Any]) -> None:
    example = "other:///path" if form.get("folder") else "other://host"
    _both_agree("other", External(example, **form))


@pytest.mark.parametrize(
    ("form", "end", "problem"),
    [
        ({}, "/x?y=1", "has a path, and this store takes none"),
        ({}, "?y=1", "has a parameter, and this store takes none"),
        ({"parameters": ("x",), "bounded": True}, "?y=1", "has a parameter other than x and bytes"),
        ({"paths": True}, "/x#y", "has a part behind #, which no store takes"),
    ],
)
def test_what_a_kind_does_not_take_is_told_with_the_field_and_the_way_out(
    form: dict[str, Any], end: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast(dict[str, External], EXTERNAL), "redis", External("redis://host:80", port=80, **form))
    report = faults(pair(cache={"l2": {"type": "external", "url": f"redis://127.0.0.1:18080{end}"}}))
    shown = re.sub("([?#]).*", r"\1***", end)
    assert report == f"spec.cache.l2.url: 'redis://127.0.0.1:18080{shown}' {problem}: write it as redis://host:80"


@pytest.mark.parametrize(
    ("kind", "url", "problem"),
    [
        ("mooncake", "mooncake://master:50051/a", "has a path, and this store takes none"),
        ("mooncake", "mooncake://master:50051?a=b", "has a parameter, and this store takes none"),
        ("s3", "s3://bucket/prefix?a=b", "has a parameter, and this store takes none"),
    ],
)
def test_a_store_of_vllm_s_gets_all_of_its_address_or_none(kind: str, url: str, problem: str) -> None:
    assert f" {problem}: write it as {kind}://" in faults(pair(cache={"l2": {"type": kind, "url": url}}))


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
    table = cast(dict[str, External], EXTERNAL)
    monkeypatch.setitem(table, "http", External("http://host:8080", port=8080))
    monkeypatch.setitem(table, "redis", External("redis://host:7000", port=7000))
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
    report = faults(pair(cache={"l2": {"type": "external", "url": "redis://store:6379/3?bytes=5"}}))
    assert report.startswith("spec.cache.l2.url: 'redis://store:6379/3?***' names a database, and engines use 0 alone")
    assert report.endswith(": write it as redis://host:6379")


def test_a_bound_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "has ?bytes= with what is no number of bytes above 0: write it as"
    folder = External("valkey:///path", folder=True, bounded=True)
    monkeypatch.setitem(cast(dict[str, External], EXTERNAL), "valkey", folder)
    report = faults(pair(cache={"l2": {"type": "external", "url": "valkey:///a?bytes=5Gi"}}))
    assert report == f"spec.cache.l2.url: 'valkey:///a?***' {problem} valkey:///path, or with ?bytes=5000000"


@pytest.mark.parametrize(
    "l2",
    [
        *(
            {"type": "external", "url": url}
            for url in ("sqlit:///var", "redis://", "store", "other://:0", "REDIS://a", "redis:a")
        ),
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
    monkeypatch.setitem(
        cast(dict[str, External], EXTERNAL), "other", External("other:///path", folder=True, bounded=True)
    )
    cache = {"l2": {"type": "external", "url": "other:///var/lib/kv/l2/?bytes=5000"}}
    ((path, message),) = _told(pair(cache=cache))
    assert path == "spec.cache.l2.url"
    assert message.startswith("/var/lib/kv/l2 is a path inside the prefill engines, and no volume is mounted there")
    assert "spec.prefill.template" in message
    assert _told(pair(cache=cache, prefill=_mounted("/var/lib/kv/l"), decode=_mounted("/var/lib/kv")))
    for at in ("/var/lib/kv/", "/var/lib/kv/l2"):
        assert _told(pair(cache=cache, prefill=_mounted(at))) == []
    assert _told(pair(cache=cache), site=LOCAL) == []

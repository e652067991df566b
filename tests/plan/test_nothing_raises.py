"""Texts that look like numbers, addresses or JSON and are none: refused with a reason, never an exception."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.support import faults, pair, serving
from tests.plan.whole_template import filled, leaves

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.control import pod_fields
from kvserving_operator.plan import addresses
from kvserving_operator.plan.planning import check, plan

PIECES = st.sampled_from(
    [
        *("redis://", "rediss://", "http://", "s3://", "//", "[", "]", "::1", "%eth0", "h", ":", "0", "99999", "²"),
        *("٣", "@", "/", "?", "#", ".svc", "\u2100", "\\", "é", "-", "$(A)", "{", "}", '"'),
    ]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=8).map("".join)
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def planned(spec: dict[str, Any]) -> None:
    """Make the plan, which may only be refused: by the check, and then by the plan as well."""
    made = serving(pair(**spec))
    if not check(made):
        plan(made)
        return
    with pytest.raises(InvalidSpec):
        plan(made)


@RELAXED
@given(st.sampled_from(["external", "mooncake", "s3"]), TEXTS, st.none() | TEXTS)
def test_any_address_of_a_store_is_planned_or_refused(kind: str, url: str, endpoint: str | None) -> None:
    given_ = {"url": url} if endpoint is None else {"url": url, "endpoint": endpoint}
    planned({"cache": {"l2": {"type": kind, **given_}}})


@RELAXED
@given(st.lists(st.sampled_from(["--port", "--port=", "--hf-overrides", "--speculative-config.a"]) | TEXTS, max_size=4))
def test_any_arguments_are_planned_or_refused(args: list[str]) -> None:
    planned({"engine": {"args": [word for word in args if word]}})


@pytest.mark.parametrize("value", ["²", "٣", "8000x", "", "-1", "+8000", "8_000", "sesame"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_port_that_is_no_number_is_refused_at_its_position_without_being_shown(value: str, joined: bool) -> None:
    args = ["--seed=1", f"--port={value}"] if joined else ["--seed=1", "--port", value or "x"]
    (line, *_) = faults(pair(engine={"args": args})).splitlines()
    assert line.startswith("spec.engine.args[1]: --port needs a number from 1 to 65535")
    assert "sesame" not in line


@pytest.mark.parametrize("value", ["0", "65536", "9" * 900])
def test_a_port_out_of_range_is_refused_with_the_number(value: str) -> None:
    report = faults(pair(decode={"args": [f"--port={value}"]}))
    assert report == f"spec.decode.args[0]: --port {value[:20]} is not a port from 1 to 65535"


ADDRESSES = [
    ("redis://[", "has brackets"),
    ("redis://[::1", "has brackets"),
    ("redis://[a]", "has brackets"),
    ("redis://h\u2100", "has brackets or letters"),
    ("redis://h:x", "has a port that is no number"),
    ("redis://h:99999", "has a port that is no number"),
    ("redis://h:0", "has port 0"),
    ("redis://:6379", "names no host"),
    ("redis:///0", "names no host"),
]


@pytest.mark.parametrize(("url", "words"), ADDRESSES)
def test_what_is_no_address_is_refused_with_the_reason(url: str, words: str) -> None:
    (line,) = faults(pair(cache={"l2": {"type": "external", "url": url}})).splitlines()
    shown = url.replace("h:x", "h:***").replace("[::1", "[:***")
    assert line.startswith(f"spec.cache.l2.url: {shown!r} {words}")
    assert line.endswith(": write it as redis://host:6379")
    mooncake = faults(pair(cache={"l2": {"type": "mooncake", "url": url.removeprefix("redis://")}}))
    assert mooncake.startswith("spec.cache.l2.url: ")
    assert mooncake.endswith(": write it as mooncake://host:50051")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@h:0/1", "redis://***@h:0/1"),
        ("user:hunter2@h:0", "***@h:0"),
        ("redis://h:hunter2", "redis://h:***"),
        ("redis://[::1]:hunter2/0", "redis://[::1]:***/0"),
        ("redis://h:0?password=hunter2", "redis://h:0?***"),
        ("redis://[2001:db8::1]:6379/0", "redis://[2001:db8::1]:6379/0"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_secret(url: str, shown: str) -> None:
    assert addresses.shown(url) == repr(shown)
    assert "hunter2" not in faults(pair(cache={"l2": {"type": "external", "url": url}}))


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    l2 = {"type": "s3", "url": "s3://bucket/a", "endpoint": "http://["}
    assert faults(pair(cache={"l2": l2})).startswith("spec.cache.l2.endpoint: 'http://[' has brackets")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("redis://store.cache.svc:6379/0", "store.cache.svc", 6379),
        ("rediss://[2001:db8::1]", "2001:db8::1", None),
        ("mooncake-master:50051", "mooncake-master", 50051),
        ("10.0.0.1:1", "10.0.0.1", 1),
    ],
)
def test_addresses_are_taken_apart(text: str, host: str, port: int | None) -> None:
    address = addresses.parse(text)
    assert (address.host, address.port, address.problem) == (host, port, None)


def test_json_that_is_nested_without_end_does_not_stop_the_plan() -> None:
    for args in (["--hf-overrides", "[" * 1024], ["--hf-overrides" + "." * 1000], ["--speculative-config", "{" * 1024]):
        planned({"engine": {"args": args}})
        planned({"decode": {"args": args}})


WHOLE = filled(pod_fields.ROOT, 4)
PLACES = list(leaves(WHOLE))
JUNK: list[Any] = [None, True, 1.5, -1, 2**70, "", "²", "a b", "$(X)", [], {}, [None], [1], {"a": None}, {"name": 5}]


@RELAXED
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(JUNK)), min_size=1, max_size=4))
def test_any_values_in_a_template_with_every_field_are_refused_without_an_exception(changes: list[Any]) -> None:
    template = copy.deepcopy(WHOLE)
    template["spec"]["containers"][0]["name"] = "engine"
    for place, value in changes:
        at = template
        for step in place[:-1]:
            at = at[step] if isinstance(at, (dict, list)) and step in _steps(at) else {}
        if isinstance(at, dict) or (isinstance(at, list) and place[-1] in _steps(at)):
            at[place[-1]] = value
    planned({"decode": {"template": template}})


@RELAXED
@given(st.sampled_from(PLACES), st.sampled_from(JUNK), st.sampled_from(["engine", "side"]))
def test_a_template_with_any_single_field_is_planned_or_refused(place: tuple[Any, ...], value: Any, name: str) -> None:
    for step in reversed(place):
        value = (
            {step: value} if isinstance(step, str) else [{"name": name, **value} if isinstance(value, dict) else value]
        )
    planned({"decode": {"template": value}})


def _steps(value: Any) -> Any:
    return range(len(value)) if isinstance(value, list) else value

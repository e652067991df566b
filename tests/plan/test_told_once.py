"""What rules and plan say together: no fault twice, each at the field that it is about."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import yaml
from tests import specs
from tests.api.objects import serving
from tests.api.rule_examples import EXAMPLES, Example
from tests.plan.support import DATA

from kvserving_operator.api import owned
from kvserving_operator.api.faults import Fault
from kvserving_operator.api.load import inspect
from kvserving_operator.plan.planning import check

CASES = specs.refused()
_SUBJECT = re.compile(r"(?<![-\w])--[a-z][-a-z0-9]*|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")


def told(text: str) -> tuple[Fault, ...]:
    """What ``kvserving validate`` reports."""
    reading = inspect(text, strict=True)
    return (*reading.faults, *(check(reading.serving) if reading.serving is not None else ()))


def subjects(faults: tuple[Fault, ...]) -> Counter[tuple[str, str]]:
    """How many faults there are by field, positions in lists left out, and flag or variable; '' is none of them."""
    return Counter(
        (re.sub(r"\[\d+\]", "", fault.path), subject)
        for fault in faults
        for subject in set(_SUBJECT.findall(fault.message)) or {""}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path.stem)
def test_no_two_faults_are_about_the_same_flag_or_variable_of_a_field(case: specs.Refused) -> None:
    faults = told(case.text)
    assert faults
    assert {key: count for key, count in subjects(faults).items() if count > 1} == {}
    # Beside the refusal of the whole flag, the keys inside it that the version does not know.
    fields = Counter(fault.path for fault in faults)
    assert {path for path, count in fields.items() if count > 1} <= (
        {"spec.prefill.args[0]"} if case.path.stem.startswith("01-") else set()
    )


@pytest.mark.parametrize("section", owned.SECTIONS)
def test_everything_that_is_refused_at_once_is_told_once(section: owned.Section) -> None:
    known = [line for line in (DATA / "vllm-0.32.0-flags.txt").read_text().splitlines() if line.startswith("--")]
    refused = [flag for flag in owned.FLAGS if flag.refused(section, kvcached=True)]
    args = [next(flag for flag in known if f.matches(flag)) for f in refused if any(f.matches(flag) for flag in known)]
    groups = [group for group in owned.VARIABLES if group.refused(section)]
    names = [name for group in groups for name in (*group.names, *(f"{prefix}X" for prefix in group.prefixes))]
    spec: dict[str, Any] = {
        "model": {"uri": "hf://Qwen/Qwen3-8B"},
        "engine": {"version": "0.30.0"},
        "prefill": {"replicas": 1},
        "decode": {"replicas": 1},
        "kvcached": {"enabled": True},
    }
    spec[section] |= {
        "args": args,
        "env": [{"name": name, "value": "expandable_segments:True"} for name in names],
    }
    head = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}}
    faults = told(yaml.safe_dump({**head, "spec": spec}))
    found = Counter((re.sub(r"args\[\d+\]", "args", fault.path), fault.message.split()[0]) for fault in faults)
    matched = {flag.shown for flag in refused if any(flag.matches(argument) for argument in args)}
    wanted = {(f"spec.{section}.args", shown) for shown in matched}
    wanted |= {(f"spec.{section}.env[{index}]", name) for index, name in enumerate(names)}
    assert found == Counter(dict.fromkeys(wanted, 1))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.rule} {next(iter(example.bad.values()))}")
def test_what_a_rule_refuses_is_not_told_again_by_the_plan(example: Example) -> None:
    faults = told(yaml.safe_dump(serving(example.bad)))
    before = len(inspect(serving(example.bad), strict=True).faults)
    ruled = {fault.path for fault in faults[:before]}
    # Numbers of nodes that would be wrong are at present not supported at all: two faults.
    again = [str(fault) for fault in faults[before:] if fault.path in ruled and not fault.path.endswith(".nodes")]
    assert again == []


ONCE: list[tuple[dict[str, Any], str]] = [
    ({"spec.model.uri": "gs://a/b"}, "spec.model.uri"),
    ({"spec.model.uri": "file://a"}, "spec.model.uri"),
    ({"spec.model.loras": [{"name": "a", "uri": "a"}], "spec.router.type": "vllm-router"}, "spec.model.loras[0].uri"),
    ({"spec.cache.l2": {"type": "filesystem"}}, "spec.cache.l2.type"),
    ({"spec.cache.l2": {"type": "external"}}, "spec.cache.l2.type"),
    ({"spec.cache.l2": {"type": "s3", "url": "redis://a"}}, "spec.cache.l2.url"),
    ({"spec.cache.l2": {"type": "filesystem", "size": "1Gi", "replicas": 2}}, "spec.cache.l2.replicas"),
    ({"spec.cache.l2": {"type": "external", "url": "redis://a:b@c"}}, "spec.cache.l2.url"),
    ({"spec.cache.connectors": [{"name": "NixlConnector", "weight": 9}] * 2}, "spec.cache.connectors"),
    ({"metadata.name": "a..b"}, "metadata.name"),
    ({"spec.prefill.resources": {"limits": {"nvidia.com/gpu": 2}}}, "spec.prefill.resources.limits['nvidia.com/gpu']"),
]


@pytest.mark.parametrize(("changes", "path"), ONCE, ids=[path for _, path in ONCE])
def test_one_mistake_is_told_once(changes: dict[str, Any], path: str) -> None:
    assert [fault.path for fault in told(yaml.safe_dump(serving(changes)))] == [path]

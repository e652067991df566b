"""Forms of single values: what Kubernetes refuses later is refused when the object is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.api.objects import serving

from kvserving_operator.api.faults import Fault, InvalidSpec, printable
from kvserving_operator.api.load import inspect, inspect_file, load
from kvserving_operator.api.types import Duration, Quantity

ESCAPE = "\x1b[2J"


def faults(changes: dict[str, Any]) -> tuple[Fault, ...]:
    return inspect(serving(changes), strict=True).faults


@pytest.mark.parametrize("name", ["Team_A", "a.b", "-a", "a-", "a" * 64, "$(POD_IP)", "a\n"])
def test_a_namespace_that_kubernetes_refuses_is_refused(name: str) -> None:
    assert [fault.path for fault in faults({"metadata.namespace": name})] == ["metadata.namespace"]


@pytest.mark.parametrize("name", ["a..b", "a.-b", "a-.b"])
@pytest.mark.parametrize("path", ["metadata.name", "spec.model.secretRef", "spec.scheduling.colocate.topologyKey"])
def test_names_with_empty_parts_are_refused(path: str, name: str) -> None:
    value = f"{name}/zone" if path.endswith("topologyKey") else name
    assert [fault.path for fault in faults({path: value})] == [path]


IMAGES = [
    "vllm",
    "vllm/vllm-openai:v0.33.0",
    "registry.example:5000/team/vllm:a_B-1.2",
    "localhost:5000/vllm",
    "Registry.Example.org/a/b__c",
    f"a/b@sha256:{'0' * 64}",
    f"a/b:1@sha256:{'0' * 64}",
    "[2001:db8::1]:5000/a/b:1",
]
BAD_IMAGES = ["", " ", "a/b c", " a/b", "a/b ", "Team/Vllm:1", "VLLM", "a/b:", ":v1", "a//b", "/a", "a/b:1:2"]
BAD_IMAGES += ["a/b@sha256:12", "https://a/b", "a/b\n", "a/b:-1", "$(IMAGE)"]


@pytest.mark.parametrize("path", ["spec.engine.image", "spec.router.image"])
@pytest.mark.parametrize("image", IMAGES)
def test_image_references_are_accepted(path: str, image: str) -> None:
    assert faults({path: image}) == ()


@pytest.mark.parametrize("path", ["spec.engine.image", "spec.router.image"])
@pytest.mark.parametrize("image", BAD_IMAGES)
def test_what_is_no_image_reference_is_refused(path: str, image: str) -> None:
    (fault,) = faults({path: image})
    assert fault.path == path
    assert image == "" or "is not an image reference such as" in fault.message


@pytest.mark.parametrize("value", ["10000h", "1000000s", "999999h", "1h1000000m"])
def test_durations_beyond_what_kubernetes_counts_are_refused_with_the_bound(value: str) -> None:
    (fault,) = faults({"spec.rollout.progressDeadline": value})
    assert fault.path == "spec.rollout.progressDeadline"
    assert f"{value!r} is too long: at most 9999h" in fault.message


def test_the_longest_durations_together_fit_32_bits() -> None:
    assert 4 * Duration("9999h999999m999999s").seconds < 2**31


def test_sizes_beyond_what_kubernetes_counts_are_refused() -> None:
    assert Quantity("7Ei").bytes == 7 * 2**60
    (fault,) = faults({"spec.cache.l1.size": "8Ei"})
    assert "'8Ei' is 8Ei or more" in fault.message


@pytest.mark.parametrize("resource", ["hca", "rdma/", "/hca", "a/b/c", "rdma/h ca", f"rdma/{'a' * 64}"])
def test_a_device_resource_without_a_domain_is_refused(resource: str) -> None:
    found = faults({"spec.transfer.rdma.resource": resource})
    assert [fault.path for fault in found] == ["spec.transfer.rdma.resource"]
    assert "rdma/hca" in found[0].message


TEXTS = ["spec.model.uri", "spec.model.name", "spec.engine.kv.dtype", "spec.cache.l2.tenant", "spec.cache.l2.url"]


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize("value", [f"a{ESCAPE}", "a\x7f", "a\x9b2J", "a\nb", "a\tb"])
def test_control_characters_in_a_text_of_one_line_are_refused(path: str, value: str) -> None:
    found = faults({path: value})
    assert {fault.path for fault in found} == {path}
    assert all(str(fault).isprintable() for fault in found)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"spec.prefill.args": [f"--a={ESCAPE}"]}, "spec.prefill.args[0]"),
        ({"spec.engine.env": [{"name": "A", "value": "\x00"}]}, "spec.engine.env[0].value"),
        ({"spec.decode.template": {"metadata": {"labels": {"a": ESCAPE}}}}, "spec.decode.template.metadata.labels.a"),
        ({"spec.decode.template": {"metadata": {ESCAPE: "a"}}}, "spec.decode.template.metadata"),
    ],
)
def test_control_characters_in_free_parts_are_refused_by_their_number(changes: dict[str, Any], path: str) -> None:
    (fault,) = faults(changes)
    assert fault.path == path
    assert "holds the control character U+00" in fault.message
    assert str(fault).isprintable()


def test_control_characters_written_as_escapes_in_a_file_are_refused() -> None:
    text = json.dumps(serving({"spec.model.name": f"a{ESCAPE}"}))
    with pytest.raises(InvalidSpec) as raised:
        load(text, strict=True)
    assert "U+001B" in str(raised.value)
    assert str(raised.value).isprintable()


def test_line_ends_and_tabs_are_allowed_where_scripts_stand() -> None:
    env = [{"name": "SCRIPT", "value": "a\n\tb\r\n"}]
    template = {"spec": {"containers": [{"name": "side", "image": "a", "command": ["sh", "-c", "a\nb"]}]}}
    assert faults({"spec.engine.env": env, "spec.decode.template": template}) == ()


def test_annotations_of_other_tools_are_not_looked_into() -> None:
    assert faults({"metadata.annotations": {"a": ESCAPE}}) == ()


def test_the_text_of_a_fault_holds_no_control_characters() -> None:
    text = str(Fault(f"spec.{ESCAPE}", "a\nb\u202ec\x9b \ud800"))
    assert text == "spec.\\x1b[2J: a\\nb\\u202ec\\x9b \\ud800"
    assert printable("größe 模型") == "größe 模型"


def test_the_name_of_an_unreadable_file_is_shown_without_control_characters(tmp_path: Path) -> None:
    (fault,) = inspect_file(tmp_path / f"a{ESCAPE}.yaml").faults
    assert fault.message.isprintable()

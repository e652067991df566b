"""Labels and annotations of the object: what the apiserver refuses is refused when a person's file is read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.objects import serving

from kvserving_operator.api.load import inspect
from kvserving_operator.api.metadata import MOST_ANNOTATIONS, is_key

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"labels": {"a b": "c"}}, "metadata.labels", "'a b' is no key of a label or annotation"),
    ({"labels": {"A.b/c": "d"}}, "metadata.labels", "'A.b/c' is no key"),
    ({"labels": {"a": "b c"}}, "metadata.labels.a", "'b c' is no value of a label"),
    ({"labels": {"a": "b" * 64}}, "metadata.labels.a", "at most 63"),
    ({"labels": {"a": 5}}, "metadata.labels.a", "is not text: put it in quotes"),
    ({"labels": {"a.b/c": True}}, "metadata.labels['a.b/c']", "is not text: put it in quotes"),
    ({"labels": ["a"]}, "metadata.labels", "must be a map of keys and texts"),
    ({"annotations": {"a": {"b": "c"}}}, "metadata.annotations.a", "is not text"),
    ({"annotations": {"/a": "b"}}, "metadata.annotations", "'/a' is no key"),
    ({"annotations": "a"}, "metadata.annotations", "must be a map of keys and texts"),
    ({"annotations": {"a": "b" * MOST_ANNOTATIONS}}, "metadata.annotations", "262145 bytes are more than the 262144"),
]


@pytest.mark.parametrize(("metadata", "path", "words"), REFUSED, ids=[f"{path} {words}" for _, path, words in REFUSED])
def test_labels_and_annotations_that_the_apiserver_refuses_are_refused_once(
    metadata: dict[str, Any], path: str, words: str
) -> None:
    obj = serving({"metadata": {"name": "qwen", **metadata}})
    reading = inspect(obj, strict=True)
    (fault,) = reading.faults
    assert fault.path == path
    assert words in fault.message
    assert reading.serving is not None
    assert inspect(obj, strict=False).faults == ()


def test_values_of_annotations_are_not_shown() -> None:
    reading = inspect(serving({"metadata": {"name": "qwen", "annotations": {"a": 731}}}), strict=True)
    assert not any("731" in str(fault) or fault.value for fault in reading.faults)


def test_what_the_apiserver_takes_is_accepted() -> None:
    metadata = {
        "name": "qwen",
        "labels": {"team": "", "example.com/A_b.c": "1-2", "gone": None},
        "annotations": {"Example.COM/a": "any\ntext", "a": "b" * (MOST_ANNOTATIONS - 100)},
    }
    assert inspect(serving({"metadata": metadata}), strict=True).faults == ()


def test_a_key_has_a_bounded_domain() -> None:
    domain = ".".join(["a" * 50] * 5)
    assert is_key(f"{domain[:253]}/b", annotation=False)
    assert not is_key(f"{domain}.{domain}/b", annotation=False)
    assert not is_key("a" * 64, annotation=True)

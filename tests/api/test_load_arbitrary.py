from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.specs import accepted

from kvserving_operator.api.load import Reading, inspect

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 5),
    st.floats(),
    st.text(st.characters(), max_size=12),
    st.binary(max_size=4),
    st.dates(),
    st.sampled_from(["", "0", "1:4", "4:1", "64Gi", "-8Gi", "30s", "auto", "required", "s3", "hf://a/b", "--model=x"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(st.characters(), max_size=6), st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)
OBJECTS = [yaml.safe_load(path.read_text()) for path in accepted()]
QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside ``value``."""
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    return [path, *(place for key, member in members for place in places(member, (*path, key)))]


def assert_told(reading: Reading) -> None:
    assert reading.faults or reading.serving is not None
    for fault in reading.faults:
        assert fault.message
        assert len(str(fault)) < 2000
        assert "\n" not in fault.message


@QUICK
@given(st.text(max_size=200), st.booleans())
def test_any_text_gives_faults_and_no_exception(text: str, strict: bool) -> None:
    assert_told(inspect(text, strict=strict))


@QUICK
@given(VALUES, st.booleans())
def test_any_value_gives_faults_and_no_exception(value: Any, strict: bool) -> None:
    assert_told(inspect(value, strict=strict))
    assert_told(inspect(yaml.safe_dump(value), strict=strict))


@QUICK
@given(st.data())
def test_any_value_at_any_place_gives_faults_and_no_exception(data: st.DataObject) -> None:
    obj = copy.deepcopy(data.draw(st.sampled_from(OBJECTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(places(obj)[1:]))
        node = obj
        for part in parents:
            node = node[part]
        node[last] = data.draw(VALUES)
    reading = inspect(obj, strict=True)
    assert_told(reading)
    if not reading.faults and reading.serving is not None:
        again = json.loads(reading.serving.model_dump_json(by_alias=True, exclude_unset=True, exclude_none=True))
        assert inspect(again, strict=True).serving == reading.serving

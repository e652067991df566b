from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local.state import ServiceDir, services


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b'{"pods": [1]}'])
def test_a_damaged_state_is_put_aside_and_counts_as_none(tmp_path: Path, content: bytes) -> None:
    directory = ServiceDir("svc", tmp_path)
    directory.create()
    directory.state_file.write_bytes(content)
    assert directory.read() is None
    assert not directory.state_file.exists()
    assert directory.state_file.with_name("state.json.damaged").read_bytes() == content
    assert services(tmp_path) == []


WHOLE: dict[str, Any] = {
    "name": "svc", "revision": "r", "phase": "Ready", "router": {"url": "u"}, "engine_python": "", "served_model": "m",
    "pods": [], "supervisor": {"pid": 1, "start_time": 1}, "verification": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"supervisor": None}, {"router": None}, {"router": []}, {"verification": {}}, {"verification": "text"},
        {"verification": {"ok": True, "lines": [], "at": "never"}}, {"verification": {"lines": [], "at": 1.0}},
        {"verification": {"ok": True, "lines": [], "at": 1.0, "began": []}}, {"pods": {"a": 1}}, {"pods": None},
    ],
)  # fmt: skip
def test_a_state_with_a_part_of_another_kind_counts_as_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    directory = ServiceDir("svc", tmp_path)
    directory.create()
    directory.state_file.write_text(json.dumps(WHOLE))
    assert directory.read() is not None
    directory.state_file.write_text(json.dumps({**WHOLE, **change}))
    assert directory.read() is None


def test_a_state_nested_too_deeply_counts_as_damaged(tmp_path: Path) -> None:
    directory = ServiceDir("svc", tmp_path)
    directory.create()
    directory.state_file.write_text('{"a":' * 100_000)
    assert directory.read() is None

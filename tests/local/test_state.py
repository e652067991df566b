from __future__ import annotations

from pathlib import Path

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

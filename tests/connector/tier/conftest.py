from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import Server
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

Start = Callable[..., Server]


@pytest.fixture(autouse=True)
def _hash_root() -> None:
    kv_cache_utils.init_none_hash(sha256_cbor)


@pytest.fixture(params=["files", "servers"])
def url(request: pytest.FixtureRequest, tmp_path: Path, start_server: Start) -> Any:
    if request.param == "files":
        return f"file://{tmp_path}/l2"
    return [start_server().url, start_server().url]

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import Server, address_of
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

from kvserving_connector.store.open import KINDS

Start = Callable[..., Server]


@pytest.fixture(autouse=True)
def _hash_root() -> None:
    kv_cache_utils.init_none_hash(sha256_cbor)


@pytest.fixture(
    params=["servers", *(kind for kind in KINDS if kind.folder)], ids=lambda each: str(getattr(each, "example", each))
)
def url(request: pytest.FixtureRequest, tmp_path: Path, start_server: Start, servers: ExitStack) -> Any:
    """Stores that engines share: servers, and a folder of every kind that lies in one."""
    if request.param == "servers":
        return [start_server().url, start_server().url]
    return address_of(request.param, servers, tmp_path)

"""What handshakes carry of a pool."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.vllm.staging.wire import VERSION, Pool

pytestmark = pytest.mark.engine


def test_vllms_own_decoder_passes_over_the_pool() -> None:
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

    from kvserving_connector.vllm.staging.wire import with_pool

    plain = NixlHandshakePayload(compatibility_hash="h", agent_metadata_bytes=b"m")
    pool = Pool(VERSION, 4096, 8192, "VRAM", 1, (64, 32), 2, "names", 2)
    encoded = msgspec.msgpack.encode(with_pool(plain, pool))
    assert msgspec.msgpack.Decoder(NixlHandshakePayload).decode(encoded) == plain
    assert Pool.of(msgspec.msgpack.decode(encoded)["staging"]) == pool
    assert with_pool(plain, None) is plain
    assert Pool.of({"version": VERSION + 1}) is None

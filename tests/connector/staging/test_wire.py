"""What handshakes carry of a pool."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from kvserving_connector.core.staging_cost import CostBook, Sample, Way
from kvserving_connector.vllm.staging.wire import VERSION, Pool, encode, take_samples

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


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"null", b"[" * 100_000, b"\xff", b'["staged", 1, 1]', b'["none", 1, 1, 1.0]',
        b'["staged", 0, 1, 1.0]',
        b'["staged", 1, 1, NaN]', b'["staged", 1, 1, Infinity]', b'["staged", 1, 1, -1]', b'["staged", 1e999, 1, 1.0]',
        b'["staged", 1' + b"0" * 400 + b', 1, 1.0]', b'["direct", 1, 1' + b"0" * 400 + b", 1.0]",
    ],
)  # fmt: skip
def test_what_is_no_measurement_costs_nobody_anything(text: bytes) -> None:
    found, samples = take_samples({"a": [b"KVSERVING:" + text, encode(Sample(Way.STAGED, 2, 3, 0.5)), b"request:1"]})
    assert found == {"a": [b"request:1"]}
    assert samples == [Sample(Way.STAGED, 2, 3, 0.5)]
    for sample in samples:
        CostBook().observe(sample)

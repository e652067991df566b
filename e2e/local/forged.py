"""Transfer parameters as no prefill of the service would make them, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

FOREIGN_HOSTS = ("10.0.0.9", "203.0.113.7", "198.51.100.250")
"""Addresses that nothing on this machine has a reason to dial."""

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False), st.text(max_size=20)
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4))


values: st.SearchStrategy[Any] = st.recursive(scalars, _containers, max_leaves=8)


def complete(host: str, port: int) -> dict[str, Any]:
    """Return a complete, well-typed set that names a host of the client's choice."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "00000000-0000-0000-0000-000000000000",
        "remote_request_id": "cmpl-forged",
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 32,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }


def params(listener: int, revision: str) -> st.SearchStrategy[Any]:
    """Parameters from random JSON to complete forgeries; hosts are foreign, or 127.0.0.1 with port ``listener``."""
    hosts = st.sampled_from([(host, 5600) for host in FOREIGN_HOSTS] + [("127.0.0.1", listener)])
    whole = hosts.map(lambda at: complete(*at))
    keys = sorted(complete("", 0))
    signature = st.one_of(
        st.just({}),
        st.sampled_from(["", "v1", f"v1.{revision}.1999999999." + "0" * 64, f"v1.other.1999999999.{'f' * 64}"]).map(
            lambda text: {"kvserving_signature": text}
        ),
        values.map(lambda value: {"kvserving_signature": value}),
    )
    lacking = st.tuples(whole, st.sets(st.sampled_from(keys), min_size=1)).map(
        lambda made: {key: value for key, value in made[0].items() if key not in made[1]}
    )
    mistyped = st.tuples(whole, st.dictionaries(st.sampled_from(keys), values, min_size=1, max_size=4)).map(
        lambda made: {**made[0], **made[1]}
    )
    objects = st.tuples(st.one_of(whole, lacking, mistyped), signature).map(lambda made: {**made[0], **made[1]})
    return st.one_of(objects, objects, st.just({"do_remote_prefill": True}), values.filter(lambda v: v is not None))

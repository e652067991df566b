"""What engines of one revision tell each other stays as it was recorded, for as long as the protocol's number stays.

Engines of one revision may have connectors of two releases while one replaces the other. They exchange signed
parameters, with and without a staging slot, the digest of a prompt, a prefill rank's pool and measurements; the
operator marks probes. When a test here fails: count ``TRANSFER_PROTOCOL`` up in ``kvserving_operator/connectors.py``,
which makes the upgrade a rollout, then record anew:
``PYTHONPATH=operator/src .venv-engine/bin/python -m tests.connector.test_transfer_protocol``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.connector.support import KEY, KEYS, NOW, REVISION, handoff

from kvserving_connector.core.params import check_handoff
from kvserving_connector.core.signing import (
    PROMPT_KEY,
    prompt_digest,
    sign_params,
    verify_mark,
    verify_params,
)
from kvserving_connector.core.staging import HEADER_BYTES, STAGED_KEY, Slot, is_slot
from kvserving_connector.core.staging_cost import Sample, Way
from kvserving_connector.vllm.staging.wire import Pool, encode, take_samples
from kvserving_operator.connectors import TRANSFER_PROTOCOL
from kvserving_operator.verify.mark import probe_mark

RECORD = Path(__file__).parent / "data" / f"transfer-protocol-{TRANSFER_PROTOCOL}.json"
_EXPIRY = int(NOW) + 30
_NONCE = "0123456789abcdef"
_SLOT = Slot(offset=4096, generation=7, rows=3, row_bytes=512)
_SAMPLES = [Sample(Way.STAGED, 1536, 2, 0.25), Sample(Way.DIRECT, 2**40, 4500, 1e-05)]
_POOL = Pool(
    version=1, base=2**40, bytes=2**30, memory="VRAM", device=0, row=(256, 256), rows_per_block=1, names="ab", ranks=2
)


def written() -> dict[str, Any]:
    """Everything as the present connector writes it."""
    digest = prompt_digest("cmpl-1", [1, 2, 2**32], "adapter")
    params = {"plain": handoff(), "staged": handoff(**{STAGED_KEY: _SLOT.params(), "remote_block_ids": [[]]})}
    signed = {
        form: sign_params({**given, PROMPT_KEY: digest}, keys=KEYS, revision=REVISION, expiry=_EXPIRY)
        for form, given in params.items()
    }
    return {
        "prompt": digest,
        "params": signed,
        "mark": probe_mark(KEY.encode(), REVISION, _EXPIRY, _NONCE),
        "pool": asdict(_POOL) | {"row": list(_POOL.row)},
        "samples": [encode(sample).decode() for sample in _SAMPLES],
        "header_bytes": HEADER_BYTES,
    }


def recorded() -> dict[str, Any]:
    assert RECORD.is_file(), f"nothing is recorded of protocol {TRANSFER_PROTOCOL}: {__doc__}"
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def test_what_is_written_is_what_was_recorded() -> None:
    assert written() == recorded()


def test_recorded_hand_offs_are_accepted() -> None:
    record = recorded()
    assert set(record["params"]) == {"plain", "staged"}
    for params in record["params"].values():
        assert check_handoff(params) is None
        assert verify_params(params, keys=KEYS, revision=REVISION, now=NOW) is None
    assert is_slot(record["params"]["staged"][STAGED_KEY])
    assert Slot.of(record["params"]["staged"]) == _SLOT
    assert verify_mark(record["mark"], keys=KEYS, revision=REVISION, now=NOW) is None


def test_recorded_pools_and_measurements_are_understood() -> None:
    record = recorded()
    assert Pool.of(record["pool"]) == _POOL
    rest, samples = take_samples({"agent": [sample.encode() for sample in record["samples"]]})
    assert (rest, samples) == ({}, _SAMPLES)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(written(), indent=1, sort_keys=True) + "\n")

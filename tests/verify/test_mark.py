import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest

from kvserving_operator.verify import mark

KEY = b"ab" * 32
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[3, 4]], "remote_host": "127.0.0.2", "expiry": 17.125}


def signed(
    params: Mapping[str, Any], key: bytes = KEY, revision: str = "r1", expiry: int = 1800000000
) -> dict[str, Any]:
    text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    mac = hmac.new(key, f"kvserving-params\n{revision}\n{expiry}\n{text}".encode(), hashlib.sha256).hexdigest()
    return {**params, "kvserving_signature": f"v1.{revision}.{expiry}.{mac}"}


def test_the_mark_is_the_mac_of_revision_expiry_and_nonce() -> None:
    mac = hmac.new(KEY, b"kvserving-probe\nr1\n1800000000\n0123456789abcdef", hashlib.sha256).hexdigest()
    assert mark.probe_mark(KEY, "r1", 1800000000, "0123456789abcdef") == f"v1.1800000000.0123456789abcdef.{mac}"


def test_a_signature_survives_a_relay_that_reorders_members() -> None:
    relayed = json.loads(json.dumps(dict(reversed(signed(PARAMS).items()))))
    assert mark.signature_of(relayed, (KEY,)) == mark.Signature("r1", 1800000000, valid=True)


def test_either_key_verifies_while_one_is_rotated() -> None:
    found = mark.signature_of(signed(PARAMS), (b"new key", KEY))
    assert found is not None
    assert found.valid


@pytest.mark.parametrize(
    "change",
    [
        {"remote_host": "10.0.0.9"},
        {"remote_block_ids": [[3, 5]]},
        {"added": None},
        {"kvserving_signature": "v1.r2.1800000000." + "0" * 64},
        {"kvserving_signature": "v1.r1.soon.abc"},
        {"kvserving_signature": "v2"},
        {"kvserving_signature": 7},
    ],
)
def test_a_changed_member_or_signature_is_not_valid(change: dict[str, Any]) -> None:
    found = mark.signature_of({**signed(PARAMS), **change}, (KEY,))
    assert found is not None
    assert not found.valid


def test_a_member_that_vllm_adds_after_signing_is_not_signed() -> None:
    found = mark.signature_of({**signed(PARAMS), "remote_prefill_cached_tokens": 16}, (KEY,))
    assert found is not None
    assert found.valid


def test_parameters_without_signature_have_none() -> None:
    assert mark.signature_of(PARAMS, (KEY,)) is None


def test_a_key_file_has_one_or_two_lines() -> None:
    assert mark.keys_of("aa\nbb\n") == (b"aa", b"bb")
    for text in ("", "\n \n", "a\nb\nc\n"):
        with pytest.raises(ValueError, match="one or two lines"):
            mark.keys_of(text)

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector.support import KEY, KEYS, NOW, OTHER_KEY, REVISION, handoff, signed

from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import (
    Keys,
    canonical,
    prompt_digest,
    sign_params,
    verify_mark,
    verify_params,
)
from kvserving_operator.verify.mark import probe_mark

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
anything = json_values | st.binary() | st.dictionaries(st.integers(), json_values) | st.floats()


def check(params: object, keys: Keys = KEYS, revision: str = REVISION, now: float = NOW) -> Refusal | None:
    return verify_params(params, keys=keys, revision=revision, now=now)


def test_signed_params_verify_after_a_json_relay() -> None:
    params = signed(remote_blocks_expiry_time=1234.56789012345, remote_block_ids=([1, 2], []))
    assert check(json.loads(json.dumps(params))) is None


def test_the_signature_is_the_documented_hmac() -> None:
    import hashlib
    import hmac

    params = signed()
    text = f"kvserving-params\n{REVISION}\n{int(NOW) + 30}\n" + json.dumps(
        handoff(), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    mac = hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()
    assert params["kvserving_signature"] == f"v1.{REVISION}.{int(NOW) + 30}.{mac}"


@pytest.mark.parametrize("key", sorted(handoff()))
def test_a_change_of_any_signed_value_is_a_bad_signature(key: str) -> None:
    assert check({**signed(), key: "changed"}) is Refusal.BAD_SIGNATURE


def test_an_added_or_removed_key_is_a_bad_signature() -> None:
    assert check({**signed(), "extra": 1}) is Refusal.BAD_SIGNATURE
    assert check({k: v for k, v in signed().items() if k != "tp_size"}) is Refusal.BAD_SIGNATURE


def test_the_key_that_vllm_adds_after_signing_does_not_break_the_signature() -> None:
    assert check({**signed(), "remote_prefill_cached_tokens": 16}) is None


def test_a_handoff_expires_to_the_second_and_a_mark_a_minute_later() -> None:
    assert check(signed(), now=NOW + 30) is None
    assert check(signed(), now=NOW + 31) is Refusal.EXPIRED
    mark = probe_mark(KEY.encode(), REVISION, int(NOW), "0" * 16)
    assert verify_mark(mark, keys=KEYS, revision=REVISION, now=NOW + 60) is None
    assert verify_mark(mark, keys=KEYS, revision=REVISION, now=NOW + 61) is Refusal.EXPIRED


def test_another_revision_is_named_as_such() -> None:
    assert check(signed(), revision="rev-2") is Refusal.FOREIGN_REVISION


def test_both_keys_verify_while_one_is_rotated_and_only_the_first_signs() -> None:
    both = Keys.parse(f"{OTHER_KEY}\n{KEY}\n")
    assert check(signed(), keys=both) is None
    new = sign_params(handoff(), keys=both, revision=REVISION, expiry=int(NOW))
    assert check(new, keys=Keys.parse(OTHER_KEY)) is None
    assert check(new) is Refusal.BAD_SIGNATURE


def test_without_a_key_nothing_verifies_and_nothing_is_signed() -> None:
    assert check(signed(), keys=Keys()) is Refusal.UNSIGNED
    with pytest.raises(ValueError, match="no key"):
        sign_params(handoff(), keys=Keys(), revision=REVISION, expiry=int(NOW))


@pytest.mark.parametrize("text", ["", "\n\n", "short", f"{KEY}\n{KEY}\n{KEY}", "é" * 40])
def test_an_unusable_key_file_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"key|lines") as caught:
        Keys.parse(text)
    assert not text.strip() or text.strip() not in str(caught.value)
    assert KEY not in repr(KEYS)


@given(anything)
def test_verification_never_raises_and_never_accepts_what_was_not_signed(value: object) -> None:
    assert check(value) is not None
    assert verify_mark(value, keys=KEYS, revision=REVISION, now=NOW) is not None


@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_whatever_is_signed_verifies_after_a_json_relay(params: dict[str, object]) -> None:
    result = sign_params(params, keys=KEYS, revision=REVISION, expiry=int(NOW))
    assert check(json.loads(json.dumps(result))) is None


@given(st.text(max_size=200))
def test_no_text_is_accepted_as_a_signature(text: str) -> None:
    assert check({**signed(), "kvserving_signature": text}) is not None


def test_numbers_that_are_not_finite_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="finite"):
        sign_params({"a": float("nan")}, keys=KEYS, revision=REVISION, expiry=1)


def test_deep_nesting_is_malformed_not_an_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert check({**signed(), "remote_block_ids": deep}) is Refusal.MALFORMED


def test_a_probe_mark_holds_for_its_revision_time_and_key() -> None:
    mark = probe_mark(KEY.encode(), REVISION, int(NOW), "0123456789abcdef")
    assert verify_mark(mark, keys=KEYS, revision=REVISION, now=NOW + 60) is None
    assert verify_mark(mark, keys=KEYS, revision=REVISION, now=NOW + 61) is Refusal.EXPIRED
    assert verify_mark(mark, keys=KEYS, revision="rev-2", now=NOW) is Refusal.BAD_SIGNATURE
    assert verify_mark(mark, keys=Keys.parse(OTHER_KEY), revision=REVISION, now=NOW) is Refusal.BAD_SIGNATURE
    assert verify_mark(mark.replace("0123", "1123"), keys=KEYS, revision=REVISION, now=NOW) is Refusal.BAD_SIGNATURE


def test_a_prompt_digest_depends_on_tokens_request_and_adapter() -> None:
    digests = {
        prompt_digest("r1", [1, 2]),
        prompt_digest("r1", [2, 1]),
        prompt_digest("r2", [1, 2]),
        prompt_digest("r1", [1, 2], "adapter"),
    }
    assert len(digests) == 4
    assert canonical({"b": 1, "a": "é"}) == '{"a":"\\u00e9","b":1}'

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector.support import KEYS, NOW, PROBE_PARAMS, REVISION, handoff, signed
from tests.connector.test_signing import anything

from kvserving_connector.core import body as bodies
from kvserving_connector.core.params import check_handoff, check_prefill
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.signing import Keys

DECODE = Policy(Role.DECODE, REVISION, KEYS)
PREFILL = Policy(Role.PREFILL, REVISION, KEYS)
ONE = {"prompt": "hello", "max_tokens": 1}


def test_a_complete_handoff_passes() -> None:
    assert check_handoff(handoff()) is None


@pytest.mark.parametrize(
    "key", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size", "remote_num_tokens"]
)
@pytest.mark.parametrize("value", [None, ...])
def test_a_handoff_without_a_needed_key_is_incomplete(key: str, value: Any) -> None:
    assert check_handoff(handoff(**{key: value})) is Refusal.INCOMPLETE


@pytest.mark.parametrize("value", [None, [], [[]], [[], []]])
def test_a_handoff_without_blocks_is_incomplete(value: Any) -> None:
    """Empty ids make vLLM claim the whole prompt and then fail an assertion inside scheduling."""
    assert check_handoff(handoff(remote_block_ids=value)) is Refusal.INCOMPLETE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote_port", True),
        ("remote_port", 0),
        ("remote_port", 65536),
        ("remote_port", "5600"),
        ("remote_port", 5600.0),
        ("remote_host", 1),
        ("remote_host", ""),
        ("remote_host", "a b"),
        ("remote_host", "host\n"),
        ("remote_engine_id", {}),
        ("remote_request_id", "x" * 513),
        ("tp_size", 0),
        ("tp_size", 1025),
        ("tp_size", True),
        ("dcp_size", -1),
        ("pp_size", "1"),
        ("remote_num_tokens", -1),
        ("remote_num_tokens", 1.5),
        ("remote_blocks_expiry_time", "soon"),
        ("remote_blocks_expiry_time", float("inf")),
        ("remote_block_ids", "1,2"),
        ("remote_block_ids", [1, 2]),
        ("remote_block_ids", [["1"]]),
        ("remote_block_ids", [[True]]),
        ("remote_block_ids", [[-1]]),
        ("remote_block_ids", [[2**31]]),
        ("remote_block_ids", [[[1]]]),
        ("remote_block_ids", {"0": [1]}),
        ("do_remote_prefill", "true"),
        ("do_remote_prefill", 1),
        ("do_remote_decode", 0),
        ("remote_registration_generation", -1),
        ("transfer_mode", 3),
        ("kvserving_prompt", "zz"),
        ("kvserving_lease", 0),
        ("kvserving_lease", 30.0),
        ("kvserving_signature", 5),
    ],
)
def test_a_wrong_type_or_bound_is_malformed(key: str, value: Any) -> None:
    assert check_handoff(handoff(**{key: value})) is Refusal.MALFORMED


def test_push_and_prefill_parameters_are_another_roles() -> None:
    assert check_handoff(handoff(transfer_mode="push")) is Refusal.WRONG_ROLE
    assert check_handoff(handoff(do_remote_decode=True)) is Refusal.WRONG_ROLE


def test_prefill_takes_the_routers_form_only() -> None:
    assert check_prefill(PROBE_PARAMS) is None
    assert check_prefill({"do_remote_decode": True}) is None
    for wrong in (
        {},
        {"do_remote_decode": None},
        {**PROBE_PARAMS, "do_remote_prefill": True},
        {**PROBE_PARAMS, "remote_host": "10.0.0.9"},
        {**PROBE_PARAMS, "remote_block_ids": [[1]]},
        handoff(),
    ):
        assert check_prefill(wrong) is Refusal.WRONG_ROLE


def test_prefill_gets_nothing_that_a_client_wrote() -> None:
    assert PREFILL.forwarded({**PROBE_PARAMS, "prompt_token_ids": [1]}) == PROBE_PARAMS


def test_prefill_without_a_key_or_a_revision_keeps_no_blocks_for_anyone() -> None:
    assert Policy(Role.PREFILL, REVISION, Keys()).judge(PROBE_PARAMS, NOW) is Refusal.UNSIGNED
    assert Policy(Role.PREFILL, "", KEYS).judge(PROBE_PARAMS, NOW) is Refusal.UNSIGNED


@pytest.mark.parametrize("params", [signed(), PROBE_PARAMS])
def test_an_aggregated_engine_takes_none(params: Any) -> None:
    assert Policy(Role.AGGREGATED, REVISION, KEYS).judge(params, NOW) is Refusal.WRONG_ROLE


@given(anything)
def test_decode_accepts_no_value_that_was_not_signed(value: object) -> None:
    assert DECODE.judge(value, NOW) is not None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": "a"}, None),
        ({"prompt": ["a"]}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"messages": [{"role": "user", "content": "a"}]}, None),
        ({"input": "a"}, None),
        ({"input": [{"role": "user", "content": "a"}]}, None),
        ({"token_ids": [1, 2], "sampling_params": {"n": 1}}, None),
        ({"prompt": "a", "n": 1, "best_of": 1, "use_beam_search": False}, None),
        ({"prompt": ["a", "b"]}, Refusal.MULTI_PROMPT),
        ({"prompt": [[1], [2]]}, Refusal.MULTI_PROMPT),
        ({"prompt": []}, Refusal.MULTI_PROMPT),
        ({}, Refusal.MULTI_PROMPT),
        ({"prompt": "a", "prompt_embeds": "b"}, Refusal.MULTI_PROMPT),
        ({"prompt_embeds": ["a", "b"]}, Refusal.MULTI_PROMPT),
        ({"messages": [[{"role": "user"}], [{"role": "user"}]]}, Refusal.MULTI_PROMPT),
        ({"prompt": "a", "n": 2}, Refusal.MULTI_CHOICE),
        ({"prompt": "a", "n": "2"}, Refusal.MULTI_CHOICE),
        ({"prompt": "a", "n": 1.5}, Refusal.MULTI_CHOICE),
        ({"prompt": "a", "n": True}, Refusal.MULTI_CHOICE),
        ({"prompt": "a", "best_of": 3}, Refusal.MULTI_CHOICE),
        ({"prompt": "a", "use_beam_search": 1}, Refusal.MULTI_CHOICE),
        ({"token_ids": [1], "sampling_params": {"n": 4}}, Refusal.MULTI_CHOICE),
    ],
)
def test_a_handoff_serves_one_prompt_and_one_choice(body: dict[str, Any], reason: Refusal | None) -> None:
    assert DECODE.judge_request(body, signed(), NOW) is reason
    assert PREFILL.judge_request({**body, "max_tokens": 1}, PROBE_PARAMS, NOW) is reason


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_prefill_leg_has_one_output_token(limit: str) -> None:
    assert PREFILL.judge_request({"prompt": "a", limit: 1}, PROBE_PARAMS, NOW) is None
    assert PREFILL.judge_request({"prompt": "a", limit: 2}, PROBE_PARAMS, NOW) is Refusal.WRONG_ROLE
    assert PREFILL.judge_request({"prompt": "a"}, PROBE_PARAMS, NOW) is Refusal.WRONG_ROLE
    token_in = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
    assert PREFILL.judge_request(token_in, PROBE_PARAMS, NOW) is None


def test_nested_keys_are_removed_at_every_depth_and_the_top_one_kept_on_request() -> None:
    body = {
        "kv_transfer_params": {"kv_transfer_params": 1},
        "a": [{"kv_transfer_params": 2, "b": {"kv_transfer_params": 3}}],
    }
    assert bodies.remove_nested(body, keep_top=True) == 3
    assert body == {"kv_transfer_params": {}, "a": [{"b": {}}]}
    assert bodies.remove_nested([body], keep_top=True) == 1


@given(st.lists(st.booleans(), min_size=18, max_size=18), st.sampled_from(["utf-8", "utf-16", "utf-32", "utf-16-be"]))
def test_no_spelling_of_the_key_escapes_the_scan(escape: list[bool], encoding: str) -> None:
    key = "".join(f"\\u{ord(c):04x}" if e else c for c, e in zip("kv_transfer_params", escape, strict=True))
    raw = f'{{"{key}": 1}}'.encode(encoding)
    assert bodies.may_carry(raw)
    assert bodies.mentions(raw)


def test_text_in_other_alphabets_needs_no_second_look() -> None:
    assert not bodies.may_carry(b'{"prompt": "\\u4f60\\u597d \\u0434\\u0430"}')

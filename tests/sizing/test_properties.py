"""What holds for every demand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.sizing.support import QWEN, body, model, parsed, refusal, sizing

from kvserving_operator.api import load
from kvserving_operator.api.v1alpha1 import KVSettings, Parallelism
from kvserving_operator.kv_size import block_bytes, block_tokens
from kvserving_operator.memory import host_memory
from kvserving_operator.model_facts import lookup
from kvserving_operator.plan.planning import check

URIS = (QWEN, "hf://meta-llama/Llama-3.3-70B-Instruct", "hf://Qwen/Qwen3-30B-A3B", "hf://deepseek-ai/DeepSeek-V2-Lite")
uris = st.sampled_from(URIS)
devices = st.sampled_from(("h100", "h200", "b200", "a100-80g"))
demands = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 30_000),
        "output": st.integers(1, 2_000),
        "rate": st.floats(0.01, 200),
        "reused": st.floats(0, 0.9),
        "l1_horizon": st.none() | st.floats(0, 120),
        "l2_horizon": st.none() | st.floats(0, 120),
    }
)


@settings(max_examples=60)
@given(uris, devices, demands, st.floats(1, 20))
def test_more_requests_never_need_fewer_devices(uri: str, on: str, asked: dict[str, Any], more: float) -> None:
    asked = asked | {"l2_horizon": None}
    few, many = sizing(uri, on, **asked), sizing(uri, on, **asked | {"rate": asked["rate"] * more})
    assert many.devices >= few.devices


@settings(max_examples=40)
@given(uris, devices, demands, st.floats(0.2, 5), st.floats(0.01, 0.2))
def test_a_tighter_target_never_needs_fewer_devices(
    uri: str, on: str, asked: dict[str, Any], ttft: float, itl: float
) -> None:
    asked = asked | {"l2_horizon": None}
    loose = sizing(uri, on, **asked)
    if refused := refusal(uri, on, **asked, ttft=ttft, itl=itl):
        assert "--ttft" in refused
        return
    tight = sizing(uri, on, **asked, ttft=ttft, itl=itl)
    assert tight.devices >= loose.devices
    assert tight.ttft <= ttft * 1.000001
    assert tight.itl <= itl * 1.000001


# Many shards, and little to keep in them: each has a least size.
@example(
    "hf://Qwen/Qwen3-8B",
    "h100",
    {"prompt": 5855, "output": 1, "rate": 48.0, "reused": 0.875, "l1_horizon": None, "l2_horizon": 0.125},
)
@settings(max_examples=60)
@given(uris, devices, demands)
def test_the_object_is_one_that_validate_accepts_and_the_roles_are_not_overfilled(
    uri: str, on: str, asked: dict[str, Any]
) -> None:
    if refused := refusal(uri, on, **asked):
        assert "--l2-horizon" in refused
        return
    found = sizing(uri, on, **asked)
    made = body(uri, found)
    serving = load.load(made, strict=True)
    assert check(serving) == ()
    assert asked["rate"] <= found.prefill.replicas * found.prefill.capacity * 1.000001
    assert asked["rate"] <= found.decode.replicas * found.decode.capacity * 1.000001
    spec = parsed(made).spec
    assert host_memory(spec, "prefill").l1 == (found.tiers.l1 or 0) * 2**30


@given(st.sampled_from(URIS), st.sampled_from((1, 2, 4, 8)), st.sampled_from(("auto", "fp8")))
def test_kv_of_a_rank_is_that_of_kv_size(uri: str, tensor: int, dtype: str) -> None:
    facts, kv = lookup(uri), KVSettings(dtype=dtype)
    assert facts is not None
    block = block_bytes(facts, kv, Parallelism(tensor=tensor), "gpu")
    assert block is not None
    assert model(uri, dtype=dtype).kv_of_rank(tensor) == pytest.approx(block / block_tokens(facts, kv, "gpu"))

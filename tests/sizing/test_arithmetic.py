"""Each line comes to what it says, and lines that build on each other fit together."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sizing.support import body, lines, model, refusal, sizing, value

from kvserving_operator.sizing.demand import Measured
from kvserving_operator.sizing.objects import host_lines
from kvserving_operator.sizing.published import MODELS

ASKED: list[dict[str, Any]] = [
    {},
    {"rate": 40, "reused": 0.5, "l1_horizon": 60.0, "l2_horizon": 600.0},
    {"rate": 7, "ttft": 0.4, "itl": 0.03},
    {"prompt": 200, "output": 1500, "rate": 11, "reused": 0.2, "l2_horizon": 30.0},
]
SERVED = ["hf://Qwen/Qwen3-8B", "hf://meta-llama/Llama-3.3-70B-Instruct", "hf://Qwen/Qwen3-235B-A22B"]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("uri", [*SERVED, "hf://deepseek-ai/DeepSeek-V3", "hf://openai/gpt-oss-20b"])
def test_every_line_is_what_its_arithmetic_comes_to(uri: str, asked: dict[str, Any]) -> None:
    found = sizing(uri, "h200", **asked)
    told = [line for line in (*found.lines, *host_lines(body(uri, found))) if line.arithmetic]
    assert len(told) > 15
    for line in told:
        # Three digits are printed of the parts; where whole numbers come out, the next one may be it.
        whole = 2.0**30 if "GiB" in line.arithmetic else 1.0 if "ceil" in line.arithmetic else 0.0
        assert value(line.arithmetic) == pytest.approx(line.value, rel=0.02, abs=whole), line


def test_an_arithmetic_that_is_wrong_would_be_found() -> None:
    assert value("2 x 8.2 billion x 4,000 + 36 x 8,192 x 4,000^2") == pytest.approx(70.3e12, rel=0.01)
    assert value("floor(min(374,348 / (4,000 + 300 / 2), 1024))") == 90
    assert value("8Gi engine + 83Gi L1 + 8.3Gi 10% of L1") == pytest.approx(99.3 * 2**30)
    assert value("(16.4 GB + 90 x 611.9 MB) / (3.35 TB/s x 0.6)") == pytest.approx(0.0356, rel=0.01)


def test_time_to_the_first_token_is_the_sum_of_its_parts() -> None:
    told = lines(sizing(reused=0.5, l1_horizon=60.0))
    parts = ("time in the queue, mean", "prefill: time of a prompt", "time of a read from a tier", "time of a transfer")
    total = sum(told[part].value for part in (*parts, "time between tokens, mean"))
    assert told["time to first token, mean"].value == pytest.approx(total)


def test_ranks_exchange_half_the_link_each_way_twice_a_layer() -> None:
    told = lines(sizing("hf://meta-llama/Llama-3.3-70B-Instruct", rate=1))
    assert told["prefill: exchange between ranks"].value == pytest.approx(
        80 * 2 * (4000 * 8192 * 2 * 2 * 3 / 4 / 450e9 + 20e-6)
    )
    assert "prefill: exchange between ranks" not in lines(sizing())


def test_devices_are_those_of_both_roles() -> None:
    found = sizing("hf://meta-llama/Llama-3.3-70B-Instruct", rate=9)
    assert lines(found)["devices"].value == found.devices == found.prefill.devices + found.decode.devices


def test_measured_figures_take_the_place_of_ours() -> None:
    found = sizing(taken=Measured(tensor=2, prefill=8000, decode=900, kv_tokens=50_000, transfer=1e9))
    told = lines(found)
    assert (found.prefill.tensor, found.decode.tensor) == (2, 2)
    assert told["prefill: time of a prompt"].value == pytest.approx(0.5)
    assert told["decode: tokens of a replica"].value == pytest.approx(900)
    assert told["decode: tokens that fit"].value == 50_000
    assert told["time of a transfer"].value == pytest.approx(4000 * 147_456 / 1e9)
    assert not [entry.name for entry in found.inputs if entry.name in ("prefill: share of peak", "decode: share")]


def test_a_figure_of_ours_fed_back_as_measured_is_within_the_same_target() -> None:
    asked: dict[str, Any] = {"rate": 8, "reused": 0.5, "itl": 0.03}
    ours = lines(sizing(**asked))
    rate = ours["decode: tokens of a replica"].value
    found = sizing(**asked, taken=Measured(tensor=1, decode=rate))
    told = lines(found)
    within = told["decode: requests at once within --itl"]
    assert within.value == ours["decode: requests at once within --itl"].value < ours["decode: requests at once"].value
    assert value(within.arithmetic) == within.value
    assert told["decode: tokens of a replica"].value == pytest.approx(rate)
    assert found.decode.busy <= 0.03
    assert found.decode.batch == within.value
    for line in found.decode.lines:
        if line.arithmetic:
            assert value(line.arithmetic) == pytest.approx(line.value, rel=0.02), line


def test_a_measured_speed_that_no_batch_brings_within_the_target_is_refused() -> None:
    said = refusal("hf://Qwen/Qwen3-8B", "h100", itl=0.001, taken=Measured(tensor=1, decode=900))
    assert "a token takes 1.11 ms by --decode-tokens-per-second, and --itl is 1 ms" in said


def test_a_target_is_met_or_refused() -> None:
    uri = "hf://meta-llama/Llama-3.3-70B-Instruct"
    free, bound = sizing(uri, rate=8), sizing(uri, rate=8, ttft=0.45, itl=0.03)
    assert free.ttft > 0.45 >= bound.ttft
    assert bound.itl <= 0.03
    assert bound.prefill.tensor > free.prefill.tensor
    assert "the first token takes" in refusal(uri, "h100", ttft=0.1)
    assert "a step for one request takes" in refusal(uri, "h100", itl=0.001)


@pytest.mark.parametrize("uri", [name for name in MODELS if not name.startswith(("qwen/qwen3-next", "tiiuae/"))])
def test_every_published_model_whose_states_are_known_is_plausible(uri: str) -> None:
    known = model(f"hf://{uri}")
    assert known.parameters >= known.active > 0
    # Attention alone, by heads and hidden size, is a part of what a token uses.
    facts = known.facts
    kv = 0 if facts.latent else 2 * (facts.kv_heads or 0) * (facts.head_dim or 0)
    attention = (facts.layers or 0) * known.hidden * (known.width // 2 + kv)
    assert 0.01 < attention / known.active < 0.9

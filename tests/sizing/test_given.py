"""Devices, measured tables and demands: what is taken, and what is refused with the way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.sizing.support import QWEN, refusal, sizing

from kvserving_operator.api.base import MOST_REPLICAS
from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.v1alpha1 import KVSettings, Role
from kvserving_operator.model_facts import lookup
from kvserving_operator.sizing import measured
from kvserving_operator.sizing.demand import Demand, Measured
from kvserving_operator.sizing.devices import DEVICES, device
from kvserving_operator.sizing.models import Given, resolve
from kvserving_operator.sizing.size import Sizing, size

ROOT = Path(__file__).parents[2]


def _number(text: str) -> float:
    return float(text.replace(",", "").split()[0])


def test_prefill_times_are_those_of_the_file() -> None:
    table = (ROOT / measured.PREFILL_FILE).read_text().partition("\n| tokens |")[2].partition("\n\n")[0]
    slowest: dict[int, float] = {}
    for row in re.findall(r"^\| ([\d,]+) \| \w+ \| ([\d.]+) ms", table, re.MULTILINE):
        tokens, taken = int(_number(row[0])), _number(row[1]) / 1000
        slowest[tokens] = max(taken, slowest.get(tokens, 0.0))
    assert slowest == pytest.approx(dict(measured.PREFILL_SECONDS))
    assert set(slowest) == {512, 2_000, 8_000, 32_000}


def test_rates_are_those_of_the_files() -> None:
    tiers = (ROOT / measured.PREFILL_FILE).read_text()
    [slow, *_] = re.findall(r"which is (\d+)\S\d+ and \d+\S\d+ GB/s", tiers)
    assert float(slow) * 1e9 == measured.L1_BYTES_PER_SECOND
    assert "147,456 bytes of KV per token" in tiers
    assert f"8,000 tokens take {measured.TRANSFER_SECONDS * 1000:.1f} ms" in " ".join(
        (ROOT / measured.TRANSFER_FILE).read_text().split()
    )
    store = re.findall(r"^\| Valkey \| .*? \| ([\d,]+) \|", (ROOT / measured.STORE_FILE).read_text(), re.MULTILINE)
    assert min(map(_number, store)) * 2**20 == measured.STORE_BYTES_PER_SECOND


def test_a_share_lies_between_its_neighbours_and_stays_beyond_them() -> None:
    points = ((1e12, 0.2), (1e14, 0.6))
    shares = [measured.share_of_peak(work, points) for work in (1e9, 1e12, 1e13, 1e14, 1e18)]
    assert [share.value for share in shares] == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])
    assert [share.within for share in shares] == [False, True, True, True, False]


def test_what_was_measured_on_this_device_with_this_model_comes_out_again_and_is_marked() -> None:
    for prompt, taken in measured.PREFILL_SECONDS:
        found = sizing("hf://Qwen/Qwen3-4B", "h200", prompt=prompt, rate=0.1, output=10)
        assert found.prefill.busy == pytest.approx(taken)
        assert [entry.basis for entry in found.inputs if entry.name == "prefill: share of peak"] == ["measured"]
    for uri, on in (("hf://Qwen/Qwen3-4B", "h100"), (QWEN, "h200")):
        found = sizing(uri, on)
        assert [entry.basis for entry in found.inputs if entry.name == "prefill: share of peak"] == ["assumed"]


def _bases(found: Sizing) -> dict[str, str]:
    return {entry.name: entry.basis for entry in found.inputs}


def _asked(uri: str, on: str, *, kv: str = "auto", given: Given | None = None, tensor: int = 1, **asked: Any) -> Sizing:
    facts = lookup(uri)
    assert facts is not None
    demand = Demand(**{"prompt": 4000, "output": 300, "rate": 2.5, "l1_horizon": 60.0, **asked})
    found = resolve(uri, facts, KVSettings(dtype=kv), given=given or Given())
    return size(found, device(on), demand, taken=Measured(tensor=tensor))


def test_what_was_measured_otherwise_is_not_marked_so() -> None:
    four = "hf://Qwen/Qwen3-4B"
    assert _bases(_asked(four, "h200"))["prefill: share of peak"] == "measured"
    assert _bases(_asked(four, "h100"))["transfer: rate"] == "measured"
    assert _bases(_asked(four, "h200", reused=0.5))["L1: rate"] == "measured"
    assert _bases(_asked(four, "h200", reused=0.5))["prefill: share of peak"] == "assumed"
    others: list[dict[str, Any]] = [{"kv": "fp8"}, {"tensor": 2}, {"given": Given(parameters=5e9)}]
    for other in others:
        assert _bases(_asked(four, "h200", **other))["prefill: share of peak"] == "assumed", other
        assert _bases(_asked(four, "h100", **other))["transfer: rate"] == "assumed", other
        assert _bases(_asked(four, "h200", **other, reused=0.5))["L1: rate"] == "assumed", other
    found = _asked("hf://meta-llama/Llama-3.3-70B-Instruct", "h100", tensor=8, reused=0.5, l2_horizon=60.0)
    assert "measured" not in _bases(found).values()


def test_a_role_has_as_many_replicas_as_an_object_may_say() -> None:
    assert Role(replicas=MOST_REPLICAS).replicas == MOST_REPLICAS
    with pytest.raises(ValidationError):
        Role(replicas=MOST_REPLICAS + 1)


def test_every_device_names_its_data_sheet() -> None:
    assert all(known.source.startswith("NVIDIA ") and "datasheet" in known.source for known in DEVICES.values())
    assert device("H100") is DEVICES["h100"]


def test_a_device_can_be_described() -> None:
    own = device("memory=80,bandwidth=3.35,bf16=989.5,fp8=1979,link=900")
    assert own.given
    assert sizing(on="memory=80,bandwidth=3.35,bf16=989.5,fp8=1979,link=900").devices == sizing(on="h100").devices
    told = {entry.name: entry.basis for entry in sizing(on="memory=80,bandwidth=3,bf16=900").inputs}
    assert [told[f"device: {name}"] for name in ("memory", "bandwidth", "peak, dense")] == ["given"] * 3
    assert told["device: link, both ways"] == "assumed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpu", "there are: a100-40g, a100-80g, b200, h100, h200, l4, l40s"),
        ("memory=80,bandwidth=3.35", "lacks bf16"),
        ("memory=80GB,bandwidth=3,bf16=900", "memory '80GB' is no positive number: write it in GB, without the unit"),
        ("memory=80,bandwidth=-1,bf16=900", "bandwidth '-1' is no positive number: write it in TB/s"),
        ("memory=nan,bandwidth=1,bf16=900", "memory 'nan'"),
        ("memory=1_0,bandwidth=1,bf16=900", "memory '1_0' is no positive number"),
        ("memory=80,bandwidth=\u0663,bf16=900", "bandwidth '\u0663' is no positive number"),
        (
            "memory=80,bandwidth=3,bf16=900,fp8=1e-320",
            "fp8 '1e-320' is no device's: it is from 0.001 to 1,000,000 T",
        ),
        ("memory=80,memory=90,bandwidth=1,bf16=900", "memory is given twice"),
        ("memory=80,speed=9", "'speed' is no property of a device: use memory, bandwidth, bf16, fp8, link"),
    ],
)
def test_a_device_that_is_not_known_or_wrong_is_told(text: str, said: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        device(text)
    assert str(refused.value).startswith("--device: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rate": 0}, "--rate: 0 requests a second need no engines: give the rate at your peak"),
        ({"rate": float("nan")}, "--rate: nan"),
        ({"rate": -1}, "--rate: -1"),
        ({"prompt": 0}, "--prompt-tokens: 0 is no number of tokens"),
        ({"output": 0}, "--output-tokens: 0 is no number of tokens"),
        ({"prompt": 40_900}, "--prompt-tokens: 40,900 + 300 output tokens are 41,200, and hf://Qwen/Qwen3-8B has"),
        ({"reused": 1.0}, "--reused: 1 is no share"),
        ({"utilisation": 1.0}, "--utilisation: 1 is not between 0 and 1"),
        ({"ttft": 0.0}, "--ttft: 0 s is no time"),
        ({"l1_horizon": -1.0}, "--l1-horizon: -1 s is no time"),
        ({"devices_per_node": 0}, "--devices-per-node: 0"),
        ({"rate": 1e7}, "--rate: 1e+07 requests a second need 605,0"),
        (
            {"rate": 1e308},
            "--rate: 1e+308 requests a second need 1,000,000,000,000 or more replicas of ",
        ),
        ({"utilisation": 1e-320}, "--utilisation: 9.99989e-321 is not between 0 and 1 (0.001 at least)"),
        ({"l1_horizon": 1e300}, "--l1-horizon: 1e+300 s is no time: give how long KV is to be kept, a year at most"),
        ({"taken": Measured(tensor=1, kv_tokens=10**400)}, "--kv-tokens: so large a number was not measured"),
        ({"taken": Measured(tensor=1, prefill=1e-320)}, "was not measured: give a positive number, from 0.001 to 1e"),
        ({"taken": Measured(prefill=100)}, "--prefill-tokens-per-second: holds for the tensor parallel size"),
        ({"taken": Measured(tensor=2, decode=-5)}, "--decode-tokens-per-second: -5 was not measured"),
        ({"taken": Measured(tensor=3)}, "--tensor: 3 does not divide the 32 heads"),
        ({"taken": Measured(tensor=16)}, "--tensor: 16 ranks need more than one node of 8 devices"),
        (
            {"taken": Measured(tensor=1, kv_tokens=41_000), "prompt": 30_000},
            "41,000 tokens of KV fit, and two prompts are 60,000",
        ),
        ({"rate": 90_000, "reused": 0.9, "l2_horizon": 10.0}, "--l2-horizon: 10 s: "),
    ],
)
def test_what_cannot_be_asked_for_is_told_with_the_way_out(asked: dict[str, Any], said: str) -> None:
    assert said in refusal(QWEN, "h100", **asked)


def test_every_fault_is_told_at_once() -> None:
    assert len(refusal(QWEN, "h100", rate=0, prompt=0, reused=2.0).splitlines()) == 3


def test_a_model_that_fits_no_tensor_size_is_told_with_the_sum() -> None:
    said = refusal("hf://meta-llama/Llama-3.1-405B", "h100")
    assert "h100 serves hf://meta-llama/Llama-3.1-405B with no tensor size up to 8" in said
    assert "0.92 x 80 GB - 812 GB / 8 - 2 GB is -29.9 GB" in said


def test_engines_hold_the_longest_context_that_they_accept_as_vllm_asks() -> None:
    # 64 layers, 262,144 bytes a token: 40,960 tokens do not fit beside the weights of one device.
    assert sizing("hf://Qwen/Qwen3-32B", "h100", prompt=400, output=30).prefill.tensor == 2
    said = refusal("hf://Qwen/Qwen3-32B", "h100", prompt=400, output=30, devices_per_node=1)
    assert "vLLM starts only where its longest context does, which is 40,960 (--max-model-len makes it shorter)" in said


def test_ranks_that_hold_copies_of_heads_give_to_no_fewer() -> None:
    # Four KV heads: decode would be cheapest with one rank, and could not fetch from prefill's eight.
    found = sizing("hf://Qwen/Qwen3-30B-A3B", "h100", ttft=0.1, rate=1)
    assert (found.prefill.tensor, found.decode.tensor) == (8, 8)

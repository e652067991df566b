"""Whatever a configuration, an option or an argument holds: a sizing, or messages that name the input."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.sizing.test_models import LLAMA_70B, QWEN3_8B, QWEN3_30B, QWEN3_NEXT, SLIDING

from kvserving_operator import cli
from kvserving_operator.api import load

DEEPSEEK: dict[str, Any] = QWEN3_8B | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8"},
}
FALCON: dict[str, Any] = QWEN3_8B | {
    "mamba_n_heads": 24,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
}
CONFIGS = (QWEN3_8B, LLAMA_70B, QWEN3_30B, QWEN3_NEXT, SLIDING, DEEPSEEK, FALCON)
KEYS = sorted(
    {key for config in CONFIGS for key in config}
    | {"torch_dtype", "text_config", "rope_scaling", "rope_parameters", "model_max_length", "sliding_window_pattern"}
    | {"num_local_experts", "layers_block_type", "mamba_d_ssm", "tie_word_embeddings", "use_sliding_window"}
)
numbers = st.integers(-3, 300) | st.sampled_from((10**6, 10**8, 10**9, 10**18, 10**400, -(10**30)))
simple = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=6)
values = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from((*KEYS, "factor", "rope_type", "quant_method")), inner, max_size=3)
    ),
    max_leaves=5,
)
written = st.sampled_from(
    (
        *(
            "0",
            "1",
            "-1",
            "7",
            "4000",
            "4,000",
            "1e6",
            "1e308",
            "1e400",
            "1e-320",
            "nan",
            "inf",
            "-inf",
            "0.5",
            "0.999",
        ),
        *("1_0", "9" * 400, "0." + "0" * 330 + "1", "\u0661", "30ms", "1ms", "10m", "9" * 400 + "h", "32k", "32K"),
        *("auto", "16GB", "999TB", "8.2B", "0GB", "", " ", "\x00", "x" * 5000, "fp8", "bfloat16", "~nosuchuser/x"),
        *("h100", "h200", "l4", "memory=80,bandwidth=3,bf16=900", "memory=1e-3,bandwidth=1e-3,bf16=1e-3"),
        "memory=999999,bandwidth=9,bf16=9",
    )
)
facts = st.tuples(
    st.sampled_from(("kind", "layers", "kvHeads", "headDim", "maxLength", "parameters", "activeParameters", "weights"))
    | st.sampled_from(("hidden", "heads", "kvBytesPerToken", "stateBytes", "other")),
    written | st.sampled_from(("attention", "recurrent")),
).map("=".join)
OPTIONS = (
    *("--device", "--prompt-tokens", "--output-tokens", "--rate", "--ttft", "--itl", "--reused", "--l1-horizon"),
    *("--l2-horizon", "--utilisation", "--devices-per-node", "--kv-dtype", "--max-model-len", "--tensor", "--name"),
    *("--prefill-tokens-per-second", "--decode-tokens-per-second", "--kv-tokens", "--transfer-bytes-per-second"),
)
options = st.tuples(st.sampled_from(OPTIONS), written) | st.tuples(st.just("--fact"), facts)
arguments = st.tuples(
    st.sampled_from(("--max-model-len", "--max-num-seqs", "--gpu-memory-utilization", "--quantization")), written
).map("=".join)
_NAMED = r"(--[a-z0-9-]+|MODEL|metadata\.|spec\.|HF_|/.*config\.json|.*object\.yaml: )"
slow = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def _no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def planned(*words: str) -> None:
    """Run ``plan``; where it refuses, every error names what it refuses."""
    out, err = io.StringIO(), io.StringIO()
    asked = ("--device", "h100", "--prompt-tokens", "4000", "--output-tokens", "300", "--rate", "8", "-o", "yaml")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.run(["plan", *asked, *words])
        except SystemExit as ended:
            status = int(ended.code or 0)
    said = err.getvalue()
    if status == 0:
        load.load(yaml.safe_load(out.getvalue()), strict=True)
        return
    assert status in (1, 2), said
    assert not out.getvalue()
    errors = [line for line in said.splitlines() if line.lower().startswith("error: ")]
    assert errors, said
    for line in errors:
        pattern = r"Error: Invalid value for '--" if status == 2 else rf"error: {_NAMED}"
        assert re.match(pattern, line), line
        assert "--debug" not in line


# One byte of weights, of which experts that are not used have more.
@example(config=DEEPSEEK, changed={"dtype": None}, weights=False)
@slow
@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3), st.booleans())
def test_a_configuration_is_sized_or_refused_by_name(
    tmp_path: Path, config: dict[str, Any], changed: dict[str, Any], weights: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(16_000_000_000 if weights else 1)
    planned(str(tmp_path), "--reused", "0.5")


@slow
@given(st.lists(options, min_size=1, max_size=3))
def test_options_are_taken_or_refused_by_name(given_options: list[tuple[str, str]]) -> None:
    planned("Qwen/Qwen3-8B", *(f"{option}={value}" for option, value in given_options))


@slow
@given(st.lists(arguments, max_size=2), st.lists(arguments, max_size=2), st.lists(options, max_size=1))
def test_arguments_of_engines_are_taken_or_refused_by_name(
    tmp_path: Path, both: list[str], own: list[str], given_options: list[tuple[str, str]]
) -> None:
    spec = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "engine": {"args": both}, "prefill": {}, "decode": {"args": own}}
    head = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "x"}}
    file = tmp_path / "object.yaml"
    file.write_text(yaml.safe_dump(head | {"spec": spec}))
    planned(str(file), *(f"{option}={value}" for option, value in given_options))

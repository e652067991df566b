"""What the operator calls unknown is what vLLM's parser refuses, in each form that a flag may have."""

from __future__ import annotations

import pytest

vllm = pytest.importorskip("vllm")

from tests.connector.flag_table import parser  # noqa: E402 - after the skip

from kvserving_operator.engines import arguments, flags  # noqa: E402

VERSION = flags.minor(".".join(vllm.__version__.split(".")[:2]))


def taken(words: list[str]) -> bool:
    """Whether vLLM's parser takes a command line."""
    try:
        parser().parse_args(words)
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize(
    "words",
    [
        ["--max-modl-len=12"],
        ["--Max-model-len=12"],
        ["--max_model_len=12"],
        ["--max-model", "12"],
        ["--max-model-length", "12"],
        ["--no-enable-chunked-prefill"],
        ["--no-max-model-len"],
        ["--compilation_config.mode", "3"],
        ["--compilation-conf.mode=3"],
        ["--compilation-confg.mode=3"],
        ["-O2"],
        ["-cc.mode=3"],
        ["--disable-log-requestz"],
        ["--speculative_model=x"],
    ],
)
def test_a_flag_is_unknown_where_vllm_refuses_it(words: list[str]) -> None:
    (written,) = arguments.parse(words)
    assert bool(flags.begun(flags.table()[VERSION], written.name)) == taken(words)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["--enforce-eager"], True),
        (["--enforce-eager=true"], False),
        (["--seed"], False),
        (["--seed", "3"], True),
        (["--dtype=float33"], False),
        (["--dtype", "half"], True),
    ],
)
def test_a_value_is_told_where_vllm_refuses_it(words: list[str], known: bool) -> None:
    (written,) = arguments.parse(words)
    flag = flags.table()[VERSION][written.name]
    told = bool(written.values) == (flag.takes == "value") and (not flag.choices or written.value in flag.choices)
    assert told == taken(words) == known

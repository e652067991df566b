"""Words in ``args`` that vLLM would not take for what the user meant."""

from __future__ import annotations

import pytest
from tests.plan.support import faults, pair, render

from kvserving_operator.engines import arguments

REFUSED = [
    (["256"], 0, "a value without a flag before it"),
    (["--max-num-seqs=8", "sk-sesame"], 1, "write --flag=value"),
    (["--enable-log-requests", "--max-num-seqs=8", "sesame"], 2, "a value without a flag before it"),
    (["--enforce-eager", "max-num-seqs=8"], 1, "with two dashes"),
    (["--enable_log_requests", "sesame"], 1, "a value without a flag before it"),
    (["--no-async-scheduling", "sesame"], 1, "a value without a flag before it"),
    (["--max-num-seqs 256"], 0, "--max-num-seqs and its value in one argument"),
    (["-max-num-seqs", "256"], 0, "-max-num-seqs is no flag of vLLM"),
    (["-x=sesame"], 0, "-x is no flag of vLLM"),
    (["--", "--max-num-seqs=8"], 0, "-- ends the flags"),
    (["--max-num-seqs", " "], 1, "is blank"),
]


@pytest.mark.parametrize("section", ["engine", "decode"])
@pytest.mark.parametrize(("args", "index", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_a_word_that_is_neither_flag_nor_value_is_refused_once(
    section: str, args: list[str], index: int, words: str
) -> None:
    (line,) = faults(pair(**{section: {"args": args}})).splitlines()
    assert line.startswith(f"spec.{section}.args[{index}]: ")
    assert words in line
    assert "sesame" not in line


@pytest.mark.parametrize(
    "args",
    [
        ["--such-flag-yet", "a", "b"],
        ["--enforce-eager", "--max-num-seqs", "8", "--disable-access-log-for-endpoints", "/health"],
        ["--seed", "-1"],
        ["--stop-token", "-"],
        ["-O3", "-cc.mode=3", "-O.mode=3"],
        ["-cc", '{"mode": 3}', "-O", "2"],
        ['--override-generation-config={"a": 1}'],
        ["--allowed-origins", '["a b"]', "--swap-space=4"],
    ],
)
def test_flags_and_their_values_are_accepted(args: list[str]) -> None:
    assert faults(pair(engine={"args": args})) == ""


def test_a_flag_that_is_refused_anyway_is_told_once() -> None:
    assert len(faults(pair(decode={"args": ["--model hf"]})).splitlines()) == 1


def test_a_value_joined_to_a_one_letter_flag_is_found() -> None:
    (flag,) = arguments.parse(["-qfp8"])
    assert (flag.name, flag.values) == ("--quantization", ("fp8",))
    assert render(pair(engine={"args": ["-qfp8"]})).plan.revision != render(pair()).plan.revision

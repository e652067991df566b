"""Words on command lines of the GPU lane."""

from __future__ import annotations

import argparse

import pytest
from e2e.gpu.records import versions
from e2e.gpu.words import count, parted, seconds, vllm_settings


def test_words_are_parted_at_the_first_dashes_alone() -> None:
    assert parted(["a", "--b", "--", "c=1", "--", "d"]) == (["a", "--b"], ["c=1", "--", "d"])
    assert parted(["a"]) == (["a"], [])


def test_settings_are_json_by_their_names() -> None:
    given = ["enforce_eager=true", "max_num_seqs=4", 'compilation_config={"mode": 0}', 'dtype="a=b"']
    assert vllm_settings(given) == {
        "enforce_eager": True,
        "max_num_seqs": 4,
        "compilation_config": {"mode": 0},
        "dtype": "a=b",
    }


@pytest.mark.parametrize("word", ["dtype=float16", "enforce_eager"])
def test_a_word_that_is_no_setting_is_named(word: str) -> None:
    with pytest.raises(ValueError, match=f"'{word}' is not NAME=JSON"):
        vllm_settings([word])


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_time_that_is_none_is_told(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time in seconds above 0"):
        seconds(word)


@pytest.mark.parametrize("word", ["0", "-3", "1.5", "two", "", "\u0663"])
def test_a_count_that_is_none_is_told(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no whole number from 1 on"):
        count(word)


def test_times_and_counts_are_read() -> None:
    assert (seconds("0.5"), count("12")) == (0.5, 12)


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false", "/nowhere/python"])
def test_a_program_that_is_no_python_has_no_versions(program: str) -> None:
    with pytest.raises(ValueError, match="it does not run as Python"):
        versions(program)

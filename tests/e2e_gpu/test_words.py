"""What follows ``--`` on a command line of the GPU lane."""

from __future__ import annotations

import pytest
from e2e.gpu.words import parted, vllm_settings


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

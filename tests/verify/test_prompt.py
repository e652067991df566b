import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.verify import prompt


def test_the_same_seed_gives_the_same_text() -> None:
    assert prompt.fresh_prompt("a", 50) == prompt.fresh_prompt("a", 50)


@given(st.lists(st.text(max_size=32), min_size=2, max_size=20, unique=True))
def test_other_seeds_share_no_first_block(seeds: list[str]) -> None:
    """16 tokens are the smallest block, and at most 16 words."""
    beginnings = {" ".join(prompt.fresh_prompt(seed, 16).split()[:16]) for seed in seeds}
    assert len(beginnings) == len(seeds)


def test_words_are_plain_and_many() -> None:
    assert len(set(prompt.words())) == len(prompt.words()) > 400
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) <= 7 for word in prompt.words())


@pytest.mark.parametrize(("longest", "words"), [(None, 254), (100_000, 700), (4096, 510), (128, 14), (1, 1)])
def test_a_prompt_fits_the_model_even_if_each_letter_is_a_token(longest: int | None, words: int) -> None:
    assert prompt.word_count(longest) == words
    if longest is not None and longest > 20:
        assert len(prompt.fresh_prompt("seed", words)) <= longest - 16

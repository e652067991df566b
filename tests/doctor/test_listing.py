"""The first of many names."""

from __future__ import annotations

import pytest

from kvserving_operator.listing import some


@pytest.mark.parametrize(
    ("names", "text"), [("", ""), ("a", "a"), ("abcd", "a, b, c, d"), ("abcde", "a, b, c, d and 1 more")]
)
def test_the_first_names_are_told_and_how_many_more_there_are(names: str, text: str) -> None:
    assert some(list(names)) == text
    assert some(list(names), most=5) == ", ".join(names)

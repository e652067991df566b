"""Each member of an enumeration has its sentence on a page; one that lacks it is told by name."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from kvserving_operator.reference import process
from kvserving_operator.reference.__main__ import main
from kvserving_operator.reference.markdown import Undescribed, members


class Whole(Enum):
    """All is said."""

    ONE = "1"
    """The first."""
    TWO = "2"
    """The second."""


class First(Enum):
    ONE = "1"
    TWO = "2"
    """The second."""


class Last(Enum):
    ONE = "1"
    """The first."""
    TWO = "2"


class Blank(Enum):
    ONE = "1"
    """ """


def test_a_member_is_told_with_the_sentence_below_it() -> None:
    assert members(Whole) == [(Whole.ONE, "The first."), (Whole.TWO, "The second.")]


@pytest.mark.parametrize(("kind", "name"), [(First, "First.ONE"), (Last, "Last.TWO"), (Blank, "Blank.ONE")])
def test_a_member_without_a_sentence_is_told_with_the_way_out(kind: type[Enum], name: str) -> None:
    with pytest.raises(Undescribed, match=rf"^{name} has no sentence below it: write what it means .* {__name__}$"):
        members(kind)


def test_the_check_of_the_pages_ends_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "Reason", First)
    assert main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("First.ONE has no sentence below it")

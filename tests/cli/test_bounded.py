"""Options that take numbers: what is none is refused in words that say what to write."""

from __future__ import annotations

from typing import Any

import click
import pytest
from tests.cli.test_options import PROGRAMS

from kvserving_operator.cli import run
from kvserving_operator.cli.bounded import Count, Number

Range = click.ParamType[Any]


def ranges(command: click.Command) -> list[Range]:
    found: list[Range] = [
        param.type for param in command.params if isinstance(param.type, (click.IntRange, click.FloatRange))
    ]
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            found += ranges(below)
    return found


@pytest.mark.parametrize("value", ["x", "", "nan", "inf", "1e999", "5s", "٣"])
def test_what_is_no_number_is_refused_by_every_option_that_takes_one(value: str) -> None:
    kinds = [kind for program, _ in PROGRAMS for kind in ranges(program)]
    assert len(kinds) > 10
    for kind in kinds:
        with pytest.raises(click.BadParameter, match=r"is no (whole )?number: write one (of at least|from) "):
            kind.convert(value, None, None)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Count(1, 64), "2.5", "'2.5' is no whole number: write one from 1 to 64"),
        (Count(1, 64), "65", "65 is not in the range 1<=x<=64."),
        (Number(0.1), "0", "0.0 is not in the range x>=0.1."),
    ],
)
def test_what_is_out_of_bounds_is_told_with_them(kind: Range, value: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(value, None, None)
    assert caught.value.message == words


def test_numbers_within_bounds_are_taken_as_written() -> None:
    assert Number(1).convert(" 2.5 ", None, None) == 2.5
    assert Count(1).convert("+3", None, None) == 3


def test_the_option_is_named_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", "qwen", "--tail=ten"]) == 2
    assert "Invalid value for '--tail': 'ten' is no whole number: write one of at least 0" in capsys.readouterr().err

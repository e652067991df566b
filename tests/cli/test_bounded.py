"""Options that take numbers or times: what is none is refused in words that say what to write."""

from __future__ import annotations

from typing import Any

import click
import pytest
from tests.cli.test_options import PROGRAMS

from kvserving_operator.cli import run
from kvserving_operator.cli.bounded import Count, Number, Time

Range = click.ParamType[Any]


def options(command: click.Command) -> list[click.Option]:
    """The options of the command and of those below it."""
    found = [param for param in command.params if isinstance(param, click.Option)]
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            found += options(below)
    return found


ALL = [option for program, _ in PROGRAMS for option in options(program)]
TIMES = {option.opts[0]: option.type for option in ALL if isinstance(option.type, Time)}
WITH_UNIT = ("--ttft", "--itl")


@pytest.mark.parametrize("value", ["x", "", "nan", "inf", "1e999", "5s", "٣"])
def test_what_is_no_number_is_refused_by_every_option_that_takes_one(value: str) -> None:
    kinds: list[Range] = [option.type for option in ALL if isinstance(option.type, (click.IntRange, click.FloatRange))]
    assert len(kinds) > 3
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


def test_every_option_that_is_a_time_is_read_as_one() -> None:
    words = ("timeout", "duration", "deadline", "period", "horizon", "resync", "ttft", "itl")
    named = {option.opts[0] for option in ALL if any(word in option.opts[0] for word in words)}
    told = {option.opts[0] for option in ALL if (option.help or "").startswith(("Seconds", "Time ", "Mean time"))}
    assert set(TIMES) == named | told
    assert "--counters" in TIMES


@pytest.mark.parametrize("option", sorted(TIMES))
@pytest.mark.parametrize(
    ("written", "seconds"),
    [("600", 600), ("600s", 600), ("10m", 600), ("1h30m", 5400), ("1h", 3600), ("2m5s", 125), (" 60s ", 60)],
)
def test_every_time_is_taken_in_the_same_forms(option: str, written: str, seconds: float) -> None:
    if option in WITH_UNIT and written.isdigit():
        with pytest.raises(click.BadParameter, match="write a number with its unit, such as 30ms"):
            TIMES[option].convert(written, None, None)
    else:
        assert TIMES[option].convert(written, None, None) == seconds


@pytest.mark.parametrize("option", sorted(set(TIMES) - set(WITH_UNIT)))
@pytest.mark.parametrize("written", ["x", "", "-5", "10 m", "1m1h", "5d", "1e9", "nan", "٣s", "s"])
def test_what_is_no_time_is_refused_with_the_forms(option: str, written: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time: write 600 or 600s, 10m, 1h30m"):
        TIMES[option].convert(written, None, None)


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (Time(1), "0.5", "'0.5' is too short: 1s at least"),
        (Time(1), "0", "'0' is too short: 1s at least"),
        (Time(), "10000h", "'10000h' is too long: 9999h at most"),
        (Time(1, whole=True), "1500ms", "'1500ms' has a part of a second: write whole ones, such as 15s"),
    ],
)
def test_a_time_out_of_bounds_is_told_with_them(kind: Time, written: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(written, None, None)
    assert caught.value.message == words


def test_parts_of_a_second_and_milliseconds_are_times() -> None:
    assert [Time().convert(text, None, None) for text in ("0.5", "30ms", "1.5m", "0")] == [0.5, 0.03, 90.0, 0.0]


def test_the_limit_of_a_start_is_told_with_its_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "nowhere.yaml", "--timeout", "ten"]) == 2
    said = capsys.readouterr().err
    assert "Invalid value for '--timeout': 'ten' is no time: write 600 or 600s, 10m, 1h30m" in said

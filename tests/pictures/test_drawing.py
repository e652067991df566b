"""What is drawn of answers: every kind of panel that the dashboards have, legends, states, gaps, units."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from e2e.pictures import charts, page
from e2e.pictures.answers import Answered, Line, answers
from e2e.pictures.dashboards import COLORS, Panel, Place, State, read
from e2e.pictures.units import UNITS, marks
from tests.pictures.support import CHOSEN, FILES, SPAN, Fixed, steady

PLACE = Place(0, 0, 8, 8)


def drawn(answered: Answered) -> ElementTree.Element:
    return ElementTree.fromstring(charts.draw(answered, 390, 150, SPAN))


def texts(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_panel_of_the_charts_dashboards_has_its_title_its_chart_and_its_legend(file: Path) -> None:
    board = read(file, CHOSEN, "8s")
    answered = answers(board, Fixed((steady(1, pod="the-pod"),)), SPAN, {})
    html = page.render(board, answered, SPAN, "a note")
    for one in answered:
        assert html.count(f">{one.panel.title.replace('&', '&amp;')}<") >= 1
    kinds = [one.kind for one in board.panels]
    assert html.count("<svg") == len(kinds) - kinds.count("row")
    assert html.count('class="legend"') == kinds.count("timeseries")
    assert "a note" in html
    width, height = page.size(board)
    boxes = re.findall(r'style="left:(\d+)px;top:(\d+)px;width:(\d+)px;height:(\d+)px"', html)
    assert len(boxes) == len(kinds)
    assert max(int(left) + int(wide) for left, _, wide, _ in boxes) <= width
    assert max(int(top) + int(high) for _, top, _, high in boxes) <= height


def test_a_line_is_interrupted_where_there_was_no_value() -> None:
    line = Line("a", tuple(point for point in steady(1).points if not 1020 <= point[0] <= 1030))
    chart = drawn(Answered(Panel("p", "timeseries", PLACE, unit="s", floor=0), (line,)))
    assert len(list(chart.iter("polyline"))) == 2
    assert texts(chart)[:3] == ["0 s", "250 ms", "500 ms"]
    assert "0:30" in texts(chart)


def test_higher_values_lie_higher_and_each_line_has_its_color() -> None:
    lines = (Line("a", steady(1).points), Line("b", steady(2).points))
    chart = drawn(Answered(Panel("p", "timeseries", PLACE, floor=0), lines))
    low, high = (float(line.attrib["points"].split()[0].split(",")[1]) for line in chart.iter("polyline"))
    assert high < low
    assert [line.attrib["stroke"] for line in chart.iter("polyline")] == [charts.color(0), charts.color(1)]


def test_a_panel_without_data_says_so() -> None:
    assert "No data" in texts(drawn(Answered(Panel("p", "timeseries", PLACE, floor=0), ())))


def test_a_stat_shows_the_last_value() -> None:
    points = (*steady(1).points[:-1], (SPAN.end, 1536.0))
    assert texts(drawn(Answered(Panel("p", "stat", PLACE, unit="bytes"), (Line("", points),)))) == ["1.5 KiB"]


def test_a_state_timeline_has_a_stretch_for_each_state_in_its_color() -> None:
    states = {1.0: State("true", COLORS["green"]), 0.0: State("false", COLORS["red"])}
    points = tuple((at, 0.0 if at < 1020 else 1.0) for at, _ in steady(1).points)
    chart = drawn(Answered(Panel("p", "state-timeline", PLACE, states=states), (Line("Ready", points),)))
    found = [(rect.attrib["fill"], float(rect.attrib["width"])) for rect in chart.iter("rect")]
    assert [fill for fill, _ in found] == [COLORS["red"], COLORS["green"]]
    assert found[1][1] == pytest.approx(2 * found[0][1], abs=0.2)
    assert {"Ready", "true", "false"} <= set(texts(chart))


@pytest.mark.parametrize(
    ("unit", "value", "written"),
    [
        ("short", 0, "0"), ("short", 999, "999"), ("short", 12345, "12.3 K"), ("short", 0.25, "0.25"),
        ("s", 0.0123, "12.3 ms"), ("s", 0.000004, "4 µs"), ("s", 90, "90 s"), ("s", 7200, "2 h"), ("s", 2e-9, "2 ns"),
        ("percentunit", 0.375, "37.5%"), ("bytes", 1536, "1.5 KiB"), ("bytes", 2**31, "2 GiB"),
        ("Bps", 2_500_000, "2.5 MB/s"),
    ],
)  # fmt: skip
def test_values_are_written_with_their_units(unit: str, value: float, written: str) -> None:
    assert UNITS[unit](value) == written


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0, 10, [0, 2.5, 5, 7.5, 10]),
        (0, 0, [0, 0.25, 0.5, 0.75, 1]),
        (0, 7, [0, 2, 4, 6, 8]),
        (3, 5, [3, 3.5, 4, 4.5, 5]),
    ],
)
def test_marks_are_round_and_reach_over_the_values(least: float, most: float, expected: list[float]) -> None:
    assert marks(least, most) == pytest.approx(expected)


def test_marks_of_bytes_are_round_as_they_are_written() -> None:
    assert [UNITS["bytes"](mark) for mark in marks(0, 64 * 2**20, "bytes")] == [
        "0 B", "20 MiB", "40 MiB", "60 MiB", "80 MiB"
    ]  # fmt: skip

"""A query without data is an error, and so is an excuse for a query that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.pictures.answers import NoData, Series, answers, finite
from e2e.pictures.dashboards import read
from tests.pictures.support import CHOSEN, FILES, SPAN, Fixed, dashboard, panel, steady


@pytest.fixture
def file(tmp_path: Path) -> Path:
    targets = [{"expr": "up", "legendFormat": "{{pod}}"}, {"expr": "down", "legendFormat": "down"}]
    return dashboard(tmp_path, panel(targets=targets))


def test_lines_have_the_names_of_their_legends_in_order(file: Path) -> None:
    known = {"up": (steady(1, pod="b"), steady(2, pod="a")), "down": (steady(3),)}
    [answered] = answers(read(file, {}, "8s"), Fixed(known=known), SPAN, {})
    assert [(line.name, line.points[0]) for line in answered.lines] == [
        ("a", (1000.0, 2)),
        ("b", (1000.0, 1)),
        ("down", (1000.0, 3)),
    ]


def test_a_query_without_data_is_an_error_that_names_panel_and_query(file: Path) -> None:
    with pytest.raises(NoData) as error:
        answers(read(file, {}, "8s"), Fixed(known={"up": (steady(1, pod="a"),)}), SPAN, {})
    assert str(error.value) == "Board:\n  panel 'A panel', query 'down' has no data: down"


def test_a_series_without_a_single_value_is_no_data(file: Path) -> None:
    with pytest.raises(NoData, match="query 'down' has no data"):
        answers(read(file, {}, "8s"), Fixed((steady(1),), {"down": (Series({}, ()),)}), SPAN, {})


def test_an_excuse_allows_a_query_to_have_no_data_and_is_for_a_query_that_exists(file: Path) -> None:
    board, without_down = read(file, {}, "8s"), Fixed(known={"up": (steady(1, pod="a"),)})
    excuses = {("A panel", "down"): "nothing fails"}
    [answered] = answers(board, without_down, SPAN, excuses)
    assert [line.name for line in answered.lines] == ["a"]
    assert answers(board, Fixed((steady(1),)), SPAN, excuses)
    with pytest.raises(NoData, match=r"'Another', query '' is excused \(gone\), and does not exist"):
        answers(board, Fixed((steady(1),)), SPAN, {("Another", ""): "gone"})


def test_a_variable_that_does_not_offer_what_was_chosen_is_an_error() -> None:
    [service] = [file for file in FILES if file.stem == "service"]
    prometheus = Fixed((steady(1),), values=("prod",))
    with pytest.raises(NoData, match=r"variable name: 'qwen' is not among the values of name in kvserving_condition\{"):
        answers(read(service, CHOSEN, "8s"), prometheus, SPAN, {})


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_query_of_the_charts_dashboards_is_asked(file: Path) -> None:
    board, prometheus = read(file, CHOSEN, "8s"), Fixed((steady(1),))
    answers(board, prometheus, SPAN, {})
    assert [target.expr for one in board.panels for target in one.targets] == [
        expr for expr in prometheus.asked if " of " not in expr
    ]


def test_only_numbers_are_points() -> None:
    assert finite([(1.0, "2.5"), (3.0, "NaN"), (5.0, "+Inf"), (7.0, "0")]) == ((1.0, 2.5), (7.0, 0.0))

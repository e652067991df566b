"""Amounts in print: what is held in binary units, what moves and what is sold in decimal ones."""

from __future__ import annotations

import pytest

from kvserving_operator.amounts import GI, big, enough, moved, rate, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0Mi"),
        (1, "1Mi"),
        (2**20 + 1, "2Mi"),
        (GI // 10, "103Mi"),
        (GI // 10 + 1, "0.1Gi"),
        (3 * GI // 2, "1.5Gi"),
        (64 * GI, "64Gi"),
        (2000 * GI, "2000Gi"),
    ],
)
def test_what_is_held_is_told_as_a_spec_writes_it(value: int, text: str) -> None:
    assert size(value) == text


def test_what_people_are_told_to_write_holds_the_amount() -> None:
    assert [enough(value) for value in (1, GI, GI + 1)] == ["1Gi", "1Gi", "2Gi"]


def test_what_a_link_carries_and_what_data_sheets_tell_is_decimal() -> None:
    assert [moved(value) for value in (4_194_304, 10**9, 2 * GI)] == ["4.19 MB", "1.00 GB", "2.15 GB"]
    assert [rate(value) for value in (3.41e6, 99.9e6, 1e8)] == ["3.41 MB/s", "99.90 MB/s", "0.10 GB/s"]
    assert [big(value, "B") for value in (512, 16.4e9, 3.5e15)] == ["512 bytes", "16.4 GB", "3,500 TB"]

"""Amounts in print: what is held in binary units, what moves and what is sold in decimal ones."""

from __future__ import annotations

import pytest

from kvserving_operator.amounts import GI, big, enough, moved, rate, size
from kvserving_operator.api.types import Quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0Mi"),
        (1, "1Ki"),
        (2**20 + 2**14, "1.02Mi"),
        (256 * 2**20, "256Mi"),
        (512 * 2**20 * 85 // 100, "435Mi"),
        (256 * 2**20 // 10, "25.6Mi"),
        (GI - 1, "1Gi"),
        (3 * GI // 2, "1.5Gi"),
        (8 * GI + 256 * 2**20 + -(-256 * 2**20 // 10), "8.28Gi"),
        (10 * GI - 1, "10Gi"),
        (64 * GI, "64Gi"),
        (GI * 784 // 10, "78.4Gi"),
        (GI * 1532 // 10, "153.2Gi"),
        (2000 * GI, "2000Gi"),
    ],
)
def test_what_is_held_is_told_as_a_spec_writes_it(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize("number", [1, 7, 99, 100, 256, 435, 512, 768, 1000, 1023])
@pytest.mark.parametrize(("unit", "factor"), [("Ki", 2**10), ("Mi", 2**20), ("Gi", GI)])
def test_a_size_that_somebody_wrote_is_told_as_it_was_written(number: int, unit: str, factor: int) -> None:
    assert size(number * factor) == f"{number}{unit}"


@pytest.mark.parametrize(
    "parts",
    [(8 * GI, 256 * 2**20, -(-256 * 2**20 // 10)), (8 * GI, 132 * GI, 132 * GI // 10), (2560 * 2**20, GI, GI // 4)],
)
def test_a_sum_is_that_of_its_parts_as_they_are_told(parts: tuple[int, ...]) -> None:
    told = sum(Quantity(size(part)).bytes for part in parts)
    assert size(told) == size(sum(parts))


def test_what_people_are_told_to_write_holds_the_amount() -> None:
    assert [enough(value) for value in (1, GI, GI + 1)] == ["1Gi", "1Gi", "2Gi"]


def test_what_a_link_carries_and_what_data_sheets_tell_is_decimal() -> None:
    assert [moved(value) for value in (4_194_304, 10**9, 2 * GI)] == ["4.19 MB", "1.00 GB", "2.15 GB"]
    assert [rate(value) for value in (3.41e6, 99.9e6, 1e8)] == ["3.41 MB/s", "99.90 MB/s", "0.10 GB/s"]
    assert [big(value, "B") for value in (512, 16.4e9, 3.5e15)] == ["512 bytes", "16.4 GB", "3,500 TB"]

from __future__ import annotations

import pytest

from kvserving_operator.api.types import Duration, Percentage, Quantity, QuantityOrZero, Ratio, ResourceQuantity


@pytest.mark.parametrize(
    ("text", "size"),
    [("64Gi", 64 * 2**30), ("1.5Ki", 1536), ("0.001Ki", 2), ("5", 5), ("2k", 2000), ("1E", 10**18), ("1Ei", 2**60)],
)
def test_a_size_has_bytes(text: str, size: int) -> None:
    assert Quantity(text).bytes == size
    assert str(Quantity(text)) == text


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1gi", "1.Gi", "1e3", " 1Gi", "1Gi\n", "٣Gi", "0", "0Gi", "100m"])
def test_other_texts_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|greater than zero"):
        Quantity(text)


def test_zero_switches_off_where_it_may() -> None:
    assert QuantityOrZero("0").bytes == 0


def test_resources_may_be_thousandths() -> None:
    assert ResourceQuantity("500m").value * 2 == 1
    assert ResourceQuantity("16").value == 16
    assert ResourceQuantity("64Gi").bytes == 64 * 2**30


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("1h1m1s", 3661), ("5m", 300)])
def test_a_duration_has_seconds(text: str, seconds: int) -> None:
    assert Duration(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "0s", "0h0m", "1d", "1m1h", "1.5h", "-1s", "5", "1s\n"])
def test_other_texts_are_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|greater than zero"):
        Duration(text)


def test_a_percentage_has_a_number() -> None:
    assert Percentage("85%").percent == 85
    for text in ("0%", "101%", "85", "085%"):
        with pytest.raises(ValueError, match="percentage"):
            Percentage(text)


def test_a_ratio_has_two_terms() -> None:
    assert Ratio("1:4").terms == (1, 4)
    for text in ("0:1", "1", "1:4:2", "1:-4", "10000:1"):
        with pytest.raises(ValueError, match="ratio"):
            Ratio(text)

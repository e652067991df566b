"""An amount in another notation is told with the one that was meant; what may mean anything is told without."""

from __future__ import annotations

import pytest

from kvserving_operator.api.types import Duration, Percentage, Quantity, ResourceQuantity


@pytest.mark.parametrize(
    ("kind", "written", "meant"),
    [
        (Quantity, "1GB", "1G"),
        (Quantity, "1Gib", "1Gi"),
        (Quantity, "1GiB", "1Gi"),
        (Quantity, "64gi", "64Gi"),
        (Quantity, "64 Gi", "64Gi"),
        (Quantity, "512m", "512M"),
        (Quantity, "1.5mb", "1.5M"),
        (Quantity, "1,5Ti", "1.5Ti"),
        (Quantity, "8K", "8k"),
        (Quantity, "1024 bytes", "1024"),
        (ResourceQuantity, "64GB", "64G"),
        (Duration, "30 s", "30s"),
        (Duration, "5min", "5m"),
        (Duration, "2 hours", "2h"),
        (Duration, "1d", "24h"),
        (Percentage, "85", "85%"),
        (Percentage, "0.85", "85%"),
        (Percentage, "85 %", "85%"),
    ],
)
def test_an_amount_in_another_notation_is_told_with_the_one_that_was_meant(
    kind: type[Quantity | Duration | Percentage], written: str, meant: str
) -> None:
    with pytest.raises(ValueError, match="is not") as refused:
        kind(written)
    assert str(refused.value).endswith(f"; did you mean {meant}?")
    assert kind(meant) == meant


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (Quantity, "much"),
        (Quantity, "1XB"),
        (Quantity, "0GB"),
        (Quantity, "9" * 30 + "GB"),
        (Quantity, "1 Gi 2"),
        (Duration, "5 weeks"),
        (Duration, "99999 days"),
        (Percentage, "850"),
        (Percentage, "0"),
    ],
)
def test_what_may_mean_anything_or_stays_wrong_is_told_without_a_guess(
    kind: type[Quantity | Duration | Percentage], written: str
) -> None:
    with pytest.raises(ValueError, match="is not") as refused:
        kind(written)
    assert "did you mean" not in str(refused.value)

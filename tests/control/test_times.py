"""Times are written as the API wants them, and read however it writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from kvserving_operator import times

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def test_a_time_is_written_in_utc() -> None:
    east = NOON.astimezone(timezone(timedelta(hours=2)))
    assert times.stamp(east) == "2026-03-01T12:00:00Z"
    assert times.exact_stamp(east) == "2026-03-01T12:00:00.250000Z"


@pytest.mark.parametrize(
    "written", ["2026-03-01T12:00:00.250000Z", "2026-03-01T14:00:00.25+02:00", "2026-03-01T12:00:00.250"]
)
def test_every_form_of_a_time_is_read(written: str) -> None:
    assert times.read(written) == NOON


@pytest.mark.parametrize("written", ["", "None", "noon"])
def test_what_is_no_time_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="isoformat"):
        times.read(written)

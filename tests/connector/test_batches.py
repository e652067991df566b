"""The batches in which pages are handed to the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core.batches import FIRST_BATCH, LARGEST_BATCH, batches


@given(st.integers(min_value=0, max_value=100_000))
def test_batches_have_every_page_once_and_in_order(pages: int) -> None:
    numbers = range(pages)
    found = [numbers[batch] for batch in batches(pages)]
    assert [number for batch in found for number in batch] == list(numbers)
    assert all(0 < len(batch) <= LARGEST_BATCH for batch in found)
    assert not found or len(found[0]) <= FIRST_BATCH

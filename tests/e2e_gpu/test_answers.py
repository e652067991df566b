"""How far each token of an answer is above the next best, from logprobs as vLLM gives them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from e2e.inside.answers import leads_of


def test_a_lead_is_that_over_the_next_best_whatever_the_order() -> None:
    first = {7: SimpleNamespace(logprob=-0.25), 3: SimpleNamespace(logprob=-2.25)}
    second = {1: SimpleNamespace(logprob=-3.0), 2: SimpleNamespace(logprob=-0.5), 3: SimpleNamespace(logprob=-1.0)}
    assert leads_of([first, second]) == pytest.approx((2.0, 0.5))


def test_where_no_logprobs_were_asked_for_there_are_no_leads() -> None:
    assert leads_of(None) == ()

"""Engines of each role: the spec's number, what scalers ask for within bounds, and the ratio between the roles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.support import serving

from kvserving_operator.plan.scaling import Numbers, wanted


def scaled(low: int = 1, high: int = 8) -> dict[str, Any]:
    return {"autoscaling": {"min": low, "max": high}}


def numbers(asked: dict[Any, int] | None = None, **spec: Any) -> Numbers:
    return wanted(serving(spec).spec, asked or {})


def test_a_role_without_a_scaler_has_the_number_of_the_spec() -> None:
    assert numbers(prefill={"replicas": 2}, decode={}) == Numbers({"prefill": 2, "decode": 1})
    assert numbers(prefill={"replicas": 0}, decode={"replicas": 0}).engines == {"prefill": 0, "decode": 0}


def test_what_is_asked_for_a_role_without_a_scaler_is_nothing() -> None:
    assert numbers({"decode": 7}, decode={"replicas": 3}) == Numbers({"decode": 3})


def test_an_aggregated_object_has_decode_alone_and_no_ratio() -> None:
    assert numbers({"decode": 5, "prefill": 3}, decode=scaled()) == Numbers({"decode": 5})


def test_a_scaled_role_has_what_is_asked_for_and_its_fewest_until_then() -> None:
    assert numbers({"decode": 5}, prefill={}, decode=scaled(2)) == Numbers({"prefill": 1, "decode": 5})
    assert numbers(prefill={}, decode=scaled(2)) == Numbers({"prefill": 1, "decode": 2})


@pytest.mark.parametrize(("asked", "got", "bound"), [(9, 8, "max"), (1, 2, "min")])
def test_a_number_outside_the_bounds_is_cut_and_said_so(asked: int, got: int, bound: str) -> None:
    found = numbers({"decode": asked}, prefill={}, decode=scaled(2))
    assert found.engines["decode"] == got
    assert found.notes == (f"decode: {got} in place of the {asked} asked for, by spec.decode.autoscaling.{bound}",)


def test_four_zero_four() -> None:
    spec = {"prefill": {}, "decode": scaled(2)}
    assert [numbers({"decode": n}, **spec).engines["decode"] for n in (4, 0, 4)] == [4, 0, 4]
    assert numbers({"decode": 0}, **spec).notes == ()


def test_prefill_is_not_switched_off_alone() -> None:
    spec = {"prefill": scaled(2), "decode": scaled()}
    held = numbers({"prefill": 0, "decode": 3}, **spec)
    assert held.engines == {"prefill": 2, "decode": 3}
    assert "would prefill everything themselves" in held.notes[0]
    assert numbers({"prefill": 0, "decode": 0}, **spec) == Numbers({"prefill": 0, "decode": 0})


def test_a_suspended_object_has_no_engine_whatever_is_asked_for() -> None:
    found = numbers({"decode": 5}, prefill={"replicas": 3}, decode=scaled(), suspend=True, ratio={"min": "1:2"})
    assert found == Numbers({"prefill": 0, "decode": 0})


def test_too_little_prefill_is_raised_and_decode_left() -> None:
    found = numbers({"prefill": 1, "decode": 6}, prefill=scaled(), decode=scaled(), ratio={"min": "1:2"})
    assert found == Numbers({"prefill": 3, "decode": 6}, ("prefill: 3 in place of 1 by spec.ratio.min 1:2",))


def test_too_little_decode_is_raised_and_prefill_left() -> None:
    found = numbers({"prefill": 5, "decode": 1}, prefill=scaled(), decode=scaled(), ratio={"max": "2:1"})
    assert found == Numbers({"prefill": 5, "decode": 3}, ("decode: 3 in place of 1 by spec.ratio.max 2:1",))


def test_a_ratio_that_holds_changes_nothing() -> None:
    asked: dict[Any, int] = {"prefill": 2, "decode": 4}
    found = numbers(asked, prefill=scaled(), decode=scaled(), ratio={"min": "1:2", "max": "1:1"})
    assert found == Numbers(asked)


def test_a_role_is_raised_to_its_own_bound_at_most_and_the_rest_is_told() -> None:
    found = numbers({"prefill": 1, "decode": 8}, prefill=scaled(1, 3), decode=scaled(), ratio={"min": "1:2"})
    assert found.engines == {"prefill": 3, "decode": 8}
    assert found.unmet == (
        "spec.ratio.min 1:2 asks for 4 prefill engines beside 8 decode engines, and spec.prefill.autoscaling.max is 3:"
        " raise it, or change the ratio"
    )


def test_a_role_of_fixed_size_is_never_raised() -> None:
    found = numbers({"decode": 6}, prefill={"replicas": 2}, decode=scaled(), ratio={"min": "1:2"})
    assert found.engines == {"prefill": 2, "decode": 6}
    assert found.notes == ()
    assert "and spec.prefill.replicas is 2: raise it" in found.unmet


def test_an_exact_ratio_is_met_by_the_next_multiple() -> None:
    both = {"prefill": scaled(1, 20), "decode": scaled(1, 20), "ratio": {"min": "2:3", "max": "2:3"}}
    found = numbers({"prefill": 1, "decode": 4}, **both)
    assert (found.engines, found.unmet) == ({"prefill": 4, "decode": 6}, "")


def test_an_exact_ratio_out_of_reach_is_not_chased() -> None:
    both = {"prefill": scaled(1, 3), "decode": scaled(1, 20), "ratio": {"min": "2:3", "max": "2:3"}}
    found = numbers({"prefill": 1, "decode": 4}, **both)
    assert found.engines == {"prefill": 3, "decode": 4}
    assert "asks for 4 prefill engines beside 5 decode engines" in found.unmet


_COUNTS = st.integers(0, 12)
_RATIOS = st.builds("{}:{}".format, st.integers(1, 5), st.integers(1, 5))


@given(st.fixed_dictionaries({}, optional={"prefill": _COUNTS, "decode": _COUNTS}), _RATIOS, _RATIOS, st.integers(1, 9))
def test_numbers_stay_in_bounds_are_never_lowered_and_hold_the_ratio_or_say_so(
    asked: dict[Any, int], low: str, high: str, most: int
) -> None:
    ratio = {"min": low, "max": high}
    found = numbers(asked, prefill=scaled(1, most), decode=scaled(1, 9), ratio=ratio)
    for role, bound in (("prefill", most), ("decode", 9)):
        within = min(max(asked.get(role, 1), min(1, asked.get(role, 1))), bound)
        assert within <= found.engines[role] <= bound  # type: ignore[index]
    prefill, decode = found.engines["prefill"], found.engines["decode"]
    (a, b), (c, d) = (tuple(map(int, bound.split(":"))) for bound in (low, high))
    holds = not (prefill and decode) or (prefill * b >= decode * a and prefill * d <= decode * c)
    assert holds == (found.unmet == "")
    again = numbers(dict(found.engines), prefill=scaled(1, most), decode=scaled(1, 9), ratio=ratio)
    assert again.engines == found.engines or found.unmet

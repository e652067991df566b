"""Settings of the tiers that cannot be: each is refused with its place, its value and the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvserving_connector.core.tier_settings import TierSettings

STORE = {"type": "SharedStoreTier", "urls": ["redis://store:6379"]}


def parse(**more: Any) -> TierSettings:
    return TierSettings.parse({"cpu_bytes_to_use": 2**20, **more})


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1Gi", 10**40])
def test_the_size_of_l1_is_a_whole_number_of_bytes(value: Any) -> None:
    with pytest.raises(ValueError, match=r"kv_connector_extra_config\.cpu_bytes_to_use="):
        parse(cpu_bytes_to_use=value)


@pytest.mark.parametrize(("name", "value"), [("load_weight", 0), ("load_weight", "2"), ("defer", True)])
def test_what_a_child_is_told_is_checked_without_other_children_too(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"kv_connector_extra_config\.{name}={value!r}"):
        parse(**{name: value})


@pytest.mark.parametrize("value", [0, -1, True, "30", math.nan, math.inf, 10**400])
def test_a_timeout_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(ValueError, match=r"kv_connector_extra_config\.load_timeout_s="):
        parse(load_timeout_s=value)
    with pytest.raises(ValueError, match=r"secondary_tiers\[0\]\.load_timeout_s="):
        parse(secondary_tiers=[{**STORE, "load_timeout_s": value}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", True),
        ("max_bytes", "1Gi"),
        ("max_inflight", 0),
        ("max_inflight", "x"),
        ("tenant", 5),
        ("share_across_versions", "false"),
        ("identity", [1]),
        ("identity", {"revision": 3}),
    ],
)
def test_a_setting_of_the_store_that_cannot_be_is_refused_with_its_place(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"secondary_tiers\[1\]\.{name}="):
        parse(secondary_tiers=[{"type": "fs"}, {**STORE, name: value}])


def test_an_address_is_not_repeated_because_it_may_hold_a_password() -> None:
    with pytest.raises(ValueError, match=r"secondary_tiers\[0\]\.urls: it must be a list of addresses") as error:
        parse(secondary_tiers=[{**STORE, "urls": "redis://user:secret@store"}])
    assert "secret" not in str(error.value)


def test_what_is_no_setting_is_named_whatever_it_is() -> None:
    with pytest.raises(ValueError, match=r"kv_connector_extra_config\.1=2: no such setting"):
        TierSettings.parse({1: 2, "other": 3, "cpu_bytes_to_use": 1})  # type: ignore[dict-item]


def test_what_the_operator_renders_is_taken() -> None:
    tier = {**STORE, "load_timeout_s": 30, "share_across_versions": False, "tenant": None, "max_bytes": 2**30}
    assert parse(secondary_tiers=[tier]).secondary_tiers == (tier,)

"""What a field sets, a user may not set as well: of two equal flags the last wins, and that is the user's, unseen."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.doctor.rendered import objects, settings
from tests.plan.support import LOCAL

from kvserving_operator.api import owned
from kvserving_operator.doctor.explain import Injected
from kvserving_operator.plan.planning import check
from kvserving_operator.plan.types import CLUSTER

FREE: Mapping[str, str] = {
    "--port": "is the user's: whatever the plan has to know of it follows the one in args",
    "--middleware": "adds up: the user's runs beside the guard",
    "--disable-access-log-for-endpoints": "no field sets it, and the user's says which lines of the log are wanted",
    "--load-format": "spec.engine.args may name another loader of s3:// than the plan's, for both roles",
    "AWS_ACCESS_KEY_ID": "keys may come from elsewhere than the Secret that the object names",
    "AWS_SECRET_ACCESS_KEY": "the same, by valueFrom",
    "HF_TOKEN": "the same, by valueFrom",
    "HF_HOME": "a template may mount a cache elsewhere",
    "UCX_NET_DEVICES": "fabrics differ",
    "UCX_TLS": "fabrics differ; spec.engine.env says it for both roles",
    "VLLM_CPU_KVCACHE_SPACE": "no field sizes it: the plan's is a default, and what the user writes is read",
    "VLLM_USE_V2_MODEL_RUNNER": "kvcached's is a default; spec.engine.env says another one for both roles",
}
"""Flags and variables of engines that the plan sets and users may set too, each with the reason."""

WAY_OUT = (
    "of two equal flags the user's would win unseen: list it in FLAGS or VARIABLES of "
    "operator/src/kvserving_operator/api/owned.py with an example in tests/api/flag_examples.py, or in FREE here with "
    "the reason why both may set it"
)


@pytest.fixture(scope="module")
def injected() -> dict[str, Injected]:
    """By its name, everything that a plan sets in an engine, whichever field of the spec it comes from."""
    return {
        setting.name: setting
        for _, made in objects()
        for site in (CLUSTER, LOCAL)
        if not check(made, site=site)
        for setting in settings(made, site)
        if setting.key[0] == "engine" and setting.kind in ("flag", "env")
    }


def _is_owned(setting: Injected) -> bool:
    """Whether users may set it nowhere, whatever its value."""
    if setting.kind == "flag":
        return any(flag.allowed == "nowhere" and flag.matches(setting.name) for flag in owned.FLAGS)
    return any(
        each.allowed == "nowhere" and each.value is None and each.matches(setting.name, "x") for each in owned.VARIABLES
    )


def test_what_the_plan_sets_is_owned_or_free_for_a_reason(injected: dict[str, Injected]) -> None:
    assert len(injected) > 40
    both = sorted(name for name, each in injected.items() if not _is_owned(each) and name not in FREE)
    assert not both, f"{', '.join(both)}: {WAY_OUT}"


def test_nothing_is_called_free_that_is_owned_or_that_no_plan_sets(injected: dict[str, Injected]) -> None:
    assert set(FREE) <= set(injected)
    assert [name for name in FREE if _is_owned(injected[name])] == []


def test_a_flag_that_a_field_takes_over_is_missed_in_the_list() -> None:
    assert not _is_owned(Injected("prefill", "a", "flag", "--seed", "7"))
    assert not _is_owned(Injected("prefill", "a", "env", "VLLM_NEW", "7"))
    assert _is_owned(Injected("prefill", "a", "flag", "--block-size", "7"))
    assert _is_owned(Injected("prefill", "a", "env", "PYTHONHASHSEED", "7"))

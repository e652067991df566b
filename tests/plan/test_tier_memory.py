"""/dev/shm and the memory limit follow from the tier."""

from __future__ import annotations

import re

import pytest
from tests.plan.support import case, faults, pair, render, serving

from kvserving_operator.amounts import quantity
from kvserving_operator.api.types import Quantity
from kvserving_operator.memory import host_memory

GI = 2**30


def shm(engine: object) -> int:
    volume = engine.volume("/dev/shm")  # type: ignore[attr-defined]
    assert volume["emptyDir"]["medium"] == "Memory"
    return Quantity(volume["emptyDir"]["sizeLimit"]).bytes


def test_shared_memory_holds_the_tier_and_two_gib() -> None:
    plan = render(pair(cache={"l1": {"size": "64Gi"}}))
    assert shm(plan.prefill) == 66 * GI
    assert shm(plan.decode) == 2 * GI


def test_default_limit_holds_engine_tier_and_margin() -> None:
    plan = render(pair(cache={"l1": {"size": "64Gi"}}))
    assert Quantity(plan.prefill.container["resources"]["limits"]["memory"]).bytes >= (8 + 64) * GI + 64 * GI // 10
    assert "memory" not in plan.decode.container["resources"]["limits"]


def test_memory_is_requested_as_it_is_limited() -> None:
    resources = render(pair(cache={"l1": {"size": "64Gi"}})).prefill.container["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_a_limit_of_the_users_is_kept() -> None:
    assert case("09").prefill.container["resources"]["limits"]["memory"] == "512Gi"


def test_l2_without_l1_gets_a_bounce_pool() -> None:
    plan = render(pair(cache={"l2": {"size": "8Gi"}}))
    extra = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 2 * GI
    assert shm(plan.prefill) == 4 * GI
    assert Quantity(plan.prefill.container["resources"]["limits"]["memory"]).bytes == 10 * GI


def test_each_further_rank_adds_to_the_baseline() -> None:
    one = host_memory(serving(pair()).spec, "prefill").baseline
    four = host_memory(serving(pair(prefill={"parallelism": {"tensor": 4}})).spec, "prefill").baseline
    assert (one, four) == (8 * GI, 17 * GI)


def test_staging_is_host_memory_of_engines_on_a_cpu_alone() -> None:
    def need(device: str) -> list[int]:
        spec = serving(pair(engine={"device": device}, transfer={"stagingMemory": "8Gi"})).spec
        return [host_memory(spec, "prefill").staging, host_memory(spec, "decode").staging]

    assert need("gpu") == [0, 0]
    assert need("cpu") == [8 * GI, GI + 4096]


def test_the_refusal_shows_the_sum() -> None:
    limits = {"nvidia.com/gpu": 1, "memory": "32Gi"}
    report = faults(pair(prefill={"resources": {"limits": limits}}, cache={"l1": {"size": "64Gi"}}))
    assert "8Gi engine + 64Gi L1 + 6.4Gi 10% of L1 = 78.4Gi" in report


def test_a_limit_just_large_enough_is_accepted() -> None:
    need = host_memory(serving(pair(cache={"l1": {"size": "64Gi"}})).spec, "prefill").total
    for limit, fine in ((need, True), (need - 1, False)):
        role = {"resources": {"limits": {"memory": str(limit)}}}
        assert (faults(pair(prefill=role, cache={"l1": {"size": "64Gi"}})) == "") is fine


@pytest.mark.parametrize("l1", ["64Gi", "5500Mi", "3333333333"])
def test_the_limit_that_the_refusal_names_is_accepted(l1: str) -> None:
    def report(limit: str) -> str:
        return faults(pair(prefill={"resources": {"limits": {"memory": limit}}}, cache={"l1": {"size": l1}}))

    [told] = re.findall(r"Raise the limit to (\S+)", report("1Gi"))
    assert report(told) == ""


def own_shm(limit: str) -> dict[str, object]:
    volumes = [{"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}]
    mounts = [{"name": "mine", "mountPath": "/dev/shm"}]
    return {"template": {"spec": {"volumes": volumes, "containers": [{"name": "engine", "volumeMounts": mounts}]}}}


@pytest.mark.parametrize(("limit", "fine"), [("6Gi", True), ("8Gi", True), ("6143Mi", False)])
def test_shared_memory_of_the_users_must_hold_the_tier(limit: str, fine: bool) -> None:
    spec = pair(prefill=own_shm(limit), cache={"l1": {"size": "4Gi"}})
    assert (faults(spec) == "") is fine
    if fine:
        engine = render(spec).prefill
        assert engine.volume("/dev/shm")["name"] == "mine"
        assert "shm" not in {volume["name"] for volume in engine.pod["volumes"]}


def test_the_size_of_shared_memory_that_the_refusal_names_is_accepted() -> None:
    def report(limit: str) -> str:
        return faults(pair(prefill=own_shm(limit), cache={"l1": {"size": "5500Mi"}}))

    [told] = re.findall(r"make it at least (\S+?)(?=[.;,]|$)", report("1Gi"))
    assert report(told) == ""


def test_disk_at_dev_shm_is_refused() -> None:
    role = own_shm("64Gi")
    role["template"]["spec"]["volumes"][0]["emptyDir"].pop("medium")  # type: ignore[index]
    assert "medium Memory" in faults(pair(prefill=role))


@pytest.mark.parametrize(
    ("value", "text"), [(64 * GI, "64Gi"), (GI + 1, str(GI + 1)), (2**20 * 3, "3Mi"), (2**41, "2Ti")]
)
def test_quantities_are_exact(value: int, text: str) -> None:
    assert quantity(value) == text
    assert Quantity(text).bytes == value

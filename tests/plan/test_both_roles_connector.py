"""Both roles get a connector, always. Only keys that the engine version accepts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import LOCAL, case, faults, pair, render

from kvserving_operator.engines import catalog

TIERS = {"l1": {"size": "4Gi"}, "l2": {"size": "8Gi"}}


def test_both_roles_carry_nixl_without_any_argument_of_the_users() -> None:
    plan = render(pair())
    assert plan.prefill.transfer is not None
    assert plan.decode.transfer is not None
    assert plan.prefill.transfer["kv_connector"] == plan.decode.transfer["kv_connector"] == "NixlConnector"
    assert plan.prefill.transfer["kv_role"] == "kv_producer"
    assert plan.decode.transfer["kv_role"] == "kv_consumer"


def test_arguments_of_one_role_keep_its_connector() -> None:
    plan = render(pair(decode={"args": ["--max-num-seqs", "8"]}))
    assert plan.decode.transfer is not None
    assert plan.decode.args[-2:] == ["--max-num-seqs", "8"]
    assert len(plan.decode.flags("--kv-transfer-config")) == 1


def test_the_connector_is_ours_under_vllms_name() -> None:
    for engine in render(pair()).engines:
        assert engine.transfer is not None
        assert engine.transfer["kv_connector_module_path"] == "kvserving_connector.vllm.nixl"


def test_with_tiers_the_outer_role_is_both_and_the_children_carry_theirs() -> None:
    plan = render(pair(cache=TIERS))
    assert plan.prefill.transfer is not None
    assert plan.prefill.transfer["kv_connector"] == "MultiConnector"
    assert plan.prefill.transfer["kv_role"] == "kv_both"
    assert plan.prefill.child("NixlConnector")["kv_role"] == "kv_producer"
    assert plan.prefill.child("TieredOffloadConnector")["kv_role"] == "kv_both"


def test_a_role_without_the_tier_has_plain_nixl() -> None:
    assert render(pair(cache=TIERS)).decode.transfer == render(pair()).decode.transfer


def test_aggregated_without_tiers_needs_no_connector() -> None:
    plan = render({"decode": {"replicas": 1}})
    assert plan.decode.transfer is None
    assert plan.decode.flag("--middleware") == "kvserving_connector.guard.Guard"


def test_aggregated_tiers_are_both_producer_and_consumer() -> None:
    plan = render({"decode": {}, "cache": {"l1": {"size": "4Gi"}}})
    assert plan.decode.transfer is not None
    assert plan.decode.transfer["kv_connector"] == "TieredOffloadConnector"
    assert plan.decode.transfer["kv_role"] == "kv_both"


@pytest.mark.parametrize("minor", range(24, 34))
def test_every_key_is_one_that_the_version_accepts(minor: int) -> None:
    version = f"0.{minor}.0"
    accepted = catalog.resolve(version=version, image=None, device="gpu", kvcached=False).transfer_keys
    cache = TIERS if minor >= 29 else {"connectors": [{"name": "SimpleCPUOffloadConnector", "weight": 1}]}
    for engine in render(pair(cache=cache, engine={"version": version})).engines:
        assert engine.transfer is not None
        assert set(engine.transfer) <= accepted
        for child in engine.transfer["kv_connector_extra_config"].get("connectors", ()):
            assert set(child) <= accepted
            assert "engine_id" not in child
            assert child["kv_role"] in ("kv_producer", "kv_consumer", "kv_both")


@pytest.mark.parametrize(("version", "known"), [("0.30.0", True), ("0.31.0", True), ("0.32.0", False)])
def test_old_keys_are_named_where_the_version_dropped_them(version: str, known: bool) -> None:
    args = ['--kv-transfer-config={"kv_rank":0}']
    report = faults(pair(engine={"version": version}, prefill={"args": args}))
    assert "--kv-transfer-config is set by the operator" in report
    assert ("does not know kv_rank" in report) is not known


def test_offloading_size_is_never_rendered_and_refused() -> None:
    assert all(engine.flag("--kv-offloading-size") is None for engine in render(pair(cache=TIERS)).engines)
    assert "--kv-offloading-size" in faults(pair(engine={"args": ["--kv-offloading-size=4"]}))


def test_a_failed_load_has_an_explicit_policy() -> None:
    for spec in (pair(), pair(cache=TIERS), {"cache": {"l1": {"size": "4Gi"}}}):
        for engine in render(spec).engines:
            assert engine.transfer is not None
            assert engine.transfer["kv_load_failure_policy"] == "fail"


def test_nixl_weighs_most_and_comes_first() -> None:
    plan = render(pair(cache={**TIERS, "connectors": [{"name": "SimpleCPUOffloadConnector", "weight": 7}]}))
    names = [child["kv_connector"] for child in plan.prefill.children]
    weights = [child["kv_connector_extra_config"]["load_weight"] for child in plan.prefill.children]
    assert names == ["NixlConnector", "TieredOffloadConnector", "SimpleCPUOffloadConnector"]
    assert weights == [1_000_000, 1, 7]


def test_a_further_connector_makes_a_multi_connector_on_both_roles() -> None:
    plan = render(pair(cache={"connectors": [{"name": "SimpleCPUOffloadConnector", "weight": 7}]}))
    for engine in plan.engines:
        assert [child["kv_connector"] for child in engine.children] == ["NixlConnector", "SimpleCPUOffloadConnector"]


def test_the_lease_reaches_the_connector_and_the_drain() -> None:
    plan = render(pair(transfer={"lease": "45s"}))
    assert plan.prefill.transfer is not None
    assert plan.prefill.transfer["kv_connector_extra_config"]["kv_lease_duration"] == 45
    assert plan.prefill.env["KVSERVING_LEASE_SECONDS"] == "45"


@pytest.mark.parametrize(("size", "held"), [("0", 0), ("1Gi", 2**30)])
def test_staging_memory_reaches_nixl(size: str, held: int) -> None:
    plan = render(pair(transfer={"stagingMemory": size}))
    assert plan.decode.transfer is not None
    assert plan.decode.transfer["kv_connector_extra_config"]["staging_bytes"] == held


@pytest.mark.parametrize(("transfer", "held"), [({}, None), ({"stagingMemory": "64Mi"}, 64 * 2**20)])
def test_engines_on_a_cpu_stage_only_where_the_object_says_so(transfer: dict[str, str], held: int | None) -> None:
    for engine in render(pair(engine={"device": "cpu"}, transfer=transfer)).engines:
        assert engine.transfer is not None
        assert engine.transfer["kv_connector_extra_config"].get("staging_bytes") == held


def test_roles_that_are_divided_differently_do_not_stage() -> None:
    plan = render(pair(decode={"parallelism": {"tensor": 2}}, transfer={"stagingMemory": "512Mi"}))
    for engine in plan.engines:
        assert engine.transfer is not None
        assert engine.transfer["kv_connector_extra_config"]["staging_bytes"] == 0


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_engines_that_stage_and_engines_that_do_not_are_never_paired(device: str) -> None:
    engine = {"device": device}
    off, some, more = (
        render(pair(engine=engine, transfer={"stagingMemory": size})).plan.revision for size in ("0", "512Mi", "1Gi")
    )
    assert some == more != off
    assert render(pair(engine=engine)).plan.revision == off


def test_kv_buffers_are_on_the_engines_device() -> None:
    for device, buffer in (("gpu", "cuda"), ("cpu", "cpu")):
        for engine in render(pair(engine={"device": device})).engines:
            assert engine.transfer is not None
            assert engine.transfer["kv_buffer_device"] == buffer


def test_the_same_connectors_run_on_a_local_site() -> None:
    assert case("02", LOCAL).prefill.transfer == case("02").prefill.transfer


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "there is no spec.prefill"),
        (pair(decode={"parallelism": {"tensor": 2}}), "tensor is 1, spec.decode.parallelism.tensor 2"),
        (pair(model={"uri": "hf://google/gemma-3-12b-it"}), "several cache groups (this one: slidingWindow)"),
        (pair(prefill={"args": ["--spec-method=ngram"]}), "a prefill engine with --spec-method"),
        (pair(engine={"args": ["--enable-sleep-mode"]}), "a prefill engine with --enable-sleep-mode"),
    ],
)  # fmt: skip
def test_a_pool_for_staging_that_does_nothing_is_told(spec: dict[str, Any], why: str, device: str) -> None:
    engine = {**spec.get("engine", {}), "device": device}
    notices = render({**spec, "engine": engine, "transfer": {"stagingMemory": "512Mi"}}).plan.notices
    (told,) = (notice for notice in notices if notice.path == "spec.transfer.stagingMemory")
    assert told.reason.value == "SettingWithoutEffect"
    assert told.message.startswith("512Mi does nothing here: ")
    assert why in told.message


def test_a_pool_that_is_used_is_not_called_idle() -> None:
    for args in (["--no-enable-sleep-mode"], []):
        notices = render(pair(engine={"args": args}, transfer={"stagingMemory": "512Mi"})).plan.notices
        assert [n.reason.value for n in notices if n.path == "spec.transfer.stagingMemory"] == ["Experimental"]

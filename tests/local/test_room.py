"""Memory and disk that a run takes, and whether this machine has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local import room
from kvserving_operator.local.room import GIB
from kvserving_operator.local.state import ServiceDir

from .support import deployment, run_of

VLLM = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
KV = '--kv-transfer-config={"kv_connector":"NixlConnector"}'


def engine(role: str = "decode", *flags: str, **container: Any) -> dict[str, Any]:
    return deployment(role, KV, *flags, command=VLLM, **container)


def test_replicas_that_need_the_same_stand_once_in_a_sum() -> None:
    run = run_of(deployment("prefill", KV, replicas=50, command=VLLM), engine())
    [problem] = room.memory(run, run.pods()[0], GIB)
    assert "50 \N{MULTIPLICATION SIGN} svc-prefill 3.5Gi (2.5Gi engine + 1Gi KV) + svc-decode-0 3.5Gi (2.5" in problem
    assert "= 178.5Gi" in problem
    assert "svc-prefill-1" not in problem


def test_requests_for_more_memory_than_there_is_are_told() -> None:
    large = {"requests": {"memory": "900Gi", "cpu": "1"}}
    pods = run_of(deployment("prefill", KV, replicas=2, command=VLLM, resources=large), engine()).pods()[0]
    [notice] = room.reservations(pods, 24 * GIB)
    assert "2 \N{MULTIPLICATION SIGN} svc-prefill 900Gi = 1800Gi of 24Gi" in notice
    assert room.reservations(pods, 1800 * GIB) == []
    assert room.reservations(run_of(engine()).pods()[0], 0) == []


def test_too_little_memory_shows_the_sum() -> None:
    big = engine(env=[{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}])
    run = run_of(engine("prefill"), big, weights_bytes=GIB)
    [problem] = room.memory(run, run.pods()[0], 11 * GIB)
    assert "svc-prefill-0 4.5Gi (2.5Gi engine + 1Gi KV + 1Gi weights) + svc-decode-0 7.5Gi" in problem
    assert "= 12Gi, but 11Gi are available" in problem
    assert "VLLM_CPU_KVCACHE_SPACE (whole GiB) in spec.engine.env" in problem
    assert room.memory(run, run.pods()[0], 12 * GIB) == []


def test_a_size_of_kv_that_is_no_number_is_refused_with_the_field() -> None:
    run = run_of(engine(env=[{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "$(SPACE)"}]))
    [problem] = room.memory(run, run.pods()[0], 64 * GIB)
    assert problem.startswith("svc-decode-0: VLLM_CPU_KVCACHE_SPACE=$(SPACE) is no number of GiB: ")
    assert problem.endswith('write "1" (GiB) in spec.engine.env')


def test_a_host_tier_of_less_than_a_gibibyte_is_told_as_it_was_written() -> None:
    config = json.dumps({"kv_connector_extra_config": {"cpu_bytes_to_use": GIB // 4}})
    run = run_of(engine("decode", f"--kv-transfer-config={config}"))
    [problem] = room.memory(run, run.pods()[0], GIB)
    assert "3.75Gi (2.5Gi engine + 1Gi KV + 256Mi host tier) = 3.75Gi, but 1Gi are available" in problem


def test_the_host_tier_of_each_data_parallel_rank_counts() -> None:
    config = json.dumps({"kv_connector_extra_config": {"cpu_bytes_to_use": GIB}})
    for ranks, total in (([], 4.5), (["--data-parallel-size=3"], 8.5)):
        run = run_of(engine("decode", f"--kv-transfer-config={config}", *ranks))
        [problem] = room.memory(run, run.pods()[0], GIB)
        assert f"= {total}Gi, but" in problem


def staged(role: str, size: int, *flags: str) -> dict[str, Any]:
    config = json.dumps({"kv_connector": "NixlConnector", "kv_connector_extra_config": {"staging_bytes": size}})
    return engine(role, f"--kv-transfer-config={config}", *flags)


def test_memory_for_staging_counts_and_its_field_is_named() -> None:
    run = run_of(staged("prefill", 900 * GIB), staged("decode", 900 * GIB))
    [problem] = room.memory(run, run.pods()[0], 24 * GIB)
    assert "svc-prefill-0 903.5Gi (2.5Gi engine + 1Gi KV + 900Gi staging) + svc-decode-0 4.5Gi (" in problem
    assert problem.endswith("lower replicas, VLLM_CPU_KVCACHE_SPACE (whole GiB) in spec.engine.env or "
                            "spec.transfer.stagingMemory")  # fmt: skip
    assert room.memory(run, run.pods()[0], 909 * GIB) == []


def test_each_rank_has_its_own_kv_and_its_own_staging() -> None:
    for flags, total in ((["--tensor-parallel-size=2"], 6.5), (["--data-parallel-size=3"], 8.5)):
        run = run_of(staged("prefill", GIB, *flags))
        [problem] = room.memory(run, run.pods()[0], GIB)
        assert f"= {total}Gi, but" in problem


def test_a_number_of_blocks_that_takes_more_than_the_space_for_kv_counts() -> None:
    run = run_of(engine("decode", "--num-gpu-blocks-override=4096"), block_bytes=2**20)
    [problem] = room.memory(run, run.pods()[0], GIB)
    assert "6.5Gi (2.5Gi engine + 4Gi KV blocks)" in problem
    assert problem.endswith("or --num-gpu-blocks-override in spec.engine.args")
    few = run_of(engine("decode", "--num-gpu-blocks-override=64"), block_bytes=2**20)
    assert room.memory(few, few.pods()[0], int(3.5 * GIB)) == []


def test_what_is_not_asked_for_is_no_way_out() -> None:
    run = run_of(engine())
    [problem] = room.memory(run, run.pods()[0], GIB)
    assert "spec.cache" not in problem
    assert "stagingMemory" not in problem


def test_too_little_disk_shows_the_sum(directory: ServiceDir) -> None:
    pods = run_of(engine("prefill"), engine()).pods()[0]
    [problem] = room.disk(pods, directory.base, lambda _: 100 * 2**20)
    assert "too little disk: 2 logs of 32Mi + 64Mi = 128Mi, but " in problem
    assert "has 100Mi. Free some, or name another folder by KVSERVING_STATE_DIR" in problem
    assert room.disk(pods, directory.base, lambda _: 128 * 2**20) == []


def stored(bound: int) -> dict[str, Any]:
    tier = {"type": "SharedStoreTier", "urls": ["file:///var/lib/kvserving/l2"], "max_bytes": bound}
    config = {"kv_connector": "T", "kv_connector_extra_config": {"secondary_tiers": [tier]}}
    made = engine(
        "prefill",
        f"--kv-transfer-config={json.dumps(config)}",
        volumeMounts=[{"name": "l2", "mountPath": "/var/lib/kvserving/l2"}],
    )
    volumes = [{"name": "l2", "persistentVolumeClaim": {"claimName": "svc-l2"}}]
    made["spec"]["template"]["spec"]["volumes"] = volumes
    return made


def test_a_store_in_a_folder_needs_its_disk_except_for_what_it_holds_already(directory: ServiceDir) -> None:
    pods = run_of(stored(GIB), engine()).pods()[0]
    [problem] = room.disk(pods, directory.base, lambda _: GIB)
    assert "2 logs of 32Mi + 64Mi + 1Gi of spec.cache.l2.size = 1.12Gi, but " in problem
    assert (
        "has 1Gi. Free some, make spec.cache.l2.size smaller, or name another folder by KVSERVING_STATE_DIR" in problem
    )
    assert room.disk(pods, directory.base, lambda _: GIB + 128 * 2**20) == []
    folder = directory.base / "claims/svc-l2/objects"
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(bytes(64 * 2**20))
    [problem] = room.disk(pods, directory.base, lambda _: GIB)
    assert "+ 1Gi of spec.cache.l2.size - 64Mi that are stored = 1.06Gi, but " in problem
    assert room.disk(pods, directory.base, lambda _: GIB + 64 * 2**20) == []


def test_a_store_on_another_disk_is_told_by_itself(directory: ServiceDir, tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    directory.base.mkdir(parents=True, exist_ok=True)
    if elsewhere.stat().st_dev == directory.base.stat().st_dev:
        pytest.skip("/dev/shm and the tests' folder are one disk here")
    (directory.base / "claims").symlink_to(elsewhere)
    pods = run_of(stored(GIB)).pods()[0]
    logs, store = room.disk(pods, directory.base, lambda _: 2**20)
    assert "spec.cache.l2.size" not in logs
    assert store.startswith(f"too little disk: 1Gi of spec.cache.l2.size = 1Gi, but {directory.base}/claims/svc-l2 has")

"""What an object may combine with kvcached, what its engines get for it, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.plan.support import faults, pair, render

from kvserving_operator.connectors import NIXL, TIERED, WORKER

ON: dict[str, Any] = {"kvcached": {"enabled": True}}
RECURRENT = {"uri": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"}
LATENT = {"uri": "hf://deepseek-ai/DeepSeek-V3"}


def test_with_staging_a_pair_is_what_is_wanted() -> None:
    plan = render(pair(transfer={"stagingMemory": "512Mi"}, **ON))
    for engine in plan.engines:
        assert engine.transfer is not None
        assert engine.transfer["kv_connector_extra_config"]["staging_bytes"] == 512 * 2**20


@pytest.mark.parametrize("staging", ["0", "512Mi"])
def test_without_staging_the_plan_says_how_slow_transfers_are(staging: str) -> None:
    notices = render(pair(transfer={"stagingMemory": staging}, **ON)).plan.notices
    told = [notice for notice in notices if notice.path == "spec.transfer.stagingMemory"]
    assert [("512Mi or more" in notice.message) for notice in told] == [staging == "0"]


UNEQUAL: dict[str, Any] = {"prefill": {"parallelism": {"tensor": 1}}, "decode": {"parallelism": {"tensor": 2}}}


@pytest.mark.parametrize("staging", ["0", "512Mi"])
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (pair(model={"uri": "hf://google/gemma-3-12b-it"}), "several cache groups"),
        (pair(model=LATENT, **UNEQUAL), "divided differently"),
    ],
)
def test_staging_is_not_advised_where_it_does_nothing(spec: dict[str, Any], why: str, staging: str) -> None:
    notices = render({**spec, "transfer": {"stagingMemory": staging}, **ON}).plan.notices
    text = "\n".join(str(notice) for notice in notices)
    assert "512Mi or more" not in text
    (told,) = (notice for notice in notices if "500 times slower" in notice.message)
    assert told.path == "spec.kvcached.enabled"
    assert why in told.message
    assert "spec.transfer.lease (30s) is not used: set that to four times" in told.message
    assert ("spec.transfer.stagingMemory: 512Mi does nothing here" in text) is (staging != "0")


def test_without_prefill_nothing_is_said_of_transfers() -> None:
    (notice,) = render(ON).plan.notices
    assert (notice.reason.value, notice.path) == ("Experimental", "spec.kvcached.enabled")
    assert "transfer" not in notice.message.lower()


def test_a_bound_of_the_prefix_cache_that_does_nothing_is_told() -> None:
    (notice,) = render(pair(kvcached={"maxCachedTokens": 16000})).plan.notices
    assert str(notice).startswith("spec.kvcached.maxCachedTokens: 16000 does nothing here: spec.kvcached.enabled is")
    assert notice.reason.value == "SettingWithoutEffect"


WINDOWS = {"uri": "hf://google/gemma-3-12b-it"}


@pytest.mark.parametrize(
    ("version", "model", "refused"),
    [
        ("0.24.0", {}, True),
        ("0.28.0", {}, True),
        ("0.29.0", {}, False),
        ("0.29.0", WINDOWS, True),
        ("0.30.0", WINDOWS, False),
    ],
)
@pytest.mark.parametrize("staging", ["0", "512Mi"])
def test_prefill_and_decode_are_refused_where_engines_use_what_is_read_after_its_lease(
    version: str, model: dict[str, Any], refused: bool, staging: str
) -> None:
    """Reads from blocks take seconds under kvcached; what finds no late read does not stage."""
    spec = {"engine": {"version": version}, **({"model": model} if model else {}), **ON}
    report = faults(pair(transfer={"stagingMemory": staging}, **spec))
    told = [line for line in report.splitlines() if line.startswith("spec.engine.version: ")]
    assert [f": {version} uses KV that is read after spec.transfer.lease (30s)" in line for line in told] == [
        True
    ] * refused
    assert ("Use vLLM 0.30.0, leave out spec.prefill, or set spec.kvcached.enabled to false" in report) is refused
    assert faults(spec) == ""


def test_the_version_is_blamed_where_it_is_written() -> None:
    image = "mirror.example/vllm-openai-kvcached:v0.28.0-kvcached0.1.6"
    assert faults(pair(engine={"image": image}, **ON)).startswith(
        "spec.engine.image: 0.28.0 uses KV that is read after"
    )


def test_without_hybrid_memory_a_model_with_windows_has_one_group() -> None:
    engine = {"version": "0.29.0", "kv": {"hybrid": "disabled"}}
    assert faults(pair(engine=engine, model=WINDOWS, **ON)) == ""


@pytest.mark.parametrize(
    "cache", [{"l1": {"size": "64Gi"}}, {"l2": {"size": "64Gi"}}, {"l1": {"size": "64Gi"}, "l2": {"size": "64Gi"}}]
)
def test_tiers_belong_to_the_workers_which_hold_the_blocks_that_they_copy(cache: dict[str, Any]) -> None:
    """kvcached takes the memory of a freed block away; the scheduler's tier copies blocks after they were freed."""
    assert faults(pair(cache=cache, **ON)) == ""
    children = [child["kv_connector"] for child in render(pair(cache=cache, **ON)).prefill.children]
    assert children == [NIXL, WORKER]
    children = [child["kv_connector"] for child in render(pair(cache=cache)).prefill.children]
    assert children == [NIXL, TIERED]


REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "the scheduler's tier",
        pair(cache={"l1": {"size": "64Gi", "owner": "scheduler"}}),
        ["spec.cache.l1.owner", "scheduler", "after the engine has freed them", "auto or worker"],
    ),
    (
        "mooncake",
        pair(cache={"l2": {"type": "mooncake", "url": "mooncake://host:50051"}}),
        ["spec.cache.l2.type", "mooncake", "another type"],
    ),
    (
        "a further connector",
        pair(cache={"connectors": [{"name": "SimpleCPUOffloadConnector", "weight": 1}]}),
        ["spec.cache.connectors[0].name", "SimpleCPUOffloadConnector", "remove the entry"],
    ),
    (
        "vLLM's own offloading",
        pair(cache={"connectors": [{"name": "OffloadingConnector", "weight": 1}]}),
        ["spec.cache.connectors[0].name", "OffloadingConnector", "memory of freed blocks"],
    ),
    (
        "data-parallel ranks of one pod",
        pair(decode={"parallelism": {"data": 2}}),
        ["spec.decode.parallelism.data", "2", "KVCACHED_IPC_NAME", "Use replicas"],
    ),
    (
        "several hosts",
        pair(prefill={"nodes": 2, "parallelism": {"tensor": 2}}, decode={"parallelism": {"tensor": 2}}),
        ["spec.prefill.nodes", "2", "sockets of one host", "set it to 1"],
    ),
    (
        "unequal tensor parallelism",
        pair(prefill={"parallelism": {"tensor": 1}}, decode={"parallelism": {"tensor": 2}}),
        ["spec.prefill.parallelism.tensor", "1 differs", "Use the same number"],
    ),
    (
        "K6 recurrent state",
        pair(model=RECURRENT),
        ["spec.kvcached.enabled", "recurrent layers", "leave out spec.prefill"],
    ),
    (
        "KV events",
        pair(engine={"args": ["--kv-events-config", "{}"]}),
        ["spec.engine.args[0]", "--kv-events-config", "no KV events", "remove it"],
    ),
    (
        "KV events of one role",
        pair(decode={"args": ["--kv-events-conf={}"]}),
        ["spec.decode.args[0]", "--kv-events-config"],
    ),
    (
        "K14 memory for both roles",
        pair(engine={"args": ["--gpu-memory-utilization", "0.5"]}),
        ["spec.engine.args", "--gpu-memory-utilization", "kvcached sizes GPU memory itself", "remove the flag"],
    ),
    (
        "K14 memory of one role",
        pair(prefill={"args": ["--gpu_memory_utilization=0.5"]}),
        ["spec.prefill.args", "kvcached sizes GPU memory itself"],
    ),
    (
        "K5 contiguous layout",
        pair(engine={"env": [{"name": "KVCACHED_CONTIGUOUS_LAYOUT", "value": "true"}]}),
        ["spec.engine.env", "KVCACHED_CONTIGUOUS_LAYOUT", "contiguous layout", "use spec.kvcached"],
    ),
    (
        "K11 a name of the user's",
        pair(decode={"env": [{"name": "KVCACHED_IPC_NAME", "value": "vllm"}]}),
        ["spec.decode.env", "KVCACHED_IPC_NAME", "of its own"],
    ),
]


def merged(spec: dict[str, Any], kvcached: bool) -> dict[str, Any]:
    engine = {"version": "0.30.0", **spec.get("engine", {})}
    return {**spec, "engine": engine, "kvcached": {"enabled": kvcached}}


@pytest.mark.parametrize(("spec", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_does_not_work_is_refused_with_field_value_reason_and_way_out(
    spec: dict[str, Any], words: list[str]
) -> None:
    report = faults(merged(spec, kvcached=True))
    assert [word for word in words if word not in report] == []


@pytest.mark.parametrize("spec", [case[1] for case in REFUSED[:-2]], ids=[case[0] for case in REFUSED[:-2]])
def test_what_kvcached_forbids_is_allowed_without_it(spec: dict[str, Any]) -> None:
    """All but kvcached's own variables, which are the operator's in any object."""
    assert faults(merged(spec, kvcached=False)) == ""


@pytest.mark.parametrize(
    "spec",
    [
        {"decode": {"parallelism": {"tensor": 2}}, "model": RECURRENT},
        pair(prefill={"parallelism": {"tensor": 1}}, decode={"parallelism": {"tensor": 2}}, model=LATENT),
        pair(model={"uri": "hf://google/gemma-3-12b-it"}),
        pair(cache={"connectors": [{"name": "NixlConnector", "weight": 3}]}),
    ],
    ids=["recurrent and aggregated", "latent attention", "sliding windows", "a weight of NIXL's"],
)
def test_what_kvcached_serves_is_not_refused(spec: dict[str, Any]) -> None:
    assert faults({**spec, **ON}) == ""


@pytest.mark.parametrize(
    "cache",
    [{"policy": "arc"}, {"size": "32Gi"}],
    ids=["a policy of the scheduler's tier", "a weight of the scheduler's tier"],
)
def test_no_way_out_leads_to_the_schedulers_tier(cache: dict[str, str]) -> None:
    connectors = [] if "policy" in cache else [{"name": TIERED, "weight": 2}]
    report = faults(pair(cache={"l1": {"size": "64Gi", **cache}, "connectors": connectors}, **ON))
    assert ("spec.cache.l1.policy" if "policy" in cache else "spec.cache.connectors[0].name") in report
    assert "spec.cache.l1.owner" not in report


@pytest.mark.parametrize("name", ["qwen3-0.6b", "a" * 40, "x-" * 19 + "yz"])
def test_k11_shared_memory_and_sockets_of_two_pods_differ_and_fit(name: str) -> None:
    """kvcached 0.1.6 cuts a name at 64 characters and replaces all but letters, digits, - and _ by dashes.

    Its sockets are in /tmp/kvcached-tp-NAME-8DIGITS/pp1/w15.sock, of which Linux takes 108 characters.
    """
    plan = render(pair(**ON), name=name)
    made = set()
    for engine in plan.engines:
        for uid in ("0b7c3a52-9c3a-4c9e-9a3e-0123456789ab", "0b7c3a52-9c3a-4c9e-9a3e-0123456789ac"):
            ipc = engine.env["KVCACHED_IPC_NAME"].replace("$(POD_UID)", uid)
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", ipc)
            assert ipc.endswith(f"-{uid}")
            assert len(f"/tmp/kvcached-tp-{ipc}-12345678/pp1/w15.sock") <= 108
            made.add(ipc)
        # The container's own /tmp holds the sockets.
        assert not engine.container["securityContext"].get("readOnlyRootFilesystem")
        assert engine.volume("/dev/shm")["emptyDir"]["medium"] == "Memory"
        assert not engine.pod.get("hostIPC")
    assert len(made) == 2

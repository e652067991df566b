"""What the header of each valid case says must hold, beyond what other tests name."""

from __future__ import annotations

import re

from tests.plan.support import case, raw_case, render

from kvserving_operator.api.types import Quantity
from kvserving_operator.connectors import supports_hybrid

GI = 2**30


def test_01_minimal() -> None:
    plan = case("01")
    assert plan.prefill.child("NixlConnector")["kv_role"] == "kv_producer"
    assert plan.decode.transfer is not None
    assert plan.decode.transfer["kv_role"] == "kv_consumer"
    tier = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]
    assert tier["cpu_bytes_to_use"] == 64 * GI
    assert [engine.env["KVSERVING_ROLE"] for engine in plan.engines] == ["prefill", "decode"]
    assert plan.decode.transfer["kv_connector"] == "NixlConnector"
    assert plan.one("StatefulSet", "qwen-store")["spec"]["replicas"] == 1
    assert plan.router.args[0] == "smg"
    assert {engine.env["PYTHONHASHSEED"] for engine in plan.engines} == {"0"}
    assert Quantity(plan.prefill.volume("/dev/shm")["emptyDir"]["sizeLimit"]).bytes == 66 * GI
    assert Quantity(plan.prefill.container["resources"]["limits"]["memory"]).bytes > 72 * GI
    assert (plan.prefill.deployment["spec"]["replicas"], plan.decode.deployment["spec"]["replicas"]) == (1, 2)


def test_02_unequal_tensor_parallelism_and_long_names() -> None:
    plan = case("02")
    assert plan.prefill.container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert plan.decode.container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert plan.prefill.flag("--block-size") == plan.decode.flag("--block-size")
    served = raw_case("02")["spec"]["model"]["name"]
    assert len(served) == 70
    assert {engine.flag("--served-model-name") for engine in plan.engines} == {served}
    names = [o["metadata"]["name"] for o in plan.all("Deployment")]
    assert len(set(names)) == 3
    assert names == [o["metadata"]["name"] for o in case("02").all("Deployment")]


def test_03_hybrid_model() -> None:
    plan = case("03")
    for engine in plan.engines:
        assert engine.flag("--no-disable-hybrid-kv-cache-manager") == "true"
        assert engine.env["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
        assert engine.transfer is not None
        assert engine.transfer["kv_load_failure_policy"] == "fail"
        assert "VLLM_KV_CACHE_LAYOUT" not in engine.env
    assert all(supports_hybrid(child["kv_connector"]) for child in plan.prefill.children)


def test_04_kvcached() -> None:
    plan = case("04")
    names = set()
    for engine in plan.engines:
        env = engine.env
        assert (env["ENABLE_KVCACHED"], env["KVCACHED_AUTOPATCH"]) == ("true", "1")
        assert env["KVCACHED_CONTIGUOUS_LAYOUT"] == "false"
        assert env["KVCACHED_MAX_CACHED_TOKENS"] == "16000"
        assert env["POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
        order = [variable["name"] for variable in engine.container["env"]]
        assert order.index("POD_UID") < order.index("KVCACHED_IPC_NAME")
        for uid in ("0b7c3a52-9c3a-4c9e-9a3e-0123456789ab", "1b7c3a52-9c3a-4c9e-9a3e-0123456789ab"):
            ipc = env["KVCACHED_IPC_NAME"].replace("$(POD_UID)", uid)
            assert re.fullmatch(r"[a-z0-9-]{1,64}", ipc)
            names.add(ipc)
        assert engine.volume("/dev/shm")["emptyDir"]["medium"] == "Memory"
        assert engine.flag("--gpu-memory-utilization") is None
        assert "VLLM_USE_V2_MODEL_RUNNER" not in env
        assert "0.30.0" in engine.container["image"]
        assert "kvcached" in engine.container["image"]
    assert len(names) == 2


def test_04_the_ipc_name_of_a_long_object_fits() -> None:
    spec = {"prefill": {}, "decode": {}, "kvcached": {"enabled": True}}
    ipc = render(spec, name="a" * 40).prefill.env["KVCACHED_IPC_NAME"]
    assert len(ipc.replace("$(POD_UID)", "0" * 36)) <= 64


def test_05_valkey() -> None:
    plan = case("05")
    store = plan.one("StatefulSet", "qwen-valkey-store")
    (container,) = store["spec"]["template"]["spec"]["containers"]
    args = container["args"]
    assert int(args[args.index("--maxmemory") + 1]) == 100 * GI * 85 // 100
    assert args[args.index("--maxmemory-policy") + 1] == "allkeys-lru"
    assert int(container["resources"]["limits"]["memory"]) == 100 * GI
    assert [s.name for s in plan.plan.generated_secrets] == ["qwen-valkey-keys", "qwen-valkey-store"]
    reference = plan.prefill.env["KVSERVING_STORE_PASSWORD"]["secretKeyRef"]
    assert reference == {"name": "qwen-valkey-store", "key": "password"}
    (tier,) = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["urls"] == ["redis://qwen-valkey-store-0.qwen-valkey-store.default.svc:6379"]
    for engine in plan.engines:
        extra = engine.child("TieredOffloadConnector")["kv_connector_extra_config"]
        assert extra["cpu_bytes_to_use"] == 48 * GI
        # Nothing makes the engine's start depend on the store.
        assert [c["name"] for c in engine.pod["initContainers"]] == ["connector"]


def test_05_shards_share_the_size() -> None:
    spec = raw_case("12")["spec"]
    plan = render(spec)
    store = plan.one("StatefulSet", "qwen-store")
    (container,) = store["spec"]["template"]["spec"]["containers"]
    assert store["spec"]["replicas"] == 3
    assert int(container["resources"]["limits"]["memory"]) == 200 * GI // 3
    (tier,) = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert len(set(tier["urls"])) == 3


def test_06_filesystem() -> None:
    plan = case("06")
    claim = plan.one("PersistentVolumeClaim", "qwen-pvc-l2")["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["storageClassName"] == "shared-rwx"
    assert claim["resources"]["requests"]["storage"] == "1Ti"
    mounted = plan.prefill.volume("/var/lib/kvserving/l2")
    assert mounted["persistentVolumeClaim"] == {"claimName": "qwen-pvc-l2"}
    assert "l2" not in {volume["name"] for volume in plan.decode.pod["volumes"]}
    (tier,) = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["max_bytes"] == 2**40 * 80 // 100
    assert plan.prefill.pod["securityContext"]["runAsNonRoot"] is True
    assert plan.prefill.pod["securityContext"]["fsGroup"] > 0


def test_08_external() -> None:
    plan = case("08")
    assert not plan.kinds() & {"StatefulSet", "PersistentVolumeClaim"}
    (tier,) = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["urls"] == ["redis://kv-store.cache.svc:6379"]
    reference = plan.prefill.env["KVSERVING_STORE_PASSWORD"]["secretKeyRef"]
    assert reference == {"name": "kv-store-auth", "key": "password"}
    assert "KVSERVING_STORE_PASSWORD" not in plan.decode.env


def test_09_rdma() -> None:
    plan = case("09")
    for engine in plan.engines:
        assert engine.container["resources"]["limits"]["rdma/hca"] == "1"
        assert engine.container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        assert {"cuda_copy", "cuda_ipc", "rc"} <= set(engine.env["UCX_TLS"].split(","))
    assert plan.prefill.env["UCX_TLS"] == plan.decode.env["UCX_TLS"]
    assert plan.prefill.pod["terminationGracePeriodSeconds"] == 3 + 300 + 60 + 10


def test_10_aggregated() -> None:
    plan = case("10")
    assert len(plan.engines) == 1
    engine = plan.decode
    assert engine.transfer is not None
    assert engine.transfer["kv_connector"] == "TieredOffloadConnector"
    assert engine.transfer["kv_role"] == "kv_both"
    assert engine.transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] == 64 * GI
    assert not [name for name in engine.env if "NIXL" in name or name.startswith("UCX")]
    assert "annotations" not in engine.template["metadata"]
    assert engine.env["KVSERVING_ROLE"] == "aggregated"
    assert not [arg for arg in plan.router.args if "prefill" in arg or arg == "--pd-disaggregation"]


def test_11_gated_model_with_adapters() -> None:
    plan = case("11")
    adapters = {tuple(engine.flags("--lora-modules")[0].values) for engine in plan.engines}
    assert adapters == {("sql=example-org/llama-sql-lora", "support=example-org/llama-support-lora")}
    for engine in plan.engines:
        assert engine.env["HF_TOKEN"] == {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}
        assert engine.env["HF_HOME"] == "/var/cache/kvserving/model"
        assert engine.volume("/var/cache/kvserving/model")["persistentVolumeClaim"]["claimName"] == "llama-gated-model"
        assert engine.flag("--revision") == "0123456789abcdef0123456789abcdef01234567"
        assert engine.flag("--served-model-name") == "llama"
    assert plan.router.args[0] == "vllm-router"
    (tier,) = plan.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert set(tier) == {"type", "store_config", "prefix"}  # vLLM's own tier knows these
    assert tier["type"] == "obj"
    store = {"bucket": "kv-cache", "endpoint_override": "s3.amazonaws.com", "scheme": "https"}
    assert (tier["store_config"], tier["prefix"]) == (store, "llama")
    assert plan.prefill.env["AWS_SECRET_ACCESS_KEY"]["secretKeyRef"]["name"] == "s3-credentials"
    assert "StoreNotBounded" in {notice.reason.value for notice in plan.plan.notices}
    moved = raw_case("11")
    moved["spec"]["model"]["revision"] = "f" * 40
    assert render(moved["spec"]).plan.revision != render(raw_case("11")["spec"]).plan.revision


def test_11_another_endpoint_is_host_and_scheme() -> None:
    spec = raw_case("11")["spec"]
    spec["cache"]["l2"] |= {"endpoint": "http://minio.store.svc:9000", "region": "eu", "tenant": "a"}
    (tier,) = render(spec).prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["store_config"] == {
        "bucket": "kv-cache",
        "endpoint_override": "minio.store.svc:9000",
        "scheme": "http",
        "region": "eu",
    }
    assert tier["prefix"] == "llama/a"

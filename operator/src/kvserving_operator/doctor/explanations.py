"""Why each flag, variable and connector field of the engines is there, and which field of the object it follows.

One table with ``explanations_service`` for router and store. ``tests/doctor/test_explanations.py`` renders the
examples and every field of the spec, and fails for a setting without an entry as for an entry without a setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Component = Literal["engine", "router", "store"]
Kind = Literal["flag", "env", "connector"]


@dataclass(frozen=True)
class Explanation:
    """The reason of one setting. ``field`` is the path that decides it, with ``{role}``; empty where none does."""

    why: str
    field: str = ""


Key = tuple[Component, Kind, str]
Table = dict[str, Explanation]


def _same(why: str, field: str, *names: str) -> Table:
    return {name: Explanation(why, field) for name in names}


ENGINE_FLAGS: Table = {
    "--host": Explanation(
        "binds where router and probes reach the engine; the guard needs a port that only peers of the object reach"
    ),
    "--port": Explanation(
        "one HTTP port for probes, router and metrics; a --port of yours is taken and followed by all of them",
        "spec.engine.args, spec.{role}.args",
    ),
    "--model": Explanation("equal in both roles: KV of one model is useless to another", "spec.model.uri"),
    "--served-model-name": Explanation(
        "the name in requests, which router and /v1/models must know alike", "spec.model.name"
    ),
    "--revision": Explanation(
        "pins the weights; vLLM's handshake does not compare them, so two revisions would exchange wrong KV unseen",
        "spec.model.revision",
    ),
    "--load-format": Explanation("s3 weights are streamed, not downloaded first", "spec.model.uri"),
    "--enable-lora": Explanation("adapters are named", "spec.model.loras"),
    "--max-loras": Explanation("all adapters of the object fit at once", "spec.model.loras"),
    "--lora-modules": Explanation(
        "name and place of each adapter, the same in both roles, so that their hashes are", "spec.model.loras"
    ),
    "--tensor-parallel-size": Explanation(
        "devices that share each layer; may differ between the roles", "spec.{role}.parallelism.tensor"
    ),
    "--nnodes": Explanation("nodes that one engine spans, a pod on each", "spec.{role}.nodes"),
    "--node-rank": Explanation("which of its pods this is: the leader, which has the API, is 0", "spec.{role}.nodes"),
    "--master-addr": Explanation(
        "where the pods of an engine find each other: their leader, as LeaderWorkerSet names it", "spec.{role}.nodes"
    ),
    "--pipeline-parallel-size": Explanation("stages of layers", "spec.{role}.parallelism.pipeline"),
    "--data-parallel-size": Explanation(
        "copies in one pod; each has a side channel and a tier of its own", "spec.{role}.parallelism.data"
    ),
    "--enable-expert-parallel": Explanation("experts are spread over the ranks", "spec.{role}.parallelism.expert"),
    "--block-size": Explanation("tokens per KV block, equal in both roles", "spec.engine.kv.blockSize"),
    "--kv-cache-dtype": Explanation(
        "stored type of KV, equal in both roles: vLLM's handshake refuses a difference", "spec.engine.kv.dtype"
    ),
    "--prefix-caching-hash-algo": Explanation(
        "blocks get the same hash in every process and version, or the tiers and the router find none of them"
    ),
    **_same(
        "the hybrid memory allocator must be on, or off, in both roles; one connector without it would switch it off "
        "in its own engine alone, and every handshake would fail",
        "spec.engine.kv.hybrid",
        "--no-disable-hybrid-kv-cache-manager",
        "--disable-hybrid-kv-cache-manager",
    ),
    "--kv-transfer-config": Explanation(
        "the connectors; without it on both roles every answer is right and each prompt is computed twice",
        "spec.prefill, spec.transfer, spec.cache",
    ),
    "--middleware": Explanation(
        "the guard: takes transfer parameters that no prefill engine of this object signed out of requests; one "
        "malformed value can end a decode engine"
    ),
    "--shutdown-timeout": Explanation(
        "running requests finish; vLLM's default of 0 aborts them with the stop signal", "spec.{role}.drainTimeout"
    ),
    "--disable-access-log-for-endpoints": Explanation(
        "probes and scrapes come every few seconds and would hide the lines that matter"
    ),
}

ENGINE_ENV: Table = {
    "KVSERVING_NAME": Explanation("the connector signs with the object's name", "metadata.name"),
    "KVSERVING_ROLE": Explanation("which side of the transfer this engine is", "spec.prefill"),
    "KVSERVING_REVISION": Explanation(
        "hash of all that prefill and decode must share; a handoff of another revision is refused"
    ),
    "KVSERVING_LEASE_SECONDS": Explanation("how long the drain waits for KV not yet fetched", "spec.transfer.lease"),
    "KVSERVING_SIGNING_KEY_FILE": Explanation("the key of handoffs and receipts: a file, never a value"),
    "KVSERVING_BIND_ADDRESS": Explanation("what --host says; the executor gives each pod an address of its own"),
    "PYTHONHASHSEED": Explanation(
        "equal in every engine; with a random one prefix hashes differ and no tier ever hits", "spec.engine.kv.hashSeed"
    ),
    **_same("the pod's own name and address, for variables that are built from them", "", "POD_IP", "POD_NAME"),
    "POD_UID": Explanation("tells two engines of one address apart after a restart"),
    "VLLM_HOST_IP": Explanation(
        "by it the pods of an engine reach each other; vLLM would take the address of the way to the internet",
        "spec.{role}.nodes",
    ),
    "VLLM_NIXL_SIDE_CHANNEL_HOST": Explanation(
        "bound and told to peers; vLLM's default is localhost, and decode would dial itself"
    ),
    "VLLM_NIXL_SIDE_CHANNEL_PORT": Explanation(
        "first port of the handshake, one more per data-parallel rank; each role has its own on a host network",
        "spec.{role}.template.spec.hostNetwork",
    ),
    "VLLM_EC_SIDE_CHANNEL_PORT": Explanation(
        "vLLM's default, 5601, is the NIXL port of rank 1", "spec.{role}.template.spec.hostNetwork"
    ),
    "UCX_TLS": Explanation(
        "transports of the transfer, alike in both roles; those of CUDA must be named, or device memory is not seen",
        "spec.transfer.rdma, spec.engine.device",
    ),
    "UCX_NET_DEVICES": Explanation("one machine: transfers stay on the loopback device", "spec.engine.device"),
    "VLLM_SSM_CONV_STATE_LAYOUT": Explanation(
        "the layout of recurrent state that NIXL can move; models without such layers ignore it", "spec.prefill"
    ),
    "VLLM_CPU_KVCACHE_SPACE": Explanation("GiB of KV of an engine without a GPU", "spec.engine.device"),
    "VLLM_USE_V2_MODEL_RUNNER": Explanation(
        "the model runner that kvcached patches in this vLLM", "spec.kvcached.enabled"
    ),
    **_same("elastic device memory", "spec.kvcached.enabled", "ENABLE_KVCACHED", "KVCACHED_AUTOPATCH"),
    "KVCACHED_CONTIGUOUS_LAYOUT": Explanation(
        "NIXL cannot register kvcached's contiguous layout", "spec.kvcached.enabled"
    ),
    "KVCACHED_IPC_NAME": Explanation(
        "unique per engine; two of one name would share their memory", "spec.kvcached.enabled"
    ),
    "KVCACHED_MAX_CACHED_TOKENS": Explanation("bound of its prefix cache", "spec.kvcached.maxCachedTokens"),
    **_same(
        "an unprivileged user without a home or a name stops the caches of torch and vLLM",
        "",
        "HOME",
        "USER",
        "LOGNAME",
    ),
    "PYTHONPATH": Explanation("where the init container puts the connector", "spec.engine.connector"),
    "HF_HOME": Explanation("weights stay on the claim between restarts", "spec.model.cache"),
    "HF_TOKEN": Explanation("the hub's token, by reference only", "spec.model.secretRef"),
    **_same(
        "keys of the bucket, by reference only",
        "spec.model.secretRef, spec.cache.l2.secretRef",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ),
    "MOONCAKE_CONFIG_PATH": Explanation("settings of Mooncake's client", "spec.cache.l2"),
    **_same(
        "credentials of the store, by reference only: no argument and no status shows them",
        "spec.cache.l2.secretRef",
        "KVSERVING_STORE_PASSWORD",
        "KVSERVING_STORE_USERNAME",
        "KVSERVING_STORE_CA",
    ),
}

ENGINE_CONNECTOR: Table = {
    "kv_connector": Explanation(
        "the class: NixlConnector moves KV between the roles, MultiConnector holds it with tiers beside it",
        "spec.prefill, spec.cache",
    ),
    "kv_connector_module_path": Explanation(
        "where vLLM finds our class: its own of that name would sign nothing and give no receipts"
    ),
    "kv_role": Explanation(
        "prefill produces, decode consumes; a MultiConnector and tiers do both, and its children carry the roles",
        "spec.prefill",
    ),
    "kv_buffer_device": Explanation("where transferred KV lies", "spec.engine.device"),
    "kv_load_failure_policy": Explanation(
        "what becomes of a request whose KV did not arrive; written out, because vLLM's default has changed",
        "spec.transfer.onFailure",
    ),
    "kv_lease_duration": Explanation(
        "prefill keeps unfetched KV so long; shorter than a pause of decode, and blocks are read after reuse",
        "spec.transfer.lease",
    ),
    "staging_bytes": Explanation(
        "memory of each rank in which scattered blocks are gathered into large transfers; 0 is off, as it is where the "
        "roles are divided differently",
        "spec.transfer.stagingMemory",
    ),
    "load_weight": Explanation(
        "factor on hit tokens in the choice where to load from; NIXL's is so large that a paired request always "
        "loads from its prefill engine",
        "spec.cache.connectors",
    ),
    "cpu_bytes_to_use": Explanation(
        "L1 of one data-parallel rank: size over the ranks of the pod; with L2 alone, its bounce pool",
        "spec.cache.l1.size, spec.{role}.parallelism.data",
    ),
    "eviction_policy": Explanation("what leaves L1 first", "spec.cache.l1.policy"),
    "offload_prompt_only": Explanation(
        "decode keeps answers too: an answer is part of the next turn's prompt", "spec.cache.l1.roles"
    ),
    "spec_name": Explanation("vLLM's tiering, with a shared store behind L1", "spec.cache.l2"),
    "loads": Explanation("auto takes a hit only where loading was measured to be faster", "spec.cache.l2.loads"),
    "load_timeout_s": Explanation("a load that takes longer is a miss", "spec.cache.l2.loadTimeout"),
    "load_async": Explanation("loads do not hold up the scheduler", "spec.cache.l2.type"),
    "lookup_async": Explanation("lookups do not hold up the scheduler", "spec.cache.l2.type"),
    "secondary_tiers.type": Explanation(
        "SharedStoreTier is ours, for every store but buckets; obj is vLLM's for those", "spec.cache.l2.type"
    ),
    "secondary_tiers.module_path": Explanation("where vLLM finds SharedStoreTier", "spec.cache.l2.type"),
    "secondary_tiers.locality": Explanation("the store is not in this engine's host memory", "spec.cache.l2"),
    "secondary_tiers.urls": Explanation("the shards of the store", "spec.cache.l2.url, spec.cache.l2.replicas"),
    "secondary_tiers.load_timeout_s": Explanation(
        "as above, for the store's own deadline", "spec.cache.l2.loadTimeout"
    ),
    "secondary_tiers.share_across_versions": Explanation(
        "whether another vLLM minor version finds these objects", "spec.cache.l2.shareAcrossVersions"
    ),
    "secondary_tiers.tenant": Explanation("keeps the objects of tenants apart", "spec.cache.l2.tenant"),
    "secondary_tiers.max_bytes": Explanation(
        "bound of a folder: maxUsage of size, shared by all engines", "spec.cache.l2.size, spec.cache.l2.maxUsage"
    ),
    "secondary_tiers.prefix": Explanation(
        "folder in the bucket, tenant last", "spec.cache.l2.url, spec.cache.l2.tenant"
    ),
    "secondary_tiers.store_config.bucket": Explanation("the bucket", "spec.cache.l2.url"),
    **_same(
        "address of the S3 service",
        "spec.cache.l2.endpoint, spec.cache.l2.region",
        "secondary_tiers.store_config.endpoint_override",
        "secondary_tiers.store_config.scheme",
        "secondary_tiers.store_config.region",
    ),
}

"""Flags and variables of vLLM that users may not set, or not everywhere: reason and way out of each.

The only list of them. ``rules_args`` and ``rules_env`` make the rules of the CRD from it,
``profile`` takes from it what both roles must share, and the plan's checks what rules cannot
see: beginnings of flags and the variables in pod templates.

vLLM takes a flag as ``--a-b`` or ``--a_b``, its value joined by ``=`` or as the next
argument, and single keys of JSON values as ``--a-b.key``. ``UCX_*`` and ``NCCL_*`` belong to
the user: fabrics differ. Only ``UCX_TLS`` must be equal in both roles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Section = Literal["engine", "prefill", "decode"]
SECTIONS: tuple[Section, ...] = ("engine", "prefill", "decode")

Allowed = Literal["nowhere", "engine", "without kvcached"]
"""Where a flag or variable may be written: ``engine`` is ``spec.engine`` only, so for both roles alike."""


@dataclass(frozen=True)
class Flag:
    """A flag that users may not set everywhere, and ``why`` (what follows its name in a sentence).

    ``name`` is without dashes; a final ``*`` stands for any ending. ``short`` is a pattern of the
    one-dash forms. A ``switch`` also exists as ``--no-…``. ``least`` is the shortest beginning
    that vLLM's parser takes for the flag, where rules are to catch these too.
    """

    name: str
    why: str
    short: str | None = None
    switch: bool = False
    least: str | None = None
    allowed: Allowed = "nowhere"

    @property
    def shown(self) -> str:
        """The flag as users write it."""
        return f"--{self.name}"

    @property
    def reason(self) -> str:
        """A sentence for the user: the flag, why it is refused and the way out."""
        return f"{self.shown} {self.why}"

    @property
    def pattern(self) -> str:
        """RE2 pattern that an argument with this flag matches."""
        stem = self.least or self.name.removesuffix("*")
        body = "--" + ("(no[-_])?" if self.switch else "") + stem.replace("-", "[-_]")
        if stem != self.name:
            body += "[-_a-z0-9]*"
        if self.short:
            body = f"({body}|-{self.short})"
        return f"^{body}([=. ]|$)"

    def matches(self, argument: str) -> bool:
        """Whether the rules find this flag in ``argument``."""
        return re.search(self.pattern, argument) is not None

    def begins_with(self, written: str) -> bool:
        """Whether ``written`` (normal form, ``--a-b``) is this flag or, as vLLM takes it, a beginning of it."""
        stem = "--" + self.name.removesuffix("*")
        if self.name.endswith("*") and written.startswith(stem):
            return True
        return len(written) > len("--") and stem.startswith(written)

    def refused(self, section: Section, *, kvcached: bool) -> bool:
        """Whether the flag may not be in the ``args`` of ``section``."""
        return _refused(self.allowed, section, kvcached)


@dataclass(frozen=True)
class Variables:
    """Variables that users may not set everywhere, and ``why`` (what follows the name in a sentence).

    They are those in ``names`` and all that begin with one of ``prefixes``. Where ``value``
    is given, only a literal value that holds this RE2 pattern is refused.
    """

    name: str
    why: str
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    value: str | None = None
    allowed: Allowed = "nowhere"

    @property
    def shown(self) -> str:
        """The variables in a sentence."""
        return ", ".join((*self.names, *(f"{prefix}*" for prefix in self.prefixes)))

    def matches(self, name: str, value: str | None) -> bool:
        """Whether the rules find one of these in a variable; ``value`` is its literal value."""
        if name not in self.names and not name.startswith(self.prefixes):
            return False
        return self.value is None or (value is not None and re.search(self.value, value) is not None)

    def refused(self, section: Section) -> bool:
        """Whether the variables may not be in the ``env`` of ``section``."""
        return _refused(self.allowed, section, kvcached=False)


def _refused(allowed: Allowed, section: Section, kvcached: bool) -> bool:
    if allowed == "without kvcached":
        return kvcached
    return allowed == "nowhere" or section != "engine"


_PARALLEL = "is set by the operator: use spec.prefill.parallelism and spec.decode.parallelism"
_NODES = "is set by the operator for replicas of several nodes: use spec.prefill.nodes and spec.decode.nodes"
_TLS = "is not allowed: router and probes speak HTTP to the engines; end TLS at the gateway (spec.router.gateway)"
_OFFLOAD = "is not allowed: it would replace the operator's connector and end transfers; use spec.cache.l1.size"
_ADAPTERS = "is set by the operator: use spec.model.loras"
_SHARED = "must be equal in both roles, or KV of one role is useless to the other: move it to spec.engine"
_ELASTIC = (
    "cannot be combined with spec.kvcached.enabled: kvcached sizes GPU memory itself; "
    "remove the flag or switch kvcached off"
)


def _shared(name: str, *, short: str | None = None, switch: bool = False) -> Flag:
    return Flag(name, f"{_SHARED}.args", short=short, switch=switch, allowed="engine")


TRANSFER_CONFIG = Flag(
    "kv-transfer-config",
    "is set by the operator: another one would replace NIXL and silently end transfers; remove it, "
    "tiers belong to spec.cache and further connectors to spec.cache.connectors",
    least="kv-t",
)

FLAGS: tuple[Flag, ...] = (
    TRANSFER_CONFIG,
    Flag("kv-offloading-size", _OFFLOAD, least="kv-offloading-s"),
    Flag("kv-offloading-backend", _OFFLOAD, least="kv-offloading-b"),
    Flag("disable-hybrid-kv-cache-manager", "is set by the operator: use spec.engine.kv.hybrid", switch=True),
    Flag("block-size", "is set by the operator, equally for both roles: use spec.engine.kv.blockSize"),
    Flag("kv-cache-dtype", "is set by the operator, equally for both roles: use spec.engine.kv.dtype"),
    Flag(
        "prefix-caching-hash-algo",
        "is set by the operator: engines and tiers find blocks by the same hash only; remove it",
    ),
    Flag("model", "is set by the operator: use spec.model.uri"),
    Flag("served-model-name", "is set by the operator: use spec.model.name"),
    Flag("revision", "is set by the operator: use spec.model.revision"),
    Flag("lora-modules", _ADAPTERS),
    Flag("max-loras", _ADAPTERS),
    Flag("enable-lora", _ADAPTERS, switch=True),
    Flag("tensor-parallel-size", _PARALLEL, short="tp"),
    Flag("pipeline-parallel-size", _PARALLEL, short="pp"),
    Flag("data-parallel-*", _PARALLEL, short="dp[a-z]?", switch=True),
    Flag("enable-expert-parallel", _PARALLEL, short="ep", switch=True),
    Flag("nnodes", _NODES, short="n[0-9]*"),
    Flag("node-rank", _NODES, short="r[0-9]*"),
    Flag("master-addr", _NODES),
    Flag("master-port", _NODES),
    Flag("headless", _NODES),
    Flag("device", "is set by the operator: use spec.engine.device"),
    Flag("host", "is set by the operator: engines listen on the address that router and peers know; remove it"),
    Flag("uds", "is not allowed: router and peers reach engines over the network only; remove it"),
    Flag("grpc", "is not allowed: router and guard speak HTTP to the engines; remove it"),
    Flag("root-path", "is not allowed: router and probes know no path in front of the engines' own; remove it"),
    Flag("ssl-*", _TLS),
    Flag("shutdown-timeout", "is set by the operator: use spec.prefill.drainTimeout and spec.decode.drainTimeout"),
    Flag("config", "is not allowed: the flags in a file cannot be checked; write them out in args"),
    Flag(
        "api-key",
        "is not allowed: arguments are visible to everyone; put the key that clients send into a Secret "
        "and name it in spec.router.apiKeySecretRef",
    ),
    Flag(
        "hf-token",
        "is not allowed: arguments are visible to everyone; put the token into a Secret "
        "and name it in spec.model.secretRef",
    ),
    _shared("dtype"),
    _shared("quantization", short="q[a-z0-9_]*"),
    _shared("quantization-config"),
    _shared("attention-backend"),
    _shared("attention-config", short="ac"),
    _shared("chat-template"),
    _shared("code-revision"),
    _shared("config-format"),
    _shared("dcp-kv-cache-interleave-size"),
    _shared("decode-context-parallel-size", short="dcp"),
    _shared("disable-sliding-window", switch=True),
    _shared("enable-prefix-caching", switch=True),
    _shared("hf-config-path"),
    _shared("hf-overrides"),
    _shared("kv-cache-dtype-skip-layers"),
    _shared("load-format"),
    _shared("mamba-*"),
    _shared("max-lora-rank"),
    _shared("mm-processor-kwargs"),
    _shared("model-impl"),
    _shared("prefill-context-parallel-size", short="pcp"),
    _shared("rope-scaling"),
    _shared("rope-theta"),
    _shared("tokenizer"),
    _shared("tokenizer-mode"),
    _shared("tokenizer-revision"),
    Flag("gpu-memory-utilization", _ELASTIC, allowed="without kvcached"),
    Flag("kv-cache-memory-bytes", _ELASTIC, allowed="without kvcached"),
)
"""Every flag that is refused somewhere."""

PORT = Flag("port", "is given more than once")
"""The users' flag that all of the plan follows."""

KV_VARIABLES = Variables(
    "engine choices",
    f"{_SHARED}.env",
    ("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_MLA_DISABLE"),
    allowed="engine",
)
"""Variables that change the KV."""

VARIABLES: tuple[Variables, ...] = (
    Variables(
        "side channel",
        "is set by the operator: it is the pod's own address, from status.podIP; remove it",
        ("VLLM_NIXL_SIDE_CHANNEL_HOST",),
    ),
    Variables(
        "side channel port",
        "is set by the operator: each role and rank has a port of its own, and the same port twice cannot be bound; "
        "remove it",
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_EC_SIDE_CHANNEL_PORT"),
    ),
    Variables(
        "address",
        "is not allowed: engines find the pod's address and free ports themselves; remove it",
        ("VLLM_HOST_IP", "VLLM_PORT"),
    ),
    Variables(
        "lease",
        "is set by the operator: use spec.transfer.lease",
        ("VLLM_NIXL_ABORT_REQUEST_TIMEOUT",),
    ),
    Variables(
        "layout",
        "is set by the operator, equally for both roles, to what the transfer needs; remove it",
        ("VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT"),
    ),
    Variables("hash seed", "is set by the operator: use spec.engine.kv.hashSeed", ("PYTHONHASHSEED",)),
    Variables(
        "kvcached",
        "is set by the operator: NIXL cannot register kvcached's contiguous layout, and each engine needs an IPC name "
        "of its own; use spec.kvcached",
        ("ENABLE_KVCACHED",),
        ("KVCACHED_",),
    ),
    Variables(
        "operator",
        "is set by the operator; choose another name",
        ("POD_IP", "POD_NAME", "POD_UID"),
        ("KVSERVING_",),
    ),
    Variables(
        "home",
        "is set by the operator: the engine's user and folders come with its pod; remove it",
        ("HOME", "USER", "LOGNAME", "VLLM_CONFIG_ROOT"),
    ),
    Variables("mooncake", "is set by the operator: use spec.cache.l2", ("MOONCAKE_CONFIG_PATH",)),
    Variables(
        "python path",
        "is set by the operator, which adds its connector there: put further packages into the image "
        "and name it in spec.engine.image",
        ("PYTHONPATH",),
    ),
    Variables(
        "plugins",
        "is set by the operator: a list of plugins leaves out those that are not in it; remove it",
        ("VLLM_PLUGINS",),
    ),
    Variables(
        "engine key",
        "is not allowed: the router could not reach the engine; name the Secret with the clients' key "
        "in spec.router.apiKeySecretRef",
        ("VLLM_API_KEY",),
    ),
    Variables(
        "allocator",
        "with expandable_segments:True is refused by vLLM together with any connector; remove it",
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        value="expandable_segments *: *[Tt]rue",
    ),
    Variables(
        "secrets",
        "holds a secret in plain text: use valueFrom.secretKeyRef, or spec.model.secretRef for the model's token",
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "REDISCLI_AUTH"),
        value="[!-~]",
    ),
    Variables(
        "transports",
        "must be equal in both roles, or they have no transport in common: move it to spec.engine.env",
        ("UCX_TLS",),
        allowed="engine",
    ),
    KV_VARIABLES,
)
"""Every variable that is refused somewhere."""

"""Typed tiers and weights as vLLM's ``--kv-transfer-config``, for each role.

Prefill and decode always carry NIXL. With tiers, a MultiConnector holds NIXL, the derived
tiers and further connectors, in this order; its own role is ``kv_both`` because vLLM's
scheduler reads the outer role, and the children carry theirs. Only keys that the engine
version accepts are written, and no child carries an engine id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .api.v1alpha1 import L2, KVServingSpec, RoleName
from .engines.catalog import UPSTREAM_CONNECTORS, EngineBuild

NIXL = "NixlConnector"
MULTI = "MultiConnector"
TIERED = "TieredOffloadConnector"
WORKER = "WorkerCacheConnector"
MOONCAKE = "MooncakeStoreConnector"

MODULES = {
    NIXL: "kvserving_connector.vllm.nixl",
    MULTI: "kvserving_connector.vllm.multi",
    TIERED: "kvserving_connector.vllm.offload",
    WORKER: "kvserving_connector.vllm.worker_cache",
}
OWNERS = {TIERED: "scheduler", WORKER: "worker"}
"""The tiers of ours, and who owns L1 in each, as ``cache.l1.owner`` names it."""

STORE_TIER_MODULE = "kvserving_connector.vllm.tier"

TRANSFER_PROTOCOL = 1
"""Counted up with a connector that does not understand its predecessor's handoffs, or makes ones that it would not.

It is part of the profile, so that such a connector comes as a new revision beside the one that serves; any other
replaces the engines in place. ``tests/connector/test_transfer_protocol.py`` holds the connector against the record.
"""

# A request that the router paired must load from its prefill engine, whatever a tier holds.
NIXL_WEIGHT = 1_000_000
TIER_WEIGHT = 1
BOUNCE_POOL_BYTES = 2 * 2**30


def known(name: str) -> bool:
    """Whether a connector of this name exists, ours or vLLM's."""
    return name in MODULES or name in UPSTREAM_CONNECTORS


def supports_hybrid(name: str) -> bool:
    """Whether the connector supports vLLM's hybrid memory allocator; unknown names do not."""
    return name in MODULES or UPSTREAM_CONNECTORS.get(name, False)


def l2_type(l2: L2 | None) -> str:
    """The kind of store, with the default: valkey where a size is given, otherwise none."""
    if l2 is None:
        return "none"
    return l2.type or ("valkey" if l2.size is not None else "none")


def roles_with_l1(spec: KVServingSpec) -> tuple[RoleName, ...]:
    """Roles that have the L1 tier. Without a prefill role it is always decode."""
    if spec.cache.l1 is None:
        return ()
    return spec.cache.l1.roles if spec.prefill is not None else ("decode",)


def roles_with_l2(spec: KVServingSpec) -> tuple[RoleName, ...]:
    """Roles that use the L2 tier. Without a prefill role it is always decode."""
    if spec.cache.l2 is None or l2_type(spec.cache.l2) == "none":
        return ()
    return spec.cache.l2.roles if spec.prefill is not None else ("decode",)


def tier_name(spec: KVServingSpec, role: RoleName) -> str:
    """Class of the tier that a role has if it has one.

    The workers own it where several hosts make one engine, and under kvcached: they hold the blocks that they copy,
    while the scheduler's tier copies freed ones, whose memory kvcached takes away.
    """
    owner = spec.cache.l1.owner if spec.cache.l1 is not None else "auto"
    section = spec.prefill if role == "prefill" else spec.decode
    workers = spec.kvcached.enabled or (section is not None and section.nodes > 1)
    return WORKER if owner == "worker" or (owner == "auto" and workers) else TIERED


def l1_owners(spec: KVServingSpec) -> tuple[str, ...]:
    """Who owns L1 (the values of ``OWNERS``) in the roles that have it, each once."""
    return tuple(dict.fromkeys(OWNERS[tier_name(spec, role)] for role in roles_with_l1(spec)))


def tier_children(spec: KVServingSpec, role: RoleName | None = None) -> tuple[str, ...]:
    """Names of the connectors beside NIXL: derived tiers, then further ones, for one role or for any.

    One role may have the scheduler's tier and the other the workers'.
    """
    roles: tuple[RoleName, ...] = ("prefill", "decode") if role is None else (role,)
    l1, l2 = roles_with_l1(spec), roles_with_l2(spec)
    mooncake = l2_type(spec.cache.l2) == "mooncake"
    names = [tier_name(spec, each) for each in roles if each in l1 or (each in l2 and not mooncake)]
    if mooncake and any(each in l2 for each in roles):
        names.append(MOONCAKE)
    derived = {NIXL, *OWNERS, *names, MOONCAKE if mooncake else NIXL}
    names += [connector.name for connector in spec.cache.connectors if connector.name not in derived]
    return tuple(dict.fromkeys(names))


def weights(spec: KVServingSpec) -> dict[str, int]:
    """Weight of every connector of the object: the user's, or the default."""
    names = (*((NIXL,) if spec.prefill is not None else ()), *tier_children(spec))
    given = {connector.name: connector.weight for connector in spec.cache.connectors}
    return {name: given.get(name, NIXL_WEIGHT if name == NIXL else TIER_WEIGHT) for name in names}


def staging_bytes(spec: KVServingSpec) -> int:
    """Memory of every rank for staging transfers, equal in both roles; 0 where they are not staged.

    A staged prompt is read by a rank that holds the same part of every block, so the roles must be divided alike. CPU
    engines take it from host memory.
    """
    if spec.prefill is None:
        return 0
    prefill, decode = spec.prefill.parallelism, spec.decode.parallelism
    alike = prefill.tensor == decode.tensor and prefill.pipeline == decode.pipeline == 1
    return spec.transfer.staging_memory.bytes if alike else 0


def transfer_form(spec: KVServingSpec) -> str:
    """How KV gets from prefill to decode, as the profile names it: engines that differ in it exchange none.

    Decode without a pool cannot load what prefill has staged.
    """
    if spec.prefill is None:
        return "none"
    form = "pull-staged" if staging_bytes(spec) else "pull"
    return form if TRANSFER_PROTOCOL == 1 else f"{form}-{TRANSFER_PROTOCOL}"


def transfer_config(
    spec: KVServingSpec, build: EngineBuild, role: RoleName, store: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The value of ``--kv-transfer-config`` of one role; None where the role needs no connector.

    ``store`` is the L2 tier's own configuration for roles that use it, as ``plan.storage``
    makes it.
    """
    weight = weights(spec)
    tiers = [_tier(spec, name, role, weight[name], store) for name in tier_children(spec, role)]
    if spec.prefill is None:
        if not tiers:
            return None
        config = tiers[0] if len(tiers) == 1 else _multi(tiers)
    else:
        nixl = _nixl(spec, build, role)
        if tiers:
            nixl["kv_connector_extra_config"]["load_weight"] = weight[NIXL]
        config = _multi([nixl, *tiers]) if tiers else nixl
    config["kv_load_failure_policy"] = spec.transfer.on_failure
    if build.device == "cpu":
        config["kv_buffer_device"] = "cpu"
    return {key: value for key, value in config.items() if key in build.transfer_keys}


def render(config: Mapping[str, Any]) -> str:
    """``config`` as one argument: compact JSON, keys in the order they were written."""
    return json.dumps(config, separators=(",", ":"), ensure_ascii=True)


def children(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The connectors of a ``transfer_config``: those of a MultiConnector, else the one that it is."""
    inner: list[Mapping[str, Any]] = (config.get("kv_connector_extra_config") or {}).get("connectors") or []
    return inner or ([config] if config else [])


def _multi(children: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kv_connector": MULTI,
        "kv_connector_module_path": MODULES[MULTI],
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": children},
    }


def _nixl(spec: KVServingSpec, build: EngineBuild, role: RoleName) -> dict[str, Any]:
    extra: dict[str, Any] = {"kv_lease_duration": spec.transfer.lease.seconds}
    staging = staging_bytes(spec)
    if staging or build.device == "gpu":
        extra["staging_bytes"] = staging
    return {
        "kv_connector": NIXL,
        "kv_connector_module_path": MODULES[NIXL],
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_buffer_device": "cpu" if build.device == "cpu" else "cuda",
        "kv_connector_extra_config": extra,
    }


def _tier(
    spec: KVServingSpec, name: str, role: RoleName, weight: int, store: Mapping[str, Any] | None
) -> dict[str, Any]:
    extra: dict[str, Any] = {"load_weight": weight}
    if name in OWNERS:
        extra |= _settings(spec, name, role, store)
    elif name == MOONCAKE:
        extra |= {"load_async": True, "lookup_async": True}
    child: dict[str, Any] = {"kv_connector": name}
    if name in MODULES:
        child["kv_connector_module_path"] = MODULES[name]
    return {**child, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _settings(spec: KVServingSpec, name: str, role: RoleName, store: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a tier of ours is told. Bytes are those of a pod, also where several pods make one engine."""
    l1, tiered = spec.cache.l1, name == TIERED
    here = l1 is not None and role in roles_with_l1(spec)
    size = l1.size.bytes if l1 is not None and here else BOUNCE_POOL_BYTES
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": size // _tiers_per_pod(spec, role),
        "eviction_policy": l1.policy if l1 is not None and tiered else "lru",
    }
    if role == "decode":
        # vLLM keeps prompts only; an answer is part of the next turn's prompt.
        extra["offload_prompt_only"] = False
    l2 = spec.cache.l2
    if store is not None and l2 is not None and role in roles_with_l2(spec):
        extra |= {
            **({"spec_name": "TieringOffloadingSpec"} if tiered else {}),
            # Ours to judge, not the store's: vLLM's own tiers refuse settings they do not know.
            "loads": l2.loads,
            "load_timeout_s": l2.load_timeout.seconds,
            "secondary_tiers": [dict(store)],
        }
    return extra


def _tiers_per_pod(spec: KVServingSpec, role: RoleName) -> int:
    """Data-parallel ranks in a pod: each has a tier of its own, of the size that it is told."""
    section = spec.prefill if role == "prefill" and spec.prefill is not None else spec.decode
    return max(1, section.parallelism.data // section.nodes)

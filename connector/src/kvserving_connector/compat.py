"""What the installed vLLM offers, found by probing; ``python -m kvserving_connector.compat`` prints it as JSON.

Versions are reported, never compared: what is there decides. Full support is vLLM 0.29 to 0.33, reduced support 0.24
to 0.28; without two-phase allocation (before 0.24) the connector refuses to load and says why.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Band = Literal["full", "reduced", "refused"]

_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
# The pull connector's home: a package with pull and push classes since 0.24, before that one class in a package
# (0.20) or in one module.
_PULL_CONNECTORS = (
    (f"{_CONNECTORS}.nixl.connector", "NixlPullConnector"),
    (f"{_CONNECTORS}.nixl", "NixlPullConnector"),
    (f"{_CONNECTORS}.nixl", "NixlConnector"),
    (f"{_CONNECTORS}.nixl_connector", "NixlConnector"),
)
_STATS = ((f"{_CONNECTORS}.nixl.stats", ""), (f"{_CONNECTORS}.nixl_connector", ""))


class Unsupported(ImportError):
    """The installed vLLM cannot carry the connector; the message says what is missing and the way out."""


@dataclass(frozen=True)
class Capabilities:
    """Outcome of the probes: what vLLM has, and in ``missing`` what could not be imported, with the error."""

    vllm_version: str
    band: Band
    reason: str
    pull_connector: str
    """``module:class`` of vLLM's pull connector; empty when there is none."""
    two_phase_allocation: bool
    """Local hits of all groups are taken before any group's external blocks are allocated (0.24)."""
    block_state_handoff: bool
    """The scheduler's output carries block states for connectors (0.29)."""
    transfer_results: bool
    """Workers report failed loads by request (0.30)."""
    manager_bind: bool
    """Connectors are bound to the KV cache manager (0.30)."""
    on_new_request: bool
    """Connectors see a request before it is scheduled (0.22)."""
    stats_to_dict: bool
    """Connector statistics have ``to_dict`` and arrive flat (0.30)."""
    layouts: bool
    """KV cache layouts have names of their own (0.29)."""
    transfer_telemetry: bool
    """The worker's completed transfers can be told apart by request."""
    staging: bool
    """Reads and handshakes of the worker can be told apart by request and by engine, as staged transfers need."""
    missing: tuple[str, ...]

    @property
    def supported(self) -> bool:
        """Whether the connector loads."""
        return self.band != "refused"


class _Prober:
    """Imports what is probed and remembers what could not be imported."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def module(self, name: str) -> Any | None:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            self.missing.append(f"{name}: {error}")
            return None

    def attribute(self, module: str, name: str) -> Any | None:
        home = self.module(module)
        return getattr(home, name, None) if home is not None else None

    def first(self, places: tuple[tuple[str, str], ...]) -> tuple[str, Any | None]:
        """Return the first place that exists; an import that fails counts only when no place exists."""
        before = len(self.missing)
        for module, name in places:
            found = self.attribute(module, name)
            if found is not None:
                del self.missing[before:]
                return f"{module}:{name}", found
        return "", None


@lru_cache(maxsize=1)
def probe() -> Capabilities:
    """Probe the installed vLLM once per process. Does not raise: what is missing is in the result."""
    prober = _Prober()
    vllm = prober.module("vllm")
    version = str(getattr(vllm, "__version__", "none")) if vllm is not None else "none"
    base = prober.attribute(f"{_CONNECTORS}.base", "KVConnectorBase_V1") if vllm is not None else None
    place, pull = prober.first(_PULL_CONNECTORS) if vllm is not None else ("", None)
    output = prober.attribute("vllm.v1.core.sched.output", "SchedulerOutput") if vllm is not None else None
    manager = (
        prober.attribute("vllm.v1.core.single_type_kv_cache_manager", "SingleTypeKVCacheManager")
        if vllm is not None
        else None
    )
    fields = getattr(output, "__dataclass_fields__", {})
    two_phase = hasattr(manager, "allocate_external_computed_blocks")
    block_state = "kv_connector_block_state" in fields
    band, reason = _band(version, vllm is not None, place, two_phase, block_state, hasattr(base, "on_new_request"))
    layouts = prober.module("vllm.v1.kv_cache_layout") if block_state else None
    stats = prober.attribute(f"{_CONNECTORS}.metrics", "KVConnectorStats") if vllm is not None else None
    return Capabilities(
        vllm_version=version,
        band=band,
        reason=reason,
        pull_connector=place,
        two_phase_allocation=two_phase,
        block_state_handoff=block_state,
        transfer_results=hasattr(base, "get_transfer_results"),
        manager_bind=hasattr(base, "bind_kv_cache_manager"),
        on_new_request=hasattr(base, "on_new_request"),
        stats_to_dict=hasattr(stats, "to_dict"),
        layouts=layouts is not None,
        transfer_telemetry=_has_telemetry(prober, pull),
        staging=_has_staging(prober, pull),
        missing=tuple(prober.missing),
    )


def require() -> Capabilities:
    """Return the capabilities, or raise Unsupported with the reason and the way out."""
    capabilities = probe()
    if not capabilities.supported:
        raise Unsupported(f"kvserving-connector cannot run in this engine: {capabilities.reason}")
    return capabilities


def pull_connector_class() -> Any:
    """Return vLLM's pull connector class. Raises Unsupported when this vLLM is refused."""
    module, _, name = require().pull_connector.partition(":")
    return getattr(importlib.import_module(module), name)


def nixl_stats_module() -> Any:
    """Return the module with vLLM's NIXL statistics classes. Raises Unsupported when this vLLM is refused."""
    require()
    prober = _Prober()
    for name, _ in _STATS:
        module = prober.module(name)
        if module is not None and hasattr(module, "NixlKVConnectorStats"):
            return module
    raise Unsupported("vLLM's NIXL statistics were not found: " + "; ".join(prober.missing))


def _band(
    version: str, installed: bool, place: str, two_phase: bool, block_state: bool, on_new_request: bool
) -> tuple[Band, str]:
    way_out = "use vLLM 0.24 or newer (0.29 to 0.33 for full support)"
    if not installed:
        return "refused", f"vLLM is not importable in this Python; {way_out}"
    if not place:
        return "refused", f"vLLM {version} has no NIXL pull connector that imports; {way_out}"
    if not two_phase or not on_new_request:
        lacks = "two-phase block allocation" if not two_phase else "the connector hook for new requests"
        return "refused", f"vLLM {version} lacks {lacks}; {way_out}"
    if not block_state:
        return "reduced", f"vLLM {version} has no block-state handoff: native tiers and failed-load reports are off"
    return "full", ""


def _has_telemetry(prober: _Prober, pull: Any) -> bool:
    if pull is None:
        return False
    worker = prober.attribute(f"{_CONNECTORS}.nixl.pull_worker", "NixlPullConnectorWorker")
    return hasattr(worker, "_pop_done_transfers")


def _has_staging(prober: _Prober, pull: Any) -> bool:
    if pull is None:
        return False
    worker = prober.attribute(f"{_CONNECTORS}.nixl.pull_worker", "NixlPullConnectorWorker")
    payload = prober.attribute(f"{_CONNECTORS}.nixl.metadata", "NixlHandshakePayload")
    hooks = ("_read_blocks_for_req", "_nixl_handshake", "_logical_to_kernel_block_ids")
    ends = ("get_transfer_results", "get_finished")
    fields = ("compatibility_hash", "agent_metadata_bytes")
    return (
        all(hasattr(worker, name) for name in hooks)
        and any(hasattr(worker, name) for name in ends)
        and all(name in getattr(payload, "__dataclass_fields__", {}) for name in fields)
        and hasattr(pull, "set_xfer_handshake_metadata_pp_aware")
        and hasattr(pull, "has_pending_push_work")
        and prober.attribute(f"{_CONNECTORS}.nixl.utils", "zmq_ctx") is not None
    )


def main() -> int:
    """Print the capabilities as JSON; return 0 when supported, 1 when refused."""
    capabilities = probe()
    json.dump(dataclasses.asdict(capabilities), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if capabilities.supported else 1


if __name__ == "__main__":
    sys.exit(main())

"""What is compared with what: an engine without a connector, with vLLM's own, and with each of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOCK = "OffloadingConnector"
MODULES = {
    "WorkerCacheConnector": "kvserving_connector.vllm.worker_cache",
    "TieredOffloadConnector": "kvserving_connector.vllm.offload",
}
STORE_TIER = {"type": "SharedStoreTier", "module_path": "kvserving_connector.vllm.tier"}


@dataclass(frozen=True)
class Side:
    """One way to run an engine. ``loads``: the rule of one of our connectors; None: its default, by measured cost."""

    name: str
    connector: str | None = None
    loads: str | None = None
    sync_bytes: int | None = None
    """What may be loaded within a step; None is the connector's default: nothing (vLLM's), anything if alone (ours)."""

    @property
    def ours(self) -> bool:
        """Whether the connector is ours, and can have a store behind L1."""
        return self.connector in MODULES

    @property
    def learns(self) -> bool:
        """Whether measured costs decide about loads."""
        return self.ours and self.loads is None

    def extra(
        self, l1_bytes: int, device: str, store: Path | None = None, store_bytes: int | None = None
    ) -> dict[str, Any]:
        """Return the connector's settings, with files below ``store`` behind L1, ``store_bytes`` of them at most.

        vLLM's own connector has nothing that copies on a CPU: there it is given ours, and its times say nothing of it.
        """
        found: dict[str, Any] = {"cpu_bytes_to_use": l1_bytes}
        if self.connector == STOCK and device == "cpu":
            found |= {"spec_name": "HostCPUSpec", "spec_module_path": "kvserving_connector.vllm.host_worker"}
        if self.loads is not None:
            found["loads"] = self.loads
        if self.sync_bytes is not None:
            found["sync_load_budget_bytes"] = self.sync_bytes
        if store is not None:
            found["secondary_tiers"] = [{**STORE_TIER, "urls": [store.resolve().as_uri()], "max_bytes": store_bytes}]
            if self.connector == "TieredOffloadConnector":
                # As the operator renders it: by this name the API server knows the store's metrics.
                found["spec_name"] = "TieringOffloadingSpec"
        return found


SIDES = {
    side.name: side
    for side in (
        Side("none"),
        Side("stock", STOCK),
        Side("stock-within-step", STOCK, sync_bytes=2**62),
        Side("scheduler", "TieredOffloadConnector"),
        Side("worker", "WorkerCacheConnector"),
        Side("scheduler-always", "TieredOffloadConnector", loads="always"),
        Side("scheduler-later", "TieredOffloadConnector", loads="always", sync_bytes=0),
        Side("worker-always", "WorkerCacheConnector", loads="always"),
    )
}
DEFAULT = ("none", "stock", "scheduler", "worker")


def transfer(connector: str | None, extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return vLLM's ``kv_transfer_config``; None without a connector."""
    if connector is None:
        return None
    found: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": dict(extra)}
    if module := MODULES.get(connector):
        found |= {"kv_connector_module_path": module, "kv_load_failure_policy": "recompute"}
    return found

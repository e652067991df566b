"""``TieredOffloadConnector``: vLLM's offloading connector with typed settings, loads by cost, and CPU engines.

Selected by ``"kv_connector": "TieredOffloadConnector"`` with
``"kv_connector_module_path": "kvserving_connector.vllm.offload"``. L1 and L2 are vLLM's CPU manager and tiering
manager; copies on a GPU engine are vLLM's.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvserving_connector.compat import Unsupported, require
from kvserving_connector.core.loads import LoadLedger
from kvserving_connector.core.tier_settings import STORE_TIER, TierSettings, refuse
from kvserving_connector.settings import logger

_capabilities = require()
if not _capabilities.block_state_handoff:
    raise Unsupported(
        f"TieredOffloadConnector needs vLLM's block-state handoff, which vLLM {_capabilities.vllm_version} lacks; "
        "use vLLM 0.29 or newer, or run without cache.l1 and cache.l2"
    )

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector  # noqa: E402
from vllm.v1.kv_offload.base import TierFilter  # noqa: E402

from kvserving_connector.vllm import regions  # noqa: E402
from kvserving_connector.vllm.adapters import Adapters, hash_by_weights  # noqa: E402
from kvserving_connector.vllm.device_copies import StepWorker, hasten  # noqa: E402
from kvserving_connector.vllm.identity import store_identity  # noqa: E402
from kvserving_connector.vllm.load_stats import LoadPromMetrics, load_stats  # noqa: E402

_NO_TIER = TierFilter(matchers=())


class TieredOffloadConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's offloading connector; what is not named here is inherited.

    Scheduler side: a hit is offered only where loading it was measured to be faster than computing it, or where the
    settings say so; a lookup without an answer within ``load_timeout_s`` counts as a miss, while the read may go on
    into L1, where nobody waits for it. With vLLM 0.33 a hit is loaded within the step that computes the rest, if the
    engine has no other request, which would wait for it, too, and its model one group of KV.

    Worker side: on a CPU engine our worker copies, elsewhere vLLM's, which is told to begin at once.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        settings = TierSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        # Windows and states are never loaded within a step: no answer of such an engine was compared.
        dense = len(kv_cache_config.kv_cache_groups) == 1
        settings = replace(settings, within_step=settings.within_step and dense)
        translated = _translated(vllm_config, settings)
        _require_room(settings, translated, kv_cache_config)
        super().__init__(translated, role, kv_cache_config)
        self._device = vllm_config.device_config.device_type
        self._requests: dict[str, Any] = {}
        self._within_step: set[str] = set()
        self._adapters = Adapters()
        self._ledger: LoadLedger | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._ledger = LoadLedger(
                loads=settings.loads,
                has_l2=bool(settings.secondary_tiers),
                timeout_s=settings.load_timeout_s,
                clock=time.monotonic,
            )
            logger.info(
                "KVServing tiers: L1 of %d bytes (%s), %d tier(s) behind it, loads %s, timeout %g s",
                settings.cpu_bytes_to_use,
                settings.eviction_policy,
                len(settings.secondary_tiers),
                settings.loads,
                settings.load_timeout_s,
            )

    # Scheduler side

    def on_new_request(self, request: Any) -> None:
        """As vLLM, and remember the request while it lasts, and make its hashes depend on its adapter's weights."""
        self._requests[request.request_id] = request
        hash_by_weights(request, self._adapters)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """As vLLM, for hits that are worth loading: ``(0, False)`` for others, and after the timeout.

        None while a lookup is unanswered, or while transfers of an earlier life of the request are under way.
        """
        ledger = self._judge()
        request_id = request.request_id
        self._within_step.discard(request_id)
        new = request.num_tokens - num_computed_tokens
        if ledger.gave_up(request_id):
            return self._without_lookup(request, num_computed_tokens)
        if not ledger.may_ask_outer(request_id, new):
            self._forbid_outer(request_id)
        hit, loads_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if hit is None:
            if ledger.deferred(request_id):
                logger.warning("KVServing tiers: no answer for request %s in time, its prompt is computed", request_id)
                return self._without_lookup(request, num_computed_tokens)
            return None, False
        if hit and not ledger.takes(request_id, hit, new):
            return 0, False
        if hit and not loads_async and len(self._requests) > 1:
            loads_async = self._loads_later(request_id)
        if hit and not loads_async:
            self._within_step.add(request_id)
        return hit, loads_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As vLLM, and count what was decided."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        from_l2 = num_external_tokens > 0 and self._came_from_l2(request, num_external_tokens)
        within_step = request.request_id in self._within_step
        self._within_step.discard(request.request_id)
        self._judge().allocated(request.request_id, num_external_tokens, from_l2, within_step)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As vLLM, and note which prompts are computed from this step on."""
        ledger = self._judge()
        for new in scheduler_output.scheduled_new_reqs:
            request = self._requests.get(new.req_id)
            if request is not None:
                ledger.prefill_started(new.req_id, request.num_prompt_tokens - new.num_computed_tokens)
        for request_id in scheduler_output.preempted_req_ids or ():
            ledger.preempted(request_id)
        ledger.stepped()
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM, and measure loads and prefills that have ended."""
        ledger = self._judge()
        for request_id in connector_output.finished_recving or ():
            ledger.received(request_id)
        self._end_prefills(ledger.prefilling())
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM, and forget the request."""
        self._forget(request)
        result: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return result

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, for models with several cache groups."""
        self._forget(request)
        result: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(request, block_ids)
        return result

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """As vLLM; its copies on a device begin at once, and the device waits for those of a step."""
        super().register_kv_caches(kv_caches)
        if self._device != "cpu":
            worker = self.connector_worker.worker
            hasten(worker)
            self.connector_worker.worker = StepWorker(worker)

    # Statistics

    def get_kv_connector_stats(self) -> Any:
        """Return vLLM's statistics with ours among them, None for none."""
        stats = super().get_kv_connector_stats()
        if self._ledger is None:
            return stats
        self._end_prefills(self._ledger.prefilling())
        tally = self._ledger.drain()
        if tally is None:
            return stats
        ours = load_stats(tally, self._ledger.model)
        return ours if stats is None else stats.aggregate(ours)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> Any:
        """Return the Prometheus side of the statistics."""
        settings = TierSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config)
        # vLLM reads there which spec it is, and so which series there are.
        config = _with_extra(vllm_config, settings.engine_config())
        return LoadPromMetrics(config, metric_types, labelnames, per_engine_labelvalues)

    # Between vLLM and the ledger

    def _judge(self) -> LoadLedger:
        assert self._ledger is not None, "the worker half makes no decisions"
        return self._ledger

    def _without_lookup(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Ask vLLM as for a request that reads no cache: its own waits for transfers under way still hold."""
        before = request.skip_reading_prefix_cache
        request.skip_reading_prefix_cache = True
        try:
            result: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
            return result
        finally:
            request.skip_reading_prefix_cache = before

    def _forbid_outer(self, request_id: str) -> None:
        # vLLM's own filter of a request ("kv_load_tiers"), set where it is kept: L1 is looked up whatever it says.
        self.connector_scheduler._req_status[request_id].req_context.load_tier_filter = _NO_TIER

    def _loads_later(self, request_id: str) -> bool:
        """Take back vLLM's choice to load within this step; return whether there was one to take back."""
        chosen: set[str] = getattr(self.connector_scheduler, "_current_batch_sync_loads", set())
        if request_id not in chosen:
            return False
        chosen.remove(request_id)
        return True

    def _came_from_l2(self, request: Any, tokens: int) -> bool:
        if not self._judge().was_deferred(request.request_id):
            return False
        if not hasattr(OffloadingConnector, "get_external_cache_hit_sources"):
            return True
        # Sources are known since vLLM 0.32; before, every lookup that had to wait is taken for one of L2.
        sources = super().get_external_cache_hit_sources(request, tokens)
        return any(str(source.value) not in ("device", "host") for source in sources)

    def _end_prefills(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None and request.num_output_tokens > 0:
                self._judge().prefill_ended(request_id)

    def _forget(self, request: Any) -> None:
        self._end_prefills((request.request_id,))
        self._judge().finished(request.request_id)
        self._within_step.discard(request.request_id)
        self._requests.pop(request.request_id, None)


def _translated(vllm_config: Any, settings: TierSettings) -> Any:
    """Return a copy of ``vllm_config`` with the tiers' settings as vLLM's own connector reads them."""
    host_module, host_specs = "", None
    if vllm_config.device_config.device_type == "cpu":
        from kvserving_connector.vllm import host_worker

        host_module, host_specs = host_worker.MODULE, host_worker.SPECS
    extra = settings.engine_config(host_module, host_specs)
    if tiers := extra.get("secondary_tiers"):
        identity = store_identity(vllm_config)
        extra["secondary_tiers"] = [
            {"identity": identity, **tier} if tier.get("type") == STORE_TIER else tier for tier in tiers
        ]
    translated = _with_extra(vllm_config, extra)
    pod, engine_id = os.environ.get("POD_NAME", ""), translated.kv_transfer_config.engine_id
    regions.remove_stale(engine_id, pod)
    translated.kv_transfer_config.engine_id = regions.named(engine_id, pod)
    return translated


def _with_extra(vllm_config: Any, extra: dict[str, Any]) -> Any:
    """Return a copy of ``vllm_config`` whose connector has other settings."""
    changed = copy.copy(vllm_config)
    changed.kv_transfer_config = copy.copy(vllm_config.kv_transfer_config)
    changed.kv_transfer_config.kv_connector_extra_config = extra
    return changed


def _require_room(settings: TierSettings, vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse an L1 that cannot hold one chunk: vLLM would run without ever storing anything."""
    if settings.spec_module_path:
        return
    config = build_offloading_config(vllm_config, kv_cache_config)
    copies = 1 if config.replicated_layout else config.parallel.world_size
    chunk = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk * copies
    if settings.cpu_bytes_to_use < chunk:
        reason = f"one chunk of this model's cache takes {chunk} bytes"
        raise refuse("cpu_bytes_to_use", settings.cpu_bytes_to_use, reason, "set cache.l1.size to several times that")

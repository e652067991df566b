"""``WorkerCacheConnector``: L1 in the host memory of the workers, tracked by the scheduler.

Selected by ``"kv_connector": "WorkerCacheConnector"`` with
``"kv_connector_module_path": "kvserving_connector.vllm.worker_cache"``. For engines whose workers sit on several hosts,
which share no memory, and for platforms without an offload worker of vLLM's. Carries on the prefix tracker of
vllm-project/aibrix#2146 and the planner of vllm-project/vllm#38261.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from kvserving_connector.compat import Unsupported, require
from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.settings import logger
from kvserving_connector.store.open import examples
from kvserving_connector.vllm.adapters import Adapters, hash_by_weights
from kvserving_connector.vllm.context import SchedulerContext, SchedulerContextMixin

_capabilities = require()
if not _capabilities.block_state_handoff:
    raise Unsupported(
        f"WorkerCacheConnector needs vLLM's block-state handoff, which vLLM {_capabilities.vllm_version} lacks; "
        "use vLLM 0.29 or newer, or run without cache.l1 and cache.l2"
    )

from kvserving_connector.vllm.worker_cache.geometry import geometry  # noqa: E402
from kvserving_connector.vllm.worker_cache.messages import WorkerCacheMetadata, WorkerCacheReport  # noqa: E402
from kvserving_connector.vllm.worker_cache.scheduler import SchedulerHalf  # noqa: E402
from kvserving_connector.vllm.worker_cache.stats import WorkerCachePromMetrics, WorkerCacheStats  # noqa: E402
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf  # noqa: E402


class WorkerCacheConnector(SchedulerContextMixin, KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Both halves behind vLLM's interface; see ``SchedulerHalf`` and ``WorkerHalf``.

    Loads are always asynchronous. A promise is never false because of an eviction: what workers give up is reused only
    after the scheduler has heard of it. A block that could not be loaded is reported by its number.
    """

    worker_class: type[WorkerHalf] = WorkerHalf

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = WorkerCacheSettings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config, examples())
        shape = geometry(vllm_config, kv_cache_config, settings)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._adapters = Adapters()
        if role == KVConnectorRole.SCHEDULER:
            batch = vllm_config.scheduler_config.max_num_batched_tokens
            self._scheduler = SchedulerHalf(shape, settings, batch)
            logger.info(
                "KVServing worker cache: L1 of %d bytes per host, spans of %d tokens, %d ranks, saves %s, %s",
                settings.cpu_bytes,
                shape.planner.span_tokens,
                shape.ranks,
                settings.offload,
                "no L2" if settings.store is None else f"L2 with loads {settings.loads}",
            )
        else:
            self._worker = self.worker_class(vllm_config, kv_cache_config, shape, settings)

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is a later miss, never a lost request."""
        return False

    # Scheduler side

    def bind_scheduler_context(self, context: SchedulerContext) -> None:
        """Take the scheduler's blocks, to hold them while they are copied."""
        self._head().bind(context)

    def on_new_request(self, request: Any) -> None:
        """Remember the request, and make its hashes depend on its adapter's weights."""
        hash_by_weights(request, self._adapters)
        self._head().arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return what all ranks hold of the prompt; None while they are asked for what lies in L2."""
        return self._head().matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Start the load that was promised, or let go of what was held for it."""
        self._head().allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> WorkerCacheMetadata:
        """Return what the ranks do with this step, and note which prompts are computed from now on."""
        head = self._head()
        for new in scheduler_output.scheduled_new_reqs:
            request = head.request(new.req_id)
            if request is not None:
                head.ledger.prefill_started(new.req_id, request.num_prompt_tokens - new.num_computed_tokens)
        for request_id in scheduler_output.preempted_req_ids or ():
            head.ledger.preempted(request_id)
        return head.metadata(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Apply the reports of the ranks."""
        head, message = self._head(), connector_output.kv_connector_worker_meta
        if isinstance(message, WorkerCacheReport):
            head.reported(message.report)
        head.received(connector_output.finished_recving or ())
        self._end_prefills()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Forget the request. Its blocks may go at once: what is still read is held by this connector."""
        return self._finished(request)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, for models with several cache groups."""
        return self._finished(request)

    def has_pending_push_work(self) -> bool:
        """Whether the engine has to go on stepping for saves."""
        return self._scheduler is not None and self._scheduler.busy

    def has_pending_block_frees(self) -> bool:
        """Whether blocks that are held for saves will be free soon."""
        return self._scheduler is not None and self._scheduler.holds

    def reset_cache(self) -> bool:
        """Forget all of L1; L2 keeps what it has."""
        self._head().reset()
        return True

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Return the medium that the tokens came from: host memory, or the store behind it."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import CacheHitSource

        if num_external_tokens == 0:
            return {}
        host = self._head().from_host(request.request_id)
        return {CacheHitSource.HOST if host else CacheHitSource.EXTERNAL_UNSPECIFIED: num_external_tokens}

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Make L1 for the engine's KV cache."""
        self._hand().register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what the scheduler asked for with this step, but for saves."""
        self._hand().begin(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: no step waits for a load."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: whole blocks are saved after the step."""

    def wait_for_save(self) -> None:
        """Start this step's saves; their blocks are held until they are reported."""
        self._hand().save(self._get_connector_metadata())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests whose loads have ended, successfully or not."""
        return None, self._hand().poll() or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Like ``get_finished``; with several cache groups failures are told by request, since vLLM 0.30."""
        results = super().get_transfer_results(finished_req_ids)
        failed = self._hand().failed_requests()
        if failed:
            results.failed_recving = failed
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that could not be loaded, since the last call."""
        return self._hand().failed_blocks()

    def build_connector_worker_meta(self) -> WorkerCacheReport:
        """Return this rank's report of the step; there is one for every step."""
        return WorkerCacheReport(self._hand().report())

    def shutdown(self) -> None:
        """Finish what moves and let go of memory, threads and connections."""
        if self._worker is not None:
            self._worker.close()

    # Statistics

    def get_kv_connector_stats(self) -> WorkerCacheStats | None:
        """Return what was counted since the last call, None for nothing."""
        if self._scheduler is not None:
            self._end_prefills()
        stats = self._hand().drain_stats() if self._scheduler is None else self._scheduler.drain_stats()
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> WorkerCacheStats:
        """Return statistics from a payload, or empty ones."""
        return WorkerCacheStats(data=data) if data is not None else WorkerCacheStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> WorkerCachePromMetrics:
        """Return the Prometheus side of the statistics."""
        return WorkerCachePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Between vLLM and the halves

    def _head(self) -> SchedulerHalf:
        assert self._scheduler is not None, "called in the worker's half"
        return self._scheduler

    def _hand(self) -> WorkerHalf:
        assert self._worker is not None, "called in the scheduler's half"
        return self._worker

    def _finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        self._end_prefills()
        self._head().finished(request)
        return False, None

    def _end_prefills(self) -> None:
        head = self._head()
        for request_id in head.ledger.prefilling():
            request = head.request(request_id)
            if request is not None and request.num_output_tokens > 0:
                head.ledger.prefill_ended(request_id)

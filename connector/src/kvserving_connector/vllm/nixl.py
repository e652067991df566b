"""``NixlConnector``: vLLM's pull connector with signed handoffs, a second check in the scheduler, and receipts.

Selected by ``"kv_connector": "NixlConnector", "kv_connector_module_path": "kvserving_connector.vllm.nixl"``. The class
keeps vLLM's name because vLLM compares names (hybrid memory, context parallelism).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvserving_connector.compat import pull_connector_class, require
from kvserving_connector.core.desk import Desk
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.settings import KeyFile, Settings, logger
from kvserving_connector.vllm import kvcached
from kvserving_connector.vllm.progress import patient_progress_thread
from kvserving_connector.vllm.receipt import TransferRecorder, TransferReport
from kvserving_connector.vllm.stats import HandoffPromMetrics, HandoffStats, from_tally, from_worker

_capabilities = require()
kvcached.require_transferable()
_PullConnector: Any = pull_connector_class()

_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


class NixlConnector(_PullConnector):  # type: ignore[misc]
    """vLLM's pull connector; what is not named here is inherited.

    Scheduler side: transfer parameters that this role may not act on are set to None before vLLM sees them, whatever
    passed the API server; prefill's are signed when they leave; a probe's answer on decode carries a receipt.
    Worker side: completed transfers are measured by request and reported to the scheduler.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with _progress_of(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
        self._desk: Desk | None = None
        self._recorder: TransferRecorder | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._desk = _desk(vllm_config, self.engine_id)
        elif _capabilities.transfer_telemetry:
            self._recorder = TransferRecorder(self.connector_worker)

    # Scheduler side

    def on_new_request(self, request: Any) -> None:
        """Judge the request's parameters, then let vLLM track it."""
        assert self._desk is not None
        self._desk.judge(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """As vLLM, for judged parameters only."""
        assert self._desk is not None
        self._desk.judge(request)
        self._desk.queried(request, num_computed_tokens)
        result: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return result

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As vLLM, and remember how many tokens come from outside."""
        assert self._desk is not None
        self._desk.allocated(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM, and take the workers' facts."""
        assert self._desk is not None
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(report, TransferReport):
            self._desk.reported(report.facts)
        self._desk.failed(getattr(connector_output, "failed_recving", None) or ())
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM; the answer's parameters are signed (prefill) or a receipt (a probe on decode)."""
        assert self._desk is not None
        delay, params = super().request_finished(request, block_ids)
        return delay, self._desk.finished(request, params)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, for models with several cache groups."""
        assert self._desk is not None
        delay, params = super().request_finished_all_groups(request, block_ids)
        return delay, self._desk.finished(request, params)

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """As vLLM; under kvcached its patch and what it leaves to us."""
        with kvcached.registration(self.connector_worker, kv_caches):
            super().register_kv_caches(kv_caches)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """As vLLM; the path of vLLM before 0.30, where failures are known by block only."""
        result: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids)
        if self._recorder is not None:
            self._recorder.ended(result[1] or (), ())
        return result

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """As vLLM, and note which requests' loads ended."""
        results = super().get_transfer_results(finished_req_ids)
        if self._recorder is not None:
            self._recorder.ended(results.finished_recving or (), results.failed_recving or ())
        return results

    def build_connector_worker_meta(self) -> Any:
        """Return the facts of this step's loads, None without any."""
        return self._recorder.report() if self._recorder is not None else None

    # Statistics

    def get_kv_connector_stats(self) -> Any:
        """Return what the desk counted (scheduler) or vLLM's transfer statistics (worker), in one class."""
        if self._desk is not None:
            tally = self._desk.drain()
            return from_tally(tally) if tally is not None else None
        stats = super().get_kv_connector_stats()
        return from_worker(stats) if stats is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Return statistics from a payload, or empty ones."""
        return HandoffStats(data=data) if data is not None else HandoffStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> Any:
        """Return the Prometheus side of the statistics."""
        return HandoffPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _progress_of(vllm_config: Any) -> AbstractContextManager[None]:
    if vllm_config.device_config.device_type != "cpu":
        return nullcontext()
    from vllm.distributed.nixl_utils import NixlWrapper

    return patient_progress_thread(NixlWrapper)


def _desk(vllm_config: Any, engine_id: str) -> Desk:
    settings = Settings.from_environment()
    role = settings.role or _ROLES.get(vllm_config.kv_transfer_config.kv_role, Role.AGGREGATED)
    key_file = KeyFile(settings.key_file)
    if key_file.current():
        logger.info("KVServing connector: role %s, revision %s", role, settings.revision or "(none)")
    return Desk(
        policy=lambda: Policy(role, settings.revision, key_file.current()),
        clock=time.time,
        lease_seconds=settings.lease_seconds,
        ranks=vllm_config.parallel_config.world_size,
        engine_id=engine_id,
    )

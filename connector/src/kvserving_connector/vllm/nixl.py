"""``NixlConnector``: vLLM's pull connector with signed handoffs, a second check, receipts, and staged transfers.

Selected by ``"kv_connector": "NixlConnector", "kv_connector_module_path": "kvserving_connector.vllm.nixl"``. The class
keeps vLLM's name because vLLM compares names (hybrid memory, context parallelism).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvserving_connector.compat import pull_connector_class, require
from kvserving_connector.core.desk import Desk
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.settings import KeyFile, Settings, logger
from kvserving_connector.vllm import kvcached
from kvserving_connector.vllm.progress import last_a_moment, mark_idle, patient_messages, patient_progress_thread
from kvserving_connector.vllm.receipt import TransferRecorder, TransferReport
from kvserving_connector.vllm.staging.scheduler import StagingScheduler
from kvserving_connector.vllm.staging.worker import StagingWorker
from kvserving_connector.vllm.stats import (
    HandoffPromMetrics,
    HandoffStats,
    add_loads,
    add_staging,
    from_tally,
    from_worker,
)

_capabilities = require()
kvcached.require_transferable()
_PullConnector: Any = pull_connector_class()

_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


class NixlConnector(_PullConnector):  # type: ignore[misc]
    """vLLM's pull connector; what is not named here is inherited.

    Scheduler side: transfer parameters that this role may not act on are set to None before vLLM sees them, whatever
    passed the API server; prefill's are signed when they leave; a probe's answer on decode carries a receipt.
    Worker side: completed transfers are measured by request and reported to the scheduler.
    With ``staging_bytes`` above 0 in both roles, prompts whose blocks are scattered are gathered into a slot of a pool
    and read from there; the package ``staging`` says how.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with _progress_of(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
        self._desk: Desk | None = None
        self._recorder: TransferRecorder | None = None
        self._slots: StagingScheduler | None = None
        self._staging: StagingWorker | None = None
        self._patient = vllm_config.device_config.device_type == "cpu"
        parallel = vllm_config.parallel_config
        self._alone = parallel.data_parallel_size == parallel.pipeline_parallel_size == 1
        if role == KVConnectorRole.SCHEDULER:
            self._desk = _desk(vllm_config, self.engine_id)
            self._slots = StagingScheduler(vllm_config, self.connector_scheduler)
            return
        if _capabilities.transfer_telemetry:
            self._recorder = TransferRecorder(self.connector_worker)
        self._staging = StagingWorker(vllm_config, self.connector_worker)

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
        assert self._slots is not None
        self._desk.allocated(request, num_external_tokens)
        self._slots.allocated(request)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As vLLM, with what is to be gathered in this step, and where staged prompts lie."""
        assert self._slots is not None
        metadata = super().build_connector_meta(scheduler_output)
        self._slots.build(metadata, scheduler_output)
        if self._alone:
            # Elsewhere other ranks, which may have tokens, wait for the step.
            mark_idle(metadata, scheduler_output)
        return metadata

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """As vLLM, and learn the ranks' pools."""
        assert self._slots is not None
        self._slots.met(metadata)
        super().set_xfer_handshake_metadata_pp_aware(metadata)

    def has_pending_push_work(self) -> bool:
        """Whether steps must go on without requests: in them the ends of handed-out slots are noticed."""
        assert self._slots is not None
        return self._slots.pending or bool(super().has_pending_push_work())

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM, and take the workers' facts."""
        assert self._desk is not None
        assert self._slots is not None
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(report, TransferReport):
            self._desk.reported(report.facts)
            self._slots.reported(report)
        self._desk.failed(getattr(connector_output, "failed_recving", None) or ())
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM; the answer's parameters are signed (prefill) or a receipt (a probe on decode)."""
        assert self._desk is not None
        assert self._slots is not None
        delay, params = self._slots.finished(request, *super().request_finished(request, block_ids))
        return delay, self._desk.finished(request, params)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Like ``request_finished``, for models with several cache groups."""
        assert self._desk is not None
        assert self._slots is not None
        delay, params = self._slots.finished(request, *super().request_finished_all_groups(request, block_ids))
        return delay, self._desk.finished(request, params)

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """As vLLM, with the staging pool beside the caches; under kvcached its patch and what it leaves to us."""
        assert self._staging is not None
        with kvcached.registration(self.connector_worker, kv_caches):
            self._staging.register_kv_caches(kv_caches, super().register_kv_caches)

    def get_handshake_metadata(self) -> Any:
        """As vLLM, with the staging pool."""
        assert self._staging is not None
        return self._staging.handshake_metadata(super().get_handshake_metadata())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """As vLLM; loads of this step, other connectors' too, may write blocks that were free since an earlier one."""
        assert self._staging is not None
        self._staging.settle()
        super().start_load_kv(forward_context, **kwargs)

    def finish_forward(self) -> None:
        """Gather what this step completes: the model's work of it is on the stream, its answer not read yet."""
        assert self._staging is not None
        self._staging.gather(self._connector_metadata)

    def wait_for_save(self) -> None:
        """As vLLM; gathers where the model runner does not say when the forward is over."""
        assert self._staging is not None
        self._staging.gather(self._connector_metadata)
        super().wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """As vLLM; the path of vLLM before 0.30, where failures are known by block only."""
        assert self._staging is not None
        last_a_moment(self._connector_metadata, self._staging.pull_ended, patient=self._patient)
        sent, received = super().get_finished(finished_req_ids)
        self._loaded(received or (), ())
        return self._staging.divert(sent), received

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """As vLLM, and note which requests' loads ended."""
        assert self._staging is not None
        last_a_moment(self._connector_metadata, self._staging.pull_ended, patient=self._patient)
        results = super().get_transfer_results(finished_req_ids)
        self._loaded(results.finished_recving or (), results.failed_recving or ())
        return replace(results, finished_sending=self._staging.divert(results.finished_sending))

    def build_connector_worker_meta(self) -> Any:
        """Return what this step has for the scheduler, None without anything."""
        assert self._staging is not None
        return self._staging.report(self._recorder.report() if self._recorder is not None else None)

    def shutdown(self) -> None:
        """As vLLM, after the last staged read."""
        if self._staging is not None:
            self._staging.close()
        super().shutdown()

    def _loaded(self, received: Iterable[str], failed: Iterable[str]) -> None:
        assert self._staging is not None
        facts = self._recorder.ended(received, failed) if self._recorder is not None else {}
        self._staging.received(received, facts)

    # Statistics

    def get_kv_connector_stats(self) -> Any:
        """Return what the desk counted (scheduler) or vLLM's transfer statistics (worker), in one class."""
        if self._desk is not None:
            assert self._slots is not None
            tally = self._desk.drain()
            return add_staging(from_tally(tally) if tally is not None else None, self._slots.drain())
        loads = self._staging.loads() if self._staging is not None else None
        stats = super().get_kv_connector_stats()
        return add_loads(from_worker(stats) if stats is not None else None, loads)

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
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.distributed.nixl_utils import NixlWrapper

    patient_messages(shm_broadcast)
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

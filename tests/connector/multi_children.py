"""Children for tests of MultiConnector: they answer as they are told and write down what they are asked."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvserving_connector.vllm.context import SchedulerContext, SchedulerContextMixin

Answers = dict[str, tuple[int | None, bool]]


class ScriptedMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Metadata of no content."""


class ScriptedStats(KVConnectorStats):  # type: ignore[misc]
    """One list of numbers."""

    def aggregate(self, other: KVConnectorStats) -> ScriptedStats:
        self.data["numbers"] = [*self.data["numbers"], *other.data["numbers"]]
        return self

    def reduce(self) -> dict[str, int | float]:
        return {"sum": sum(self.data["numbers"])}

    def reset(self) -> None:
        self.data: dict[str, list[int]] = {"numbers": []}

    def is_empty(self) -> bool:
        return not self.data["numbers"]


class ScriptedMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """One counter."""

    def __init__(self, config: Any, types: Any, labelnames: list[str], values: dict[int, list[object]]) -> None:
        super().__init__(config, types, labelnames, values)
        counter = self._counter_cls(name="vllm:scripted_total", documentation="d", labelnames=labelnames)
        self._series = {engine: counter.labels(*labels) for engine, labels in values.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        self._series[engine_idx].inc(sum(transfer_stats_data["numbers"]))


class WithoutHybrid(KVConnectorBase_V1):  # type: ignore[misc]
    """A child without support of hybrid memory. ``answers`` by request id; 0 tokens for any other."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.answers: Answers = {}
        self.allocated: list[tuple[str, int]] = []
        self.asked: list[tuple[str, int]] = []
        self.finished: list[str] = []
        self.preempted: list[Any] = []
        self.bound: list[Any] = []
        self.numbers: list[int] = []

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self.preempted.append(kv_connector_metadata)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.asked.append((request.request_id, num_computed_tokens))
        return self.answers.get(request.request_id, (0, False))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.allocated.append((request.request_id, num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> ScriptedMetadata:
        return ScriptedMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self.finished.append(request.request_id)
        return False, None

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.bound.append(gpu_block_pool)

    def get_kv_connector_stats(self) -> ScriptedStats | None:
        numbers, self.numbers = self.numbers, []
        return ScriptedStats(data={"numbers": numbers}) if numbers else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ScriptedStats:
        return ScriptedStats(data=data if data is not None else {"numbers": []})


class Scripted(WithoutHybrid, SupportsHMA):  # type: ignore[misc]
    """A child with support of hybrid memory and metrics of its own."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        self.finished.append(request.request_id)
        return False, None

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> ScriptedMetrics | None:
        return ScriptedMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class Contextual(SchedulerContextMixin, Scripted):
    """A child that is given the scheduler's context."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.contexts: list[SchedulerContext] = []

    def bind_scheduler_context(self, context: SchedulerContext) -> None:
        self.contexts.append(context)


class Silent(Scripted):
    """A child that has statistics and no metrics."""

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> None:
        return None


class OffloadingConnector(Scripted):
    """A child with the name by which vLLM's tier is known."""


class TieredOffloadConnector(OffloadingConnector):
    """A child with the name of our tier, which ends its lookups itself."""

"""What an engine has to do and what it has done so far, read from its Prometheus text.

Apart from ``counters``, of which two readings are subtracted: gauges tell of one moment alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_UNANSWERED = "kvserving:guard_unanswered_requests"
_ASLEEP = "vllm:engine_sleep_state"
_BY_REASON = "vllm:num_requests_waiting_by_reason"
_FIELDS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "usage",
    "vllm:generation_tokens_total": "generated",
    "vllm:prompt_tokens_total": "prompt",
    "vllm:request_success_total": "finished",
    "vllm:nixl_bytes_transferred_count": "transfers",
    "vllm:nixl_num_failed_transfers_total": "transfers",
    "vllm:request_prefill_time_seconds_sum": "prefill_seconds",
    "vllm:request_prefill_time_seconds_count": "prefills",
    "vllm:request_prefill_kv_computed_tokens_sum": "computed",
}
SERIES = (*_FIELDS, _UNANSWERED, _ASLEEP, _BY_REASON)
"""Every series that is read."""

# The whole text has thousands of lines, most of them buckets of histograms.
_LINES = tuple(name + end for name in SERIES for end in "{ ")


@dataclass(frozen=True)
class Core:
    """One engine core (a data-parallel rank): gauges as its last step that ended left them, and counters.

    ``deferred`` are the waiting requests that wait for something else than room, such as their KV; ``None`` where this
    vLLM does not tell. ``usage`` is the share of KV blocks that requests hold. ``transfers`` have ended well or not;
    ``prefills`` requests have spent ``prefill_seconds`` on computing ``computed`` prompt tokens. ``asleep``: someone
    put the engine to sleep.
    """

    running: float = 0
    waiting: float = 0
    deferred: float | None = None
    usage: float = 0
    generated: float = 0
    prompt: float = 0
    finished: float = 0
    transfers: float = 0
    prefill_seconds: float = 0
    prefills: float = 0
    computed: float = 0
    asleep: bool = False

    @property
    def done(self) -> tuple[float, ...]:
        """Counters of work: as long as none of them moves, nobody has got anything from the engine."""
        return self.generated, self.prompt, self.finished, self.transfers

    @property
    def trace(self) -> tuple[float | None, ...]:
        """All that a step can change."""
        return *self.done, self.running, self.waiting, self.deferred, self.usage


@dataclass(frozen=True)
class Activity:
    """What one engine tells: its cores by index, and the completions that have got no part of their answer yet.

    ``unanswered`` is ``None`` without the KVServing guard. Without statistics (``--disable-log-stats``) there is no
    core.
    """

    cores: Mapping[str, Core] = field(default_factory=dict)
    unanswered: float | None = None


def parse(text: str) -> Activity:
    """Return the activity in ``text``. Raises ``ValueError`` where a line of it is not Prometheus text."""
    lines = [line for line in text.splitlines() if line.startswith(_LINES)]
    found: dict[str, dict[str, float]] = {}
    unanswered: float | None = None
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == _UNANSWERED:
                unanswered = (unanswered or 0) + sample.value
                continue
            name = _field(sample.name, sample.labels.get)
            if name:
                values = found.setdefault(sample.labels.get("engine", ""), {})
                values[name] = values.get(name, 0) + sample.value
    cores = {index: _core(values) for index, values in found.items() if "running" in values}
    return Activity(cores, unanswered)


def _field(name: str, label: Callable[[str], str | None]) -> str:
    if name == _BY_REASON:
        return "deferred" if label("reason") == "deferred" else ""
    if name == _ASLEEP:
        return "awake" if label("sleep_state") == "awake" else ""
    return _FIELDS.get(name, "")


def _core(values: Mapping[str, float]) -> Core:
    plain = {name: value for name, value in values.items() if name not in ("awake", "deferred")}
    return Core(**plain, deferred=values.get("deferred"), asleep=values.get("awake") == 0)

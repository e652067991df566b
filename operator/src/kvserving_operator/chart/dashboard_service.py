"""The dashboard of one service."""

from __future__ import annotations

from .panels import Panel, Query, Row, dashboard
from .queries import CHOICE, DECODE, gauge, occurring, quantiles, rate, ratio, total

_TROUBLE = "Degraded|Progressing|Reconciling|Stalled"
"""Conditions that are false where all is well."""


def render() -> str:
    """Return its JSON."""
    state = Row(
        "State",
        (
            Panel(
                "Conditions",
                "What the status of the object says: true where all is well.",
                (Query(_conditions("!~"), "{{condition}}"),),
                kind="state-timeline",
                width=16,
            ),
            Panel(
                "Work and trouble",
                "Conditions that are false where all is well.",
                (Query(_conditions("=~"), "{{condition}}"),),
                kind="state-timeline",
                good=0,
            ),
        ),
    )
    requests = Row(
        "Requests",
        (
            Panel(
                "Time to first token",
                "As the engines see it.",
                quantiles("vllm:time_to_first_token_seconds", DECODE),
                "s",
            ),
            Panel(
                "Time between tokens",
                "As the decode engines see it.",
                quantiles("vllm:inter_token_latency_seconds", DECODE),
                "s",
            ),
            Panel(
                "Requests per second",
                "Finished, by reason, on decode engines.",
                (Query(rate("vllm:request_success_total", "finished_reason", DECODE), "{{finished_reason}}"),),
            ),
            Panel(
                "Running",
                "Requests in a step, by role.",
                (Query(gauge("sum by (kvserving_dev_role)", "vllm:num_requests_running"), "{{kvserving_dev_role}}"),),
            ),
            Panel(
                "Waiting",
                "Requests that wait, by role.",
                (Query(gauge("sum by (kvserving_dev_role)", "vllm:num_requests_waiting"), "{{kvserving_dev_role}}"),),
            ),
            Panel(
                "KV cache in use",
                "Share of each engine's own cache.",
                (Query(gauge("max by (pod)", "vllm:kv_cache_usage_perc"), "{{pod}}"),),
                "percentunit",
            ),
        ),
    )
    router = Row(
        "Router",
        (
            Panel(
                "Answers per second",
                "By status; 499 is a client that did not wait.",
                (Query(rate("smg_http_responses_total", "status_code"), "{{status_code}}"),),
            ),
            Panel(
                "Retries per second",
                "Requests that were sent again.",
                (Query(rate("smg_worker_retries_total", "pod"), "{{pod}}"),),
            ),
            Panel(
                "Breakers",
                "State of each worker's circuit breaker: 0 closed, 1 open, 2 half open.",
                (Query(gauge("max by (worker)", "smg_worker_cb_state"), "{{worker}}"),),
            ),
        ),
    )
    transfer = Row(
        "Transfer",
        (
            Panel(
                "Prompt tokens per second",
                "Of decode engines: those whose KV came from prefill, and all by where vLLM had them from. "
                "local_compute stays near 0: prefill has computed these already.",
                (
                    Query(total("kvserving:transfer_tokens_total"), "transferred"),
                    Query(rate("vllm:prompt_tokens_by_source_total", "source", DECODE), "{{source}}"),
                ),
            ),
            Panel(
                "Bytes per second",
                "KV received, all ranks.",
                (Query(rate("kvserving:transfer_bytes_total", "pod"), "{{pod}}"),),
                "Bps",
            ),
            Panel(
                "Seconds per transfer",
                "Mean, by decode engine; the slowest rank counts.",
                (
                    Query(
                        ratio("kvserving:transfer_seconds_total", "kvserving:transfers_total", "pod"),
                        "{{pod}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Failures per minute",
                "Requests whose KV could not be loaded, and transfers that NIXL gave up.",
                (
                    Query(rate("kvserving:transfer_failures_total", "pod", times=" * 60"), "{{pod}} load"),
                    Query(rate("vllm:nixl_num_failed_transfers_total", "pod", times=" * 60"), "{{pod}} NIXL"),
                ),
            ),
            Panel(
                "Refused per minute",
                "Transfer parameters that the guard or the scheduler refused: all, and the reasons that occur.",
                (
                    Query(total("kvserving:guard_refused_total", times=" * 60"), "guard"),
                    Query(total("kvserving:handoffs_refused_total", times=" * 60"), "scheduler"),
                    Query(occurring("kvserving:guard_refused_total", "reason", times=" * 60"), "guard: {{reason}}"),
                    Query(
                        occurring("kvserving:handoffs_refused_total", "reason", times=" * 60"), "scheduler: {{reason}}"
                    ),
                ),
            ),
            Panel(
                "Expired",
                "Blocks that prefill gave up before decode had read them: the lease is too short.",
                (
                    Query(rate("vllm:nixl_num_kv_expired_reqs_total", "pod", times=" * 60"), "{{pod}} requests"),
                    Query(
                        rate("vllm:nixl_num_notifications_after_expiry_total", "pod", times=" * 60"),
                        "{{pod}} read too late",
                    ),
                ),
            ),
        ),
    )
    rows = (state, requests, router, transfer)
    return dashboard("service", "KVServing / Service", "One KVServing object.", CHOICE, rows)


def _conditions(chosen: str) -> str:
    return (
        f'max by (condition) (kvserving_condition{{namespace="$namespace",name="$name",condition{chosen}"{_TROUBLE}"}})'
    )

"""The dashboard of all services, and of the operator."""

from __future__ import annotations

from .panels import Panel, Query, Row, dashboard
from .queries import SPAN, quantile, quantiles, rate

_WANTED = " unless max by (namespace, name) (kvserving_suspended == 1)"
"""Leaves out objects that nobody wants to run, as the alerts do."""


def render() -> str:
    """Return its JSON."""
    services = Row(
        "Services",
        (
            Panel(
                "Ready",
                "Objects that serve, with a proved transfer.",
                (Query(_count("Ready", "== 1")),),
                kind="stat",
                width=6,
            ),
            Panel(
                "Not ready",
                "Objects with Ready false or unknown, suspended ones apart.",
                (Query(_count("Ready", f"< 1{_WANTED}")),),
                kind="stat",
                width=6,
            ),
            Panel(
                "Unavailable",
                "Objects that can serve no request, suspended ones apart.",
                (Query(_count("Available", f"== 0{_WANTED}")),),
                kind="stat",
                width=6,
            ),
            Panel(
                "Transfer not verified",
                "Objects whose decodes compute prompts, or whose probes fail.",
                (Query(_count("TransferVerified", "== 0")),),
                kind="stat",
                width=6,
            ),
            Panel(
                "Ready, by object",
                "The condition Ready of every object.",
                (Query('max by (namespace, name) (kvserving_condition{condition="Ready"})', "{{namespace}}/{{name}}"),),
                kind="state-timeline",
                width=12,
            ),
            Panel(
                "Tokens generated per second",
                "All decode engines of a service.",
                (
                    Query(
                        rate("vllm:generation_tokens_total", "namespace, kvserving_dev_name", ""),
                        "{{namespace}}/{{kvserving_dev_name}}",
                    ),
                ),
                width=12,
            ),
        ),
    )
    work = Row(
        "Operator",
        (
            Panel(
                "Reconciliations per second",
                "By result; error is a fault of the operator, retry one of the cluster.",
                (Query(rate("kvserving_operator_reconciles_total", "result", ""), "{{result}}"),),
            ),
            Panel(
                "Time of a reconciliation",
                "Median and 95th percentile.",
                quantiles("kvserving_operator_reconcile_seconds", ""),
                "s",
            ),
            Panel(
                "Waiting",
                "Objects in the queue, and how long the first has waited.",
                (
                    Query("sum(kvserving_operator_queue_depth)", "objects"),
                    Query("max(kvserving_operator_queue_age_seconds)", "seconds of the first"),
                ),
            ),
            Panel(
                "Requests to the apiserver per second",
                "By status; 0 is no answer.",
                (Query(rate("kvserving_operator_api_requests_total", "status", ""), "{{status}}"),),
            ),
            Panel(
                "Time of a request to the apiserver",
                "95th percentile by verb.",
                (Query(quantile("0.95", "kvserving_operator_api_request_seconds", "", "verb"), "{{verb}}"),),
                "s",
            ),
            Panel(
                "Verifications per minute",
                "Proofs of transfers, by the reason of their outcome.",
                (Query(rate("kvserving_operator_verifications_total", "reason", "", times=" * 60"), "{{reason}}"),),
            ),
            Panel(
                "Writers",
                "Replicas that hold the Lease: one, and for a moment none.",
                (
                    Query("sum(kvserving_operator_leader)", "writers"),
                    Query("count(kvserving_operator_leader)", "replicas"),
                ),
            ),
            Panel(
                "Age of the last success",
                "Seconds since the last successful reconciliation.",
                (Query("time() - max(kvserving_operator_last_success_timestamp_seconds > 0)", "seconds"),),
                "s",
            ),
            Panel(
                "Lag and healed entries",
                "How late the event loop runs; what a resync had to correct.",
                (
                    Query("max(kvserving_operator_loop_lag_seconds)", "lag"),
                    Query(f"sum(increase(kvserving_operator_resync_healed_total{SPAN}))", "healed"),
                ),
            ),
        ),
    )
    return dashboard("fleet", "KVServing / Fleet", "All services, and the operator.", (), (services, work))


def _count(condition: str, value: str) -> str:
    states = f'max by (namespace, name) (kvserving_condition{{condition="{condition}"}})'
    return f"count({states} {value}) or vector(0)"

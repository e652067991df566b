"""PromQL that the dashboards are made of.

Series of engines and routers carry the labels ``kvserving_dev_name``, ``_role`` and ``_revision`` of their pods, which
the PodMonitors of each KVServing copy (``plan.monitoring``).
"""

from __future__ import annotations

from .panels import Query, Variable

ONE = 'namespace="$namespace",kvserving_dev_name="$name"'
DECODE = f'{ONE},kvserving_dev_role="decode"'
CHOICE = (
    Variable("namespace", "label_values(kvserving_condition, namespace)"),
    Variable("name", 'label_values(kvserving_condition{namespace="$namespace"}, name)'),
)
SPAN = "[$__rate_interval]"


def rate(metric: str, by: str, labels: str = ONE, *, times: str = "") -> str:
    """Return the rate of a counter, summed by labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}{SPAN})){times}"


def ratio(part: str, whole: str, by: str) -> str:
    """Return the quotient of two counters' rates."""
    return f"{rate(part, by)} / {rate(whole, by)}"


def occurring(metric: str, by: str, *, times: str = "") -> str:
    """Return the rates above 0: of reasons there are many, most of which never occur, and each has a legend."""
    return rate(metric, by, times=f"{times} > 0")


def total(metric: str, labels: str = ONE, *, times: str = "") -> str:
    """Return the rate of a counter, summed over everything."""
    return f"sum(rate({metric}{{{labels}}}{SPAN})){times}"


def gauge(how: str, metric: str) -> str:
    """Return a gauge of one service, aggregated."""
    return f"{how} ({metric}{{{ONE}}})"


def quantile(share: str, metric: str, labels: str, by: str = "") -> str:
    """Return a quantile of a histogram."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({groups}) (rate({metric}_bucket{{{labels}}}{SPAN})))"


def quantiles(metric: str, labels: str) -> tuple[Query, ...]:
    """Return the queries of a histogram's median and 95th percentile."""
    return tuple(Query(quantile(share, metric, labels), name) for share, name in (("0.5", "p50"), ("0.95", "p95")))

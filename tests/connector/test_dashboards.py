"""Every series of engines that is asked for exists, ours and vLLM's installed here: by charts, alerts and judges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import vllm
from tests.chart.series import alerts, dashboards, series

from kvserving_connector.metrics import guard_counters
from kvserving_connector.vllm.series import CHOICES, OF_HANDOFFS, OF_LOADS, OF_STORES, OF_WORKERS
from kvserving_operator.verify import activity

_ENDING = re.compile(r"_(bucket|count|sum|total)$")


def ours() -> set[str]:
    guard = guard_counters()
    found = {f"{counter._name}_total" for counter in (guard.accepted, guard.refused)}
    found.add(guard.unanswered._name)
    declared = (*OF_HANDOFFS, *OF_LOADS, *OF_STORES, *OF_WORKERS, *CHOICES.values())
    return found | {one.name if one.gauge else f"{one.name}_total" for one in declared}


def of_vllm() -> set[str]:
    """Names of vLLM's metrics, as they stand in its source; counters have no ending there."""
    folder = Path(str(vllm.__file__)).parent
    files = [*folder.glob("v1/metrics/*.py"), *folder.glob("distributed/kv_transfer/**/*.py")]
    return {name for file in files for name in re.findall(r'"(vllm:\w+)"', file.read_text())}


@pytest.mark.parametrize("used", [dashboards, alerts])
def test_every_series_of_the_engines_exists(used: object) -> None:
    assert callable(used)
    asked = {name for expr in used() for name in series(expr) if name.startswith(("vllm:", "kvserving:"))}
    assert asked
    theirs = of_vllm()
    assert "vllm:num_requests_running" in theirs
    unknown = {name for name in asked - ours() if _ENDING.sub("", name) not in theirs}
    assert unknown == set()


def test_every_series_that_tells_hung_engines_from_slow_ones_exists() -> None:
    theirs = of_vllm() | ours()
    assert {name for name in activity.SERIES if _ENDING.sub("", name) not in theirs and name not in theirs} == set()

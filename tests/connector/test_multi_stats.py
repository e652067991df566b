"""MultiConnector's counts and its children's statistics on vLLM's way to the API server's /metrics."""

from __future__ import annotations

from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.multi_support import BLOCK, child, configuration, request, scheduler, sent, step  # noqa: E402

from kvserving_connector import compat  # noqa: E402

pytestmark = pytest.mark.engine
SCRIPTED = "tests.connector.multi_children:Scripted"
SILENT = "tests.connector.multi_children:Silent"


class ApiServer:
    """What the API server does with one engine's statistics, from a payload that crossed a process boundary."""

    def __init__(self, children: list[dict[str, Any]], engines: int = 1) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm
        from vllm.v1.metrics.prometheus import unregister_vllm_metrics

        unregister_vllm_metrics()
        config = configuration(children)
        labels = {engine: ["m", str(engine)] for engine in range(engines)}
        self.prometheus = KVConnectorProm(config, ["model_name", "engine"], labels)
        self.logging = KVConnectorLogging(config.kv_transfer_config)

    def take(self, payload: Any, engine: int = 0) -> None:
        from vllm.v1.engine import EngineCoreOutputs
        from vllm.v1.metrics.stats import SchedulerStats
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        outputs = EngineCoreOutputs(scheduler_stats=SchedulerStats(kv_connector_stats=payload))
        received = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs))
        self.prometheus.observe(received.scheduler_stats.kv_connector_stats, engine)
        self.logging.observe(received.scheduler_stats.kv_connector_stats)

    def line(self) -> str:
        """The log line of the interval."""
        lines: list[str] = []
        self.logging.log(lambda text, values: lines.append(text % values))
        return lines[0]


def shown(name: str, connector: str, engine: int = 0) -> float | None:
    from prometheus_client import REGISTRY

    labels = {"model_name": "m", "engine": str(engine), "connector": connector}
    return REGISTRY.get_sample_value(f"vllm:kv_connector_mc_{name}", labels)


def everything(connector: str) -> list[float | None]:
    names = ("queries_total", "hits_total", "hit_tokens_total", "misses_total", "pending_loads")
    return [shown(name, connector) for name in names]


def test_what_the_scheduler_chose_is_shown_by_child_when_both_have_one_class() -> None:
    children = [child("Scripted", load_weight=2), child("Scripted")]
    engine, api = scheduler(children), ApiServer(children)
    first, second = engine.connector._connectors
    assert everything("Scripted-1") == everything("Scripted-2") == [0, 0, 0, 0, 0]
    first.answers = {"a": (BLOCK, True), "b": (0, False)}
    second.answers = {"a": (BLOCK, True), "b": (2 * BLOCK, True)}
    for one in ("a", "b", "c"):
        engine.add_request(request(one, 4 * BLOCK))
    step(engine)
    for payload in engine.published:
        api.take(payload)
    assert everything("Scripted-1") == [3, 1, BLOCK, 2, 1]
    assert everything("Scripted-2") == [3, 1, 2 * BLOCK, 1, 1]
    assert "Scripted-2 hit_tokens': 32" in api.line()
    engine.published.clear()
    step(engine, received=("a", "b"))
    for payload in engine.published:
        api.take(payload)
    assert everything("Scripted-1") == [3, 1, BLOCK, 2, 0]
    assert everything("Scripted-2") == [3, 1, 2 * BLOCK, 1, 0]


def test_two_engines_behind_one_api_server_are_kept_apart() -> None:
    from kvserving_connector.vllm.multi_stats import merged

    children = [child("Scripted"), child("Silent")]
    api = ApiServer(children, engines=2)
    counts = {"queries": {"Silent": 3}, "pending_loads": {"Scripted": 2, "Silent": 0}}
    api.take(sent(merged(None, {}, counts)), engine=1)
    assert [shown("queries_total", "Silent", engine) for engine in (0, 1)] == [0, 3]
    assert [shown("pending_loads", "Scripted", engine) for engine in (0, 1)] == [0, 2]


def test_childrens_statistics_are_merged_from_workers_and_scheduler_and_shown() -> None:
    from prometheus_client import REGISTRY

    children = [child("Scripted"), child("Scripted"), child("Silent")]
    engine, worker, api = scheduler(children), scheduler(children).connector, ApiServer(children)
    one, two, silent = worker._connectors
    one.numbers, two.numbers, silent.numbers = [1, 2], [3], [9]
    engine.connector._connectors[0].numbers = [4]
    engine.connector._connectors[0].answers = {"a": (BLOCK, False)}
    engine.add_request(request("a", 2 * BLOCK))
    engine.schedule()
    # As the scheduler does: the workers' statistics first, its own added.
    merged = worker.get_kv_connector_stats().aggregate(engine.connector.get_kv_connector_stats())
    assert sorted(merged.data) == ["selection", SCRIPTED, SILENT]
    api.take(sent(merged))
    labels = {"model_name": "m", "engine": "0"}
    assert REGISTRY.get_sample_value("vllm:scripted_total", labels) == 10
    assert everything("Scripted-1") == [1, 1, BLOCK, 0, 0]
    line = api.line()
    assert f"{SCRIPTED}={{'sum': 10}}" in line
    assert f"{SILENT}={{'sum': 9}}" in line


def test_payloads_of_one_interval_add_up_and_the_last_level_holds() -> None:
    from kvserving_connector.vllm.multi_stats import SelectionStats

    total = SelectionStats()
    assert total.is_empty()
    total.aggregate(SelectionStats(data={"hits": {"a": 1}, "pending_loads": {"a": 2}}))
    total.aggregate(SelectionStats(data={"hits": {"a": 2, "b": 1}}))
    assert total.data["hits"] == {"a": 3, "b": 1}
    assert total.data["pending_loads"] == {"a": 2}
    total.aggregate(SelectionStats(data={"pending_loads": {"a": 0}}))
    assert total.reduce()["a pending_loads"] == 0
    assert not SelectionStats(data={"pending_loads": {"a": 0}}).is_empty()
    total.reset()
    assert total.is_empty()


def test_statistics_of_vllms_own_classes_keep_their_name_and_ours_are_found_without_registration() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

    from kvserving_connector.core.desk import Tally
    from kvserving_connector.vllm.multi import MultiConnector
    from kvserving_connector.vllm.multi_stats import stats_key
    from kvserving_connector.vllm.nixl import NixlConnector
    from kvserving_connector.vllm.stats import HandoffStats, from_tally

    assert stats_key(NixlPullConnector) == "NixlPullConnector"
    key = stats_key(NixlConnector)
    assert key == "kvserving_connector.vllm.nixl:NixlConnector"
    payload = from_tally(Tally(signed=[1])).data
    nested = payload if compat.probe().stats_to_dict else {"data": payload}
    built = MultiConnector.build_kv_connector_stats({key: nested})
    assert type(built.data[key]) is HandoffStats
    assert built.data[key].reduce()["Handoffs signed"] == 1
    with pytest.raises(ValueError, match="'Unknown' is not registered"):
        MultiConnector.build_kv_connector_stats({"Unknown": {}})


def test_a_step_without_news_publishes_nothing() -> None:
    engine = scheduler([child("Scripted")])
    engine.add_request(request("a", 2 * BLOCK))
    step(engine)
    engine.published.clear()
    step(engine)
    assert engine.published == [None]

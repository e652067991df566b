from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvserving_operator.verify import activity
from kvserving_operator.verify.activity import Activity, Core
from kvserving_operator.verify.legs import Caller, Endpoint, Failure

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} c"} 2.0
vllm:num_requests_running{engine="1",model_name="a {b} c"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a {b} c"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a {b} c"} 1.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="a {b} c",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a {b} c",reason="deferred"} 2.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="a {b} c",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="a {b} c",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="1",model_name="a {b} c",sleep_state="awake"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a {b} c"} 0.25
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a {b} c"} 40.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a {b} c"} 1000.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="a {b} c"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="a {b} c"} 1.0
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="a {b} c"} 7.0
vllm:nixl_bytes_transferred_count{engine="0",model_name="a {b} c"} 7.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="a {b} c"} 9.0
# TYPE vllm:nixl_num_failed_transfers_total counter
vllm:nixl_num_failed_transfers_total{engine="0",model_name="a {b} c"} 1.0
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="a {b} c"} 6.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="a {b} c"} 6.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="a {b} c"} 1.5
# TYPE vllm:request_prefill_kv_computed_tokens histogram
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="a {b} c"} 900.0
# TYPE kvserving:guard_unanswered_requests gauge
kvserving:guard_unanswered_requests 4.0
"""


def test_each_rank_is_told_by_itself_and_the_guard_for_all() -> None:
    found = activity.parse(TEXT)
    assert found.unanswered == 4
    assert found.cores["0"] == Core(
        running=2, waiting=3, deferred=2, usage=0.25, generated=40, prompt=1000, finished=6, transfers=8,
        prefill_seconds=1.5, prefills=6, computed=900,
    )  # fmt: skip
    assert found.cores["1"] == Core(waiting=1, asleep=True)


@pytest.mark.parametrize("text", ["", "# nothing\n", 'kvserving:receipts_total{engine="0"} 1.0\n'])
def test_without_statistics_there_is_no_core(text: str) -> None:
    found = activity.parse(text)
    assert found.cores == {}
    assert found.unanswered is None


def test_a_vllm_without_reasons_of_waiting_tells_nothing_of_them() -> None:
    text = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
    assert activity.parse(text).cores["0"].deferred is None


def test_a_broken_line_is_refused_where_it_matters_alone() -> None:
    activity.parse("<html>not metrics</html>")
    with pytest.raises(ValueError, match="not-a-number"):
        activity.parse('vllm:num_requests_running{engine="0"} not-a-number\n')


def read(status: int, text: str) -> Activity | Failure:
    """Ask an engine that answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    async def work() -> Activity | Failure:
        app = web.Application()
        app.router.add_get("/metrics", answer)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            return await Caller(session, 5).activity(Endpoint("d", "decode", str(server.make_url("")).rstrip("/")))

    return asyncio.run(work())


def test_it_is_read_from_the_engine() -> None:
    assert read(200, TEXT) == activity.parse(TEXT)


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (503, "", "decode d answered 503"),
        (200, 'vllm:num_requests_running{engine="0"} x\n', "something else than expected"),
    ],
)
def test_an_engine_that_cannot_be_read_is_a_failure(status: int, text: str, says: str) -> None:
    found = read(status, text)
    assert isinstance(found, Failure)
    assert says in found.message

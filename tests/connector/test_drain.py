from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from kvserving_connector.drain import LEADER, STALLED_SECONDS, Load, Reading, Silence, drain, main, parse, read

METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_running{engine="1",model_name="a b"} 1.0
vllm:num_requests_waiting{engine="0"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 4.0
vllm:request_success_total{finished_reason="stop"} 5.0
vllm:request_success_total{finished_reason="length"} 6.0
vllm:generation_tokens_total{engine="0"} 100.0
vllm:prompt_tokens_total{engine="0"} 200.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""
LOAD = Load(busy=7.0, finished=11.0, work=(3.0, 4.0, 11.0, 100.0, 200.0, 0.5))


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(load: Callable[[float], Reading], timeout: float, lease: float = 0.0) -> tuple[float, bool]:
    clock = Clock()
    drained = drain(lambda: load(clock.now - 100.0), timeout=timeout, lease=lease, clock=clock, sleep=clock.sleep)
    return clock.now - 100.0, drained


def test_metrics_are_summed_over_engines_and_labels() -> None:
    assert parse(METRICS) == LOAD


def test_an_idle_decode_waits_three_seconds_for_its_router() -> None:
    assert waited(lambda now: Load(0, 5), timeout=60) == (3.0, True)


def test_running_requests_are_waited_for_until_the_timeout() -> None:
    assert waited(lambda now: Load(1 if now < 7 else 0, 5), timeout=60) == (7.0, True)
    assert waited(lambda now: Load(1, 5), timeout=10) == (10.0, False)


def test_prefill_keeps_its_blocks_for_the_lease_after_the_last_finished_request() -> None:
    assert waited(lambda now: Load(1 if now < 7 else 0, 5), timeout=60, lease=20)[0] == 6.5 + 20
    assert waited(lambda now: Load(0, 5), timeout=60, lease=20)[0] == 20
    assert waited(lambda now: Load(0, 5 if now < 2 else 6), timeout=60, lease=20)[0] == 2 + 20


def test_a_prefill_that_never_served_has_no_lease_to_wait_for() -> None:
    assert waited(lambda now: Load(0, 0), timeout=60, lease=20) == (3.0, True)


def test_an_engine_that_is_gone_is_not_waited_for() -> None:
    assert waited(lambda now: Silence.GONE, timeout=60, lease=20)[0] == 3.0
    assert waited(lambda now: Load(0, 5) if now < 10 else Silence.GONE, timeout=60, lease=20)[0] == 11.5


def test_an_engine_that_answers_late_may_have_requests_and_is_waited_for() -> None:
    assert waited(lambda now: Load(1, 5) if now < 2 else Silence.LATE, timeout=60) == (60.0, False)
    assert waited(lambda now: Silence.LATE if now < 9 else Load(0, 5), timeout=60) == (9.0, True)
    assert waited(lambda now: Silence.LATE, timeout=600) == (STALLED_SECONDS, False)


@pytest.mark.parametrize("silence", Silence)
def test_one_missed_answer_ends_no_lease(silence: Silence) -> None:
    def load(now: float) -> Reading:
        return silence if now == 10 else Load(1 if now < 7 else 0, 5)

    assert waited(load, timeout=60, lease=20)[0] == 6.5 + 20


def test_requests_that_stand_still_are_given_up_and_slow_ones_are_not() -> None:
    assert waited(lambda now: Load(1, 5, (0.5,)), timeout=600, lease=20) == (STALLED_SECONDS, False)
    slow = waited(lambda now: Load(1 if now < 400 else 0, 5, (now // 100,)), timeout=600)
    assert slow == (400.0, True)
    assert waited(lambda now: Load(1, 5, (0.5,)), timeout=60) == (60.0, False)


@contextmanager
def serving(metrics: str, address: str = "127.0.0.1") -> Iterator[int]:
    """An engine's metrics at a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(metrics.encode())

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer((address, 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_the_engines_own_metrics_are_read_over_http() -> None:
    with serving(METRICS) as port:
        assert read("127.0.0.1", port) == LOAD
    assert read("127.0.0.1", port) is Silence.GONE


@pytest.mark.parametrize("line", ['vllm:num_requests_running{engine="0"} ', "vllm:num_requests_running"])
def test_a_page_that_cannot_be_read_does_not_look_like_an_idle_engine(line: str) -> None:
    with serving(f"{line}\n") as port:
        found = read("127.0.0.1", port)
    assert found is Silence.LATE


def test_an_answer_that_does_not_come_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvserving_connector.drain.ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert read("127.0.0.1", listener.getsockname()[1]) is Silence.LATE


@pytest.mark.parametrize(("leader", "timeout", "said"), [("127.0.0.2", 0, "timeout"), ("127.0.0.3", 60, "drained")])
def test_a_further_pod_of_an_engine_waits_for_its_leaders_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leader: str, timeout: int, said: str
) -> None:
    monkeypatch.setenv(LEADER, leader)
    monkeypatch.setattr("kvserving_connector.drain.MIN_SECONDS", 0.0)
    with serving(METRICS, "127.0.0.2") as port:
        assert main(["--leader", f"--port={port}", f"--timeout={timeout}"]) == 0
    assert capsys.readouterr().out.startswith(said)


def test_a_pod_without_a_group_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LEADER, raising=False)
    assert main(["--leader", "--timeout=60"]) == 0
    assert LEADER in capsys.readouterr().out

"""What the executor does about engines that live and are of no use; their processes are stand-ins in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kvserving_operator.local import watch
from kvserving_operator.local.pods import LocalPod
from kvserving_operator.verify.activity import Activity, Core
from kvserving_operator.verify.legs import Endpoint, Failure

IDLE = Activity({"0": Core(deferred=0)}, 0)
STUCK = Activity({"0": Core(waiting=1, deferred=0)}, 1)


@dataclass
class Runner:
    """As much of a ``PodRunner`` as is looked at; a restart takes no time."""

    role: str
    shows: Activity | Failure = IDLE
    arguments: tuple[str, ...] = ()
    ready: bool = True
    generation: int = 1
    asked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        pod = LocalPod(f"svc-{self.role}-0", self.role, "default", {}, {}, {"args": self.arguments})
        self.spec = SimpleNamespace(pod=pod, address="127.0.0.2", port=8000)
        self.log = SimpleNamespace(note=self.notes.append)

    def request_restart(self, reason: str) -> None:
        self.asked.append(reason)
        self.generation += 1


class Stage:
    """A watch over one prefill and one decode engine, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        self.now = 1000.0
        self.engines = [Runner("prefill"), Runner("decode", arguments=arguments)]
        self.watch = watch.EngineWatch("0123abcd")
        monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def activity(self, endpoint: Endpoint) -> Activity | Failure:
        return next(one.shows for one in self.engines if one.role == endpoint.role)

    def look(self, times: int = 1) -> None:
        engines: Any = self.engines
        for _ in range(times):
            asyncio.run(self.watch._look(engines, self, watch.LIMITS))  # type: ignore[arg-type]
            self.now += 10

    def hear(self, reason: str | None = None) -> None:
        engines: Any = self.engines
        pair = {"prefill": "svc-prefill-0", "decode": "svc-decode-0", "ok": reason is None, "reason": reason}
        self.watch.hear(engines, {"ok": reason is None, "pairs": [pair]})
        self.look(3)

    @property
    def asked(self) -> dict[str, int]:
        return {one.role: len(one.asked) for one in self.engines if one.asked}


def test_a_hung_engine_is_restarted_once_and_its_next_process_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.engines[1].shows = STUCK
    stage.look(6)
    assert stage.asked == {}
    stage.look()
    assert stage.asked == {"decode": 1}
    stage.look(6)
    assert stage.asked == {"decode": 1}


def test_it_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.engines[1].shows = STUCK
    stage.look(1000)
    assert stage.asked == {"decode": 5}
    last = [note for note in stage.engines[1].notes if "in a row" in note]
    assert len(last) == 1
    assert last[0].startswith("svc-decode-0: has requests waiting, none running")


def test_a_decode_that_can_no_longer_fetch_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.hear()
    for _ in range(3):
        stage.hear("TransferFailed")
    assert stage.asked == {}
    stage.hear("TransferFailed")
    assert stage.asked == {"decode": 1}
    assert stage.engines[1].asked[0].startswith("PeerStale: cannot fetch from svc-prefill-0")


def test_one_that_computes_instead_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, '--kv-transfer-config={"kv_load_failure_policy":"recompute"}')
    stage.hear()
    for _ in range(9):
        stage.hear("TransferFailed")
    assert stage.asked == {}


def test_engines_that_are_not_ready_or_silent_are_left_to_their_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.engines[0].shows, stage.engines[0].ready = STUCK, False
    stage.engines[1].shows = Failure("timeout", "decode did not answer /metrics within 5 s")
    stage.look(100)
    assert stage.asked == {}

"""Whatever requests, evictions and delays do: no false promise, no wrong byte, and nothing is left behind."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.connector.worker_cache.engine import Engine
from tests.connector.worker_cache.pages import full, mamba, sliding
from tests.connector.worker_cache.settings import store

pytestmark = pytest.mark.engine
BLOCK = 16
GROUPS: dict[str, tuple[Any, ...]] = {
    "full": (full(),),
    "window": (full(), sliding(40)),
    "wide": (full(), sliding(40, 32)),
    "states": (full(32), mamba(32)),
    "three": (full(32), sliding(70, 32), mamba(32)),
}
LONGEST = 400
# Prompts share beginnings: each is one of two stems and, from some length on, its own.
STEMS = [[stem * 100 + index % 97 for index in range(LONGEST)] for stem in (1, 2)]


class Machine(RuleBasedStateMachine):
    groups: tuple[Any, ...] = ()
    offload = "eager"
    l2 = False

    @initialize(
        slots=st.lists(st.integers(6, 40), min_size=1, max_size=3),
        lag=st.lists(st.integers(0, 3), min_size=3, max_size=3),
        room=st.integers(2, 40),
        delay=st.integers(0, 1),
        batch=st.sampled_from([64, 128, 512]),
        policy=st.sampled_from(["recompute", "fail"]),
        prompt_only=st.booleans(),
        idle=st.booleans(),
    )
    def begin(
        self,
        slots: list[int],
        lag: list[int],
        room: int,
        delay: int,
        batch: int,
        policy: str,
        prompt_only: bool,
        idle: bool,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.engine = Engine(
            groups=self.groups,
            slots=slots,
            lag=lag,
            blocks=LONGEST // BLOCK * len(self.groups) + room,
            delay=delay,
            batch=batch,
            policy=policy,
            offload=self.offload,
            offload_prompt_only=prompt_only,
            **(store(self.folder) if self.l2 else {}),
        )
        for rank in self.engine.ranks:
            rank.saves_when_idle = idle

    @rule(stem=st.integers(0, 1), shared=st.integers(0, 300), own=st.integers(0, 60), answer=st.integers(1, 40))
    def add(self, stem: int, shared: int, own: int, answer: int) -> None:
        if len(self.engine.scheduler.requests) < 6 and shared + own:
            self.engine.add(STEMS[stem][:shared] + [len(self.engine.answers)] * own, answer=answer)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(which=st.integers(0, 5))
    def abort(self, which: int) -> None:
        running = list(self.engine.scheduler.requests)
        if which < len(running):
            self.engine.abort(running[which])

    @rule()
    def flood(self) -> None:
        self.engine.scheduler.reset_prefix_cache()

    @rule()
    def reset(self) -> None:
        self.engine.scheduler.reset_prefix_cache(reset_connector=True)

    @precondition(lambda self: self.l2)
    @rule(which=st.integers(0, 1000))
    def lose(self, which: int) -> None:
        """One rank's L2 loses an object."""
        if objects := sorted(path for path in self.folder.rglob("*") if path.is_file()):
            objects[which % len(objects)].unlink(missing_ok=True)

    @rule()
    def quiet(self) -> None:
        self.engine.settle()
        self.engine.check_over()
        if self.l2:
            # What was read for a request that went away is held and not tracked.
            assert self.engine.tracked() <= self.engine.held_by_all()
        else:
            self.engine.check_tracked()

    @invariant()
    def nothing_is_wrong(self) -> None:
        engine = self.engine
        assert [rank.false_promises for rank in engine.ranks] == [0] * len(engine.ranks)
        assert engine.head.tracker.used <= min(rank.pool.capacity for rank in engine.ranks)
        for request_id, text in engine.texts.items():
            assert engine.answers[request_id] == text.answer(len(engine.answers[request_id]))
        assert "error" not in {str(reason) for reason in engine.ended.values()}

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            try:
                self.quiet()
                for request_id, reason in self.engine.ended.items():
                    assert str(reason) in ("length", "abort"), (request_id, reason)
            finally:
                self.engine.close()
                shutil.rmtree(self.folder)


@pytest.mark.parametrize("groups", GROUPS)
def test_of_l1_alone(groups: str) -> None:
    class OfL1(Machine):
        pass

    OfL1.groups = GROUPS[groups]
    run_state_machine_as_test(OfL1, settings=settings(max_examples=20, stateful_step_count=20))


@pytest.mark.parametrize("groups", ["full", "three"])
def test_of_l1_and_l2(groups: str) -> None:
    class OfBoth(Machine):
        l2 = True

    OfBoth.groups = GROUPS[groups]
    run_state_machine_as_test(OfBoth, settings=settings(max_examples=10, stateful_step_count=20))


@pytest.mark.parametrize("groups", ["full", "states"])
def test_of_lazy_saves(groups: str) -> None:
    class OfLazy(Machine):
        offload = "lazy"

    OfLazy.groups = GROUPS[groups]
    run_state_machine_as_test(OfLazy, settings=settings(max_examples=10, stateful_step_count=20))

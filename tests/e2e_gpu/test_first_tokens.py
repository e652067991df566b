"""``e2e.gpu.first_tokens`` without an engine: the order of prompts, what times say, which engines are started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.gpu import first_tokens
from e2e.gpu.engine import Answer
from e2e.gpu.first_tokens import Lane, Task, environment, run_engine, tasks
from e2e.gpu.first_tokens_engine import FEWEST_TO_LEARN, LOADED, MOST_TO_LEARN, Trial, looked, same, to_learn
from e2e.gpu.records import Records, read
from e2e.gpu.rounds import RUNS, Spread, against_cold, bound, plan
from e2e.gpu.sides import SIDES, transfer
from e2e.gpu.timed import SHAPES, Timed

from kvserving_connector.core.tier_settings import TierSettings
from kvserving_connector.core.worker_settings import WorkerCacheSettings


def rounds(cold: Sequence[float], l1: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """Return one round a run."""
    return [{"run": run, "cold": a, "l1": b, **more} for run, (a, b) in enumerate(zip(cold, l1, strict=True))]


def test_lengths_take_turns_and_every_prompt_is_another() -> None:
    found = plan([1, 2, 3], runs=2, repeats=2)
    assert [turn.length for turn in found] == [1, 2, 3, 3, 2, 1] * 2
    assert [turn.run for turn in found] == [0] * 6 + [1] * 6
    assert len({turn.name for turn in found}) == 12


def test_costs_have_what_they_need_before_a_round_counts() -> None:
    assert [to_learn(length) for length in (64, 512, 8000, 32000)] == [
        MOST_TO_LEARN, 39, FEWEST_TO_LEARN, FEWEST_TO_LEARN
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("computed", "own", "loaded", "found"),
    [
        (1, 1, 1, "equal"),
        (1, 1, None, "equal"),
        (1, 2, 2, "rounding"),
        (1, 2, None, "rounding"),
        (1, 1, 2, "other"),
        (1, 2, 1, "other"),
    ],
)
def test_a_loaded_prompt_has_the_first_token_of_the_engines_own_cache(
    computed: int, own: int, loaded: int | None, found: str
) -> None:
    assert same(computed, own, loaded) == found


def test_a_model_with_states_is_asked_whole_blocks_once_each() -> None:
    assert SHAPES["tiny-qwen3-next"].asked((100, 512, 700, 2000), 256) == (256, 512, 1792)
    assert SHAPES["tiny-gemma3"].asked((100, 512, 700, 2000), 256) == (100, 512, 700, 2000)


def test_the_figure_of_a_run_is_its_median_and_the_spread_is_that_of_runs() -> None:
    found = [{"run": run, "cold": 0.1 * run + extra} for run in (1, 2, 3) for extra in (0.0, 0.01, 5.0)]
    spread = Spread.of(found, "cold")
    assert (spread.least, spread.median, spread.most) == pytest.approx((0.11, 0.21, 0.31))
    assert spread.noise == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("l1", "verdict"), [(0.1, "below"), (0.102, "below"), (0.11, "within noise"), (0.1131, "above"), (0.2, "above")]
)
def test_a_tier_is_above_computing_only_beyond_the_noise_of_computing(l1: float, verdict: str) -> None:
    assert against_cold(rounds([0.1, 0.102, 0.11], [l1] * 3), "l1") == verdict


def test_the_bound_is_of_a_hit_and_the_bytes_over_the_link() -> None:
    found = rounds([1.0] * 3, [0.2] * 3, own=0.05, loaded=1000)
    assert bound(found, 1_000_000, 10e9) == pytest.approx(1.1 * (0.05 + 0.1))
    assert bound(rounds([1.0] * 3, [0.2] * 3, own=0.05, loaded=0), 1_000_000, 10e9) is None


def test_our_sides_leave_loads_to_measured_costs_and_their_settings_are_taken(tmp_path: Path) -> None:
    for name, parse in (("scheduler", TierSettings.parse), ("worker", WorkerCacheSettings.parse)):
        side, always = SIDES[name], SIDES[f"{name}-always"]
        assert str(parse(side.extra(2**30, "gpu", tmp_path, 2**40)).loads) == "auto"
        assert str(parse(always.extra(2**30, "gpu")).loads) == "always"
        (tier,) = side.extra(2**30, "gpu", tmp_path, 2**40)["secondary_tiers"]
        assert (tier["urls"], tier["max_bytes"]) == ([f"file://{tmp_path}"], 2**40)
        assert (side.learns, always.learns) == (True, False)


def test_vllms_own_connector_has_the_same_memory_and_none_of_our_settings() -> None:
    found = transfer(SIDES["stock"].connector, SIDES["stock"].extra(2**30, "gpu"))
    assert found == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**30},
    }
    assert transfer(SIDES["none"].connector, {}) is None


@pytest.mark.parametrize("shape", [shape for shape in SHAPES.values() if shape.dense], ids=lambda shape: shape.name)
def test_a_flood_takes_the_own_cache_several_times_over_and_fits_into_l1(shape: Timed) -> None:
    (number, tokens), (again, length) = shape.flood, shape.flooded
    assert number == 500
    assert number * tokens * shape.kv_token > 2.5 * shape.own_bytes
    assert (number * tokens + again * length) * shape.kv_token < shape.l1_bytes
    assert (max(shape.lengths) + 64) * shape.kv_token < shape.own_bytes


def test_engines_with_a_store_come_last_and_only_for_ours() -> None:
    assert tasks(["none", "stock", "worker"], ["tiers", "flood", "store"]) == [
        Task("none", ("tiers", "flood")),
        Task("stock", ("tiers", "flood")),
        Task("worker", ("tiers", "flood")),
        Task("worker", ("store",)),
    ]
    assert tasks(["none", "scheduler"], ["store"]) == [Task("scheduler", ("store",))]


class Engine:
    """Stands in for an engine with tiers: remembers what it was asked, and counts. ``wrong``: L1 gives other KV."""

    def __init__(self, *, loads: bool = True, wrong: bool = False) -> None:
        self.loads, self.wrong = loads, wrong
        self.own: set[tuple[int, ...]] = set()
        self.l1: set[tuple[int, ...]] = set()
        self.stored: set[tuple[int, ...]] = set()
        self.counts: Counter[str] = Counter()
        self.settled = 0
        self.written: list[tuple[int, ...]] = []
        """What settling puts into the store: it is written behind the answer."""

    def facts(self) -> dict[str, Any]:
        return {"block": 16, "blocks": 100, "pinned": [None]}

    def first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        key = tuple(prompt)
        right, whole = sum(key) % 1000, (len(key) - 1) // 16 * 16
        tier = "l1" if key in self.l1 else "l2" if key in self.stored else ""
        external = key not in self.own and bool(tier)
        if external:
            self.counts["vllm:external_prefix_cache_hits"] += whole if self.loads else 0
            self.counts["kvserving:tier_loads_skipped"] += not self.loads
            self.counts[f"{LOADED} {tier}"] += whole if self.loads else 0
        self.own.add(key)
        self.l1.add(key)
        if key not in self.stored and key not in self.written:
            self.written.append(key)
        return len(key) * 1e-3, right + (self.wrong and external)

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int, *, together: bool = False) -> list[Answer]:
        self.own.clear()
        return [Answer((1,), (0.5,)) for _ in prompts]

    def settle(self) -> None:
        """Write half of a prompt each third time, as bytes are counted when a part of a prompt is in the store."""
        if self.written:
            self.settled += 1
            if self.settled % 3 == 0:
                key = self.written[0]
                self.counts["kvserving:store_written_bytes"] += (len(key) - 1) // 16 * 16 * SHAPES["tiny"].kv_token // 2
                if self.settled % 6 == 0:
                    self.stored.add(self.written.pop(0))

    def forget(self, *, l1: bool = False) -> None:
        """Empty both; what was not written when L1 is emptied is lost."""
        self.own.clear()
        if l1:
            self.l1.clear()
            self.written.clear()

    def counted(self, name: str, **labels: str) -> int:
        return self.counts[f"{name} {labels['tier']}" if "tier" in labels else name]


def trial(side: str, engine: Engine, seconds: float = 60.0) -> Trial:
    started = time.monotonic()
    stands_in: Any = engine
    return Trial(stands_in, SIDES[side], SHAPES["tiny"], (32, 64), lambda: seconds - (time.monotonic() - started))


@pytest.mark.parametrize("part", ["tiers", "flood", "store"])
def test_a_sound_engine_has_no_problem(part: str) -> None:
    found = looked(trial("worker", Engine()), part)
    json.dumps(found)
    assert (found["outcome"], found["problems"]) == ("measured", [])
    if part != "flood":
        assert {one["run"] for of in found["rounds"].values() for one in of} == set(range(RUNS))
        assert found["learned"]["32"]["taken"] == found["learned"]["32"]["rounds"]


def test_an_engine_without_a_connector_is_timed_without_l1() -> None:
    found = looked(trial("none", Engine()), "tiers")
    assert (found["outcome"], found["verdicts"]) == ("measured", {})
    assert all("l1" not in one for of in found["rounds"].values() for one in of)


def test_a_load_that_costs_refuse_is_no_problem() -> None:
    found = looked(trial("worker", Engine(loads=False)), "tiers")
    assert (found["outcome"], found["learned"]["32"]["taken"]) == ("measured", 0)


@pytest.mark.parametrize("part", ["tiers", "flood", "store"])
def test_another_token_is_a_problem(part: str) -> None:
    assert "other answers" in looked(trial("worker", Engine(wrong=True)), part)["problems"][0]


def test_a_part_that_fails_is_told_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(engine, "forget", lambda: next(iter(())))
    found = trial("worker", engine)
    assert [looked(found, part)["outcome"] for part in ("tiers", "flood")] == ["failed", "measured"]
    assert looked(found, "tiers")["fault"].startswith("StopIteration without a text in <lambda> (test_first_tokens.py")


def test_one_answer_to_all_prompts_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "first_token", lambda self, prompt: (0.1, 7))
    assert looked(trial("none", Engine()), "tiers")["problems"] == [
        "all prompts have one answer: equal ones prove nothing"
    ]


@pytest.mark.parametrize(("part", "state"), [("tiers", "from l1"), ("flood", "from L1"), ("store", "from l2")])
def test_a_tier_that_gives_nothing_is_a_problem(part: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(engine, "counted", lambda name, **labels: engine.counts[name] if "written" in name else 0)
    assert state in looked(trial("worker", engine), part)["problems"][0]


def test_a_store_that_does_not_take_all_of_a_prompt_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.gpu.first_tokens_engine._STORED_SECONDS", 0)
    engine = Engine()
    monkeypatch.setattr(engine, "counted", lambda name, **labels: min(1000, engine.counts[name]))
    found = looked(trial("worker", engine), "store")
    assert found["outcome"] == "failed"
    assert found["fault"] == "TimeoutError: of 131,072 bytes 0 are written, 0 chunks are still to be"


def test_when_time_runs_out_in_a_flood_the_ones_before_it_are_kept() -> None:
    found = trial("worker", Engine())
    asked = iter([60.0] * 30 + [-1.0])
    found._left = lambda: next(asked)
    assert [one["run"] for one in looked(found, "flood")["runs"]] == [0]


@pytest.mark.parametrize("part", ["tiers", "flood", "store"])
def test_without_time_for_one_run_a_part_is_left_out(part: str) -> None:
    assert looked(trial("worker", Engine(), seconds=-1.0), part)["outcome"] == "left out"


def test_when_time_runs_out_whole_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trial("worker", Engine())
    monkeypatch.setattr("e2e.gpu.first_tokens_engine.to_learn", lambda length: 2)
    # Four rounds to learn, and ten of each run: time ends within the third.
    asked = iter([60.0] * (4 + 2 * 10 + 3) + [-1.0])
    found._left = lambda: next(asked)
    rounds = looked(found, "tiers")["rounds"]
    assert {length: [one["run"] for one in of] for length, of in rounds.items()} == {
        "32": [0] * 5 + [1] * 5,
        "64": [0] * 5 + [1] * 5,
    }


def lane(tmp_path: Path, budget: float = 600.0) -> Lane:
    records = Records(tmp_path / "raw.jsonl", {"device": "none"})
    return Lane(SHAPES["tiny"], (64,), tmp_path, tmp_path, records, budget, [None])


def test_what_an_engine_found_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(words: Sequence[str], variables: object, log: Path, seconds: float, running: object) -> str:
        found = next(word for word in words if word.startswith("--found=")).partition("=")[2]
        Path(found).write_text(json.dumps({"part": "tiers", "outcome": "measured", "took": 1.0, "rounds": {}}) + "\n")
        log.write_text("starts\nno memory\n")
        return "ended with status 1"

    monkeypatch.setattr(first_tokens, "run_engine", engine)
    found = lane(tmp_path)
    found.run([Task("worker", ("tiers", "flood"))])
    told = read(found.records.file)
    assert [(one["step"], one["outcome"]) for one in told] == [("ttft-tiers", "measured"), ("ttft-flood", "failed")]
    assert told[1]["fault"] == "the engine ended with status 1: no memory\nstarts\nno memory"


def test_an_engine_that_there_is_no_time_for_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_tokens, "run_engine", None)
    found = lane(tmp_path, budget=1.0)
    found.run([Task("none", ("tiers",))])
    assert [one["outcome"] for one in read(found.records.file)] == ["left out"]


@pytest.mark.parametrize(("found_before", "outcome"), [(0, "left out"), (1, "failed")])
def test_an_engine_that_the_budget_ends_before_it_measures_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_before: int, outcome: str
) -> None:
    def engine(words: list[str], variables: Any, log: Path, seconds: float, running: Any) -> None:
        file = next(word for word in words if word.startswith("--found=")).removeprefix("--found=")
        Path(file).write_text('{"part": "tiers", "took": 1.0, "outcome": "measured"}\n' * found_before)
        log.write_text("loads weights\n")
        raise subprocess.TimeoutExpired("engine", seconds)

    monkeypatch.setattr(first_tokens, "run_engine", engine)
    found = lane(tmp_path, budget=100.0)
    found.run([Task("worker", ("tiers", "flood"))])
    told = read(found.records.file)[-1]
    assert (told["step"], told["outcome"]) == ("ttft-flood", outcome)
    assert "stopped when the budget had ended, after 130 s: loads weights" in told["fault"]
    assert found.records.failed == (outcome == "failed")


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for an engine that does not end; return the file with its child's process id."""
    program = tmp_path / "stuck"
    program.write_text(
        f"#!/bin/sh\nsleep 300 & echo $! > {tmp_path}/making && mv {tmp_path}/making {tmp_path}/child\nwait\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path / "child"


def gone(child: Path) -> bool:
    """Whether the process ends within seconds."""
    state, until = Path("/proc", child.read_text().strip(), "stat"), time.monotonic() + 10
    while state.exists() and state.read_text().split()[2] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_an_engine_is_stopped_with_all_its_processes_when_its_time_is_over(tmp_path: Path, stuck: Path) -> None:
    running: set[Any] = set()
    with pytest.raises(subprocess.TimeoutExpired):
        run_engine([], environment(None), tmp_path / "log", 1.0, running)
    assert gone(stuck)
    assert not running


def test_who_is_told_to_end_leaves_no_engine_behind(tmp_path: Path, stuck: Path) -> None:
    found = lane(tmp_path)
    before = signal.signal(signal.SIGALRM, lambda *_: sys.exit(143) if stuck.exists() else None)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(SystemExit):
            found.run([Task("none", ("tiers",)), Task("worker", ("tiers",))])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert gone(stuck)
    assert {one["variant"] for one in found.records.written} <= {"none"}


def test_each_engine_has_a_gpu_of_its_own() -> None:
    assert environment("3")["CUDA_VISIBLE_DEVICES"] == "3"

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.reasons import Reason
from kvserving_operator.recovery.findings import Finding
from kvserving_operator.recovery.policy import RATE, Engine, Rate, Restart, decide, in_a_row


def engine(pod: str, *, serving: bool = True, uid: str = "") -> Engine:
    return Engine(pod, uid or f"uid-{pod}", "prefill" if pod.startswith("p") else "decode", "r1", serving)


def hung(pod: str) -> Finding:
    return Finding(pod, Reason.ENGINE_HUNG, "hangs", idle=True)


def stale(pod: str) -> Finding:
    return Finding(pod, Reason.PEER_STALE, "cannot transfer", idle=False)


def done(pod: str, at: float) -> Restart:
    return Restart(at, pod, f"uid-{pod}", engine(pod).role, "r1", Reason.ENGINE_HUNG)


FOUR = (engine("p1"), engine("p2"), engine("d1"), engine("d2"))


def test_without_a_finding_nothing_is_done() -> None:
    assert decide((), FOUR, (), 0.0).engine is None
    assert decide((), FOUR, (), 0.0).finding is None


def test_a_hung_engine_is_restarted_even_if_it_is_the_last_of_its_role() -> None:
    found = decide([hung("d1")], (engine("p1"), engine("d1")), (), 0.0)
    assert found.engine is not None
    assert found.engine.pod == "d1"


def test_the_last_that_serves_is_kept() -> None:
    found = decide([stale("d1")], (engine("p1"), engine("d1"), engine("d2", serving=False)), (), 0.0)
    assert found.engine is None
    assert found.why == "d1 is the last decode engine that serves"
    assert decide([stale("d1")], FOUR, (), 0.0).engine == engine("d1")


def test_engines_of_another_revision_do_not_stand_in() -> None:
    other = replace(engine("d2"), revision="r2")
    assert (
        decide([stale("d1")], (engine("p1"), engine("d1"), other), (), 0.0).why
        == "d1 is the last decode engine that serves"
    )


def test_a_rollout_that_loads_does_not_keep_a_restart_open() -> None:
    loading = replace(engine("d9", serving=False), revision="r2")
    assert decide([hung("p1")], (*FOUR, loading), [done("d0", 0)], 100).engine == engine("p1")


def test_of_several_the_one_that_serves_nobody_goes_first() -> None:
    found = decide([stale("d1"), hung("p2")], FOUR, (), 0.0)
    assert found.engine == engine("p2")


def test_one_at_a_time_until_the_role_is_whole_again() -> None:
    history = [done("d0", 1000)]
    replaced = (*FOUR, engine("d3", serving=False))
    assert decide([hung("p1")], replaced, history, 1100).why == "the restart of d0 is not over yet"
    assert decide([hung("p1")], FOUR, history, 1020).why == "the restart of d0 is not over yet"
    assert decide([hung("p1")], FOUR, history, 1100).engine == engine("p1")


def test_an_engine_that_does_not_come_back_does_not_hold_up_others_for_ever() -> None:
    replaced = (*FOUR, engine("d3", serving=False))
    assert decide([hung("p1")], replaced, [done("d0", 0)], RATE.settle).engine == engine("p1")


def test_a_pod_that_is_still_going_is_waited_for() -> None:
    assert decide([hung("p1")], FOUR, [done("d2", 0)], 300).why == "the restart of d2 is not over yet"
    assert decide([hung("d2")], FOUR, [done("d2", 0)], 300).finding is None


def test_pauses_of_a_role_grow_and_end() -> None:
    at, pauses = 0.0, list[float]()
    history: list[Restart] = []
    while True:
        found = decide([hung("d1")], (engine("p1"), engine("d1", uid=f"uid-{at}")), history, at)
        if found.engine is not None:
            history.append(Restart(at, "d1", found.engine.uid, "decode", "r1", Reason.ENGINE_HUNG))
            pauses.append(at)
        elif "in a row" in found.why:
            break
        at += 10
    assert [later - earlier for earlier, later in pairwise(pauses)] == [120, 240, 480, 960]
    assert found.why.startswith("5 restarts of decode engines in a row have not helped: look into the log of d1")


def test_after_calm_it_begins_anew() -> None:
    history = [done(f"d{n}", n * 1000.0) for n in range(10, 15)]
    assert "have not helped" in decide([hung("d1")], FOUR, history, 15_000).why
    assert decide([hung("d1")], FOUR, history, 14_000 + RATE.calm).engine == engine("d1")


def test_restarts_of_one_role_do_not_hold_up_the_other() -> None:
    history = [done(f"d{n}", n * 1000.0) for n in range(10, 15)]
    assert decide([hung("p1")], FOUR, history, 15_000).engine == engine("p1")


def test_the_same_process_is_not_restarted_again_at_once() -> None:
    quick = replace(RATE, first=0, least=0, settle=0)
    found = decide([hung("d1")], FOUR, [done("d1", 0)], 60, quick)
    assert found.why == "d1 was restarted a moment ago"
    assert decide([hung("d1")], FOUR, [done("d1", 0)], RATE.same, quick).engine == engine("d1")


def test_an_engine_that_is_gone_or_not_ready_is_left_to_the_cluster() -> None:
    assert decide([hung("d9")], FOUR, (), 0.0).finding is None
    assert decide([hung("d1")], (engine("p1"), engine("d1", serving=False)), (), 0.0).finding is None


@pytest.mark.parametrize("restarts", range(40))
def test_no_pause_is_longer_than_the_longest_or_shorter_than_the_one_before(restarts: int) -> None:
    assert RATE.pause(restarts) <= RATE.pause(restarts + 1) <= RATE.longest


@dataclass
class World:
    """Engines that fall ill as hypothesis says, and come back after a while under another uid."""

    engines: list[Engine]
    history: list[Restart] = field(default_factory=list)
    back: dict[str, float] = field(default_factory=dict)
    number: int = 0

    def restart(self, chosen: Engine, at: float, away: float, reason: Reason) -> None:
        self.history.append(Restart(at, chosen.pod, chosen.uid, chosen.role, chosen.revision, reason))
        self.number += 1
        self._set(replace(chosen, uid=f"again-{self.number}", serving=False))
        self.back[chosen.pod] = at + away

    def pass_time(self, at: float) -> None:
        for pod in [pod for pod, when in self.back.items() if when <= at]:
            del self.back[pod]
            self._set(replace(next(e for e in self.engines if e.pod == pod), serving=True))

    def _set(self, changed: Engine) -> None:
        self.engines = [changed if one.pod == changed.pod else one for one in self.engines]


steps = st.lists(
    st.tuples(
        st.floats(1, 400),
        st.lists(st.tuples(st.sampled_from(["p1", "p2", "d1", "d2", "d3"]), st.booleans()), max_size=4),
        st.floats(5, 900),
    ),
    max_size=80,
)


@given(steps)
def test_whatever_is_found_the_rules_hold(found: list[tuple[float, list[tuple[str, bool]], float]]) -> None:
    rate = Rate(calm=4000)
    world = World([engine(pod) for pod in ("p1", "p2", "d1", "d2", "d3")])
    at = 0.0
    for span, ill, away in found:
        at += span
        world.pass_time(at)
        findings = [hung(pod) if idle else stale(pod) for pod, idle in ill]
        decision = decide(findings, world.engines, world.history, at, rate)
        chosen = decision.engine
        if chosen is None:
            assert decision.finding is None or decision.why
            continue
        assert decision.finding in findings
        assert chosen.serving
        # One at a time.
        assert not [pod for pod in world.back if any(done.pod == pod for done in world.history[-1:])]
        # Never the last one that serves.
        same = [one for one in world.engines if one.role == chosen.role and one.serving and one != chosen]
        assert decision.finding is not None
        assert same or decision.finding.idle
        # Pauses grow with the restarts in a row, and there is an end.
        count = in_a_row(chosen.role, world.history, at, rate)
        assert count < rate.most
        last = [done.at for done in world.history if done.role == chosen.role][-1:]
        assert all(at - before >= rate.pause(count) for before in last if count)
        world.restart(chosen, at, away, decision.finding.reason)

"""Crashes at every write of a creation, of a change and of a deletion: the end is the same as without one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import Call, Match, Rule
from e2e.operator.objects import children, condition, differences, eventually, expected, path_of, planned, serving
from e2e.operator.pod_count import PodCount
from e2e.operator.running import Operator
from e2e.operator.waiting import settle, wait_children

CREATION = 14
"""Writes that a creation takes at least: the children, and one status."""
CHANGES = ("0.32.0", "0.33.0")
TIERS: Json = {"l1": {"size": "8Gi"}, "l2": {"size": "64Gi"}}


def crash_at(proxy: FaultProxy, operator: Operator, nth: int) -> tuple[Match, Call]:
    """Kill ``operator`` at its ``nth`` write: with odd numbers before it takes effect, with even ones after."""
    when = "before" if nth % 2 else "after"
    # An event follows a status, and nothing depends on it.
    match = Match.writes(nth=nth, where=lambda info, _: info.resource != "events")
    return match, Call(lambda _: operator.kill(), when=when, then="cut")  # type: ignore[arg-type]


def ended(operator: Operator) -> bool:
    return operator.process is not None and operator.process.poll() is not None


def check_quiet(proxy: FaultProxy, operator: Operator) -> None:
    """Restart ``operator`` once more: it must find nothing to do."""
    proxy.wait_quiet(0.5)
    operator.kill()
    since = time.monotonic()
    operator.start()
    eventually(lambda: operator.metric("kvserving_operator_reconciles_total"), lambda n: n >= 1, what="a reconcile")
    proxy.wait_quiet(0.3)
    assert [(r.info.verb, r.info.full_resource, r.info.name) for r in proxy.writes(since=since)] == []


def wait_ready(plane: ControlPlane, namespace: str, generation: int) -> Json:
    found = plane.api.wait(
        path_of(namespace),
        lambda o: (
            condition(o, "Ready").get("status") == "True"
            and condition(o, "Ready")["observedGeneration"] == generation
            and condition(o, "Progressing")["status"] == "False"
        ),
        what=f"generation {generation} ready",
        timeout=60,
    )
    assert found is not None
    return found


@pytest.mark.parametrize("nth", range(1, CREATION + 1))
def test_a_crash_at_any_write_of_a_creation_ends_in_the_same_state(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet, nth: int
) -> None:
    operator = start("--no-elect")
    with proxy.fault(*crash_at(proxy, operator, nth)):
        plane.api.create(serving(namespace))
        eventually(lambda: ended(operator), bool, what="the crash")
    operator.start()
    wait_ready(plane, namespace, 1)
    assert differences(plane, namespace) == []
    check_quiet(proxy, operator)


@pytest.mark.timeout(900)
def test_a_crash_at_any_write_of_a_new_revision_ends_in_the_same_state_and_keeps_capacity(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect")
    settle(plane, serving(namespace, cache=TIERS))
    crashes = 0
    with PodCount(plane, namespace, "decode") as decodes:
        # Each change rolls the revision; every other one takes the L2 store away or brings it back.
        # Later writes of a rollout repeat its earlier steps, with more pods.
        for nth in (*range(1, 8), *range(8, 200, 5)):
            cache = {"l2": None if nth % 4 < 2 else TIERS["l2"]}
            change = {"spec": {"engine": {"version": CHANGES[nth % 2]}, "cache": cache}}
            with proxy.fault(*crash_at(proxy, operator, nth)) as rule:
                generation = plane.api.merge(path_of(namespace), change)["metadata"]["generation"]
                eventually(
                    _crashed_or_ready(plane, namespace, operator, generation), bool, what="the crash, or the end"
                )
            if not rule.hits:
                break
            crashes += 1
            # The write may have told of its hit before the kill, and the object have been ready before that write.
            eventually(lambda: ended(operator), bool, what="the crash")
            operator.start()
            wait_ready(plane, namespace, generation)
            assert differences(plane, namespace) == [], f"after a crash at write {nth}"
    assert crashes >= 10
    assert decodes.least >= 2
    check_quiet(proxy, operator)


def _crashed_or_ready(plane: ControlPlane, namespace: str, operator: Operator, generation: int) -> Callable[[], bool]:
    def look() -> bool:
        found = plane.api.get(path_of(namespace))
        ready = condition(found, "Ready")
        done = ready["status"] == "True" and ready["observedGeneration"] == generation
        return ended(operator) or (done and condition(found, "Progressing")["status"] == "False")

    return look


@pytest.mark.parametrize("survives", [True, False], ids=["and_the_operator_goes_on", "and_the_operator_dies_with_it"])
def test_an_object_deleted_at_any_write_of_its_creation_leaves_nothing(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, survives: bool
) -> None:
    operator = start("--no-elect")
    for nth in range(1, CREATION, 1 if survives else 3):

        def delete(_: Any) -> None:
            if not survives:
                operator.kill()
            plane.api.delete(path_of(namespace))

        # The write takes effect all the same: with an owner that is gone.
        with proxy.fault(Match.writes(nth=nth), Call(delete)) as rule:
            plane.api.create(serving(namespace))
            eventually(functools.partial(hits, rule), bool, what=f"write {nth}")
            if not survives:
                eventually(lambda: ended(operator), bool, what="the crash")
                operator.start()
            wait_children(plane, namespace, set(), timeout=60)
    proxy.wait_quiet(0.5)
    assert children(plane, namespace) == {}


def hits(rule: Rule) -> int:
    return rule.hits


def test_a_crash_at_any_deletion_of_a_former_child_leaves_none(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect")
    settle(plane, serving(namespace, cache=TIERS))
    before = set(children(plane, namespace))
    less = {"spec": {"cache": None, "networkPolicy": {"enabled": False}}}
    deletions = 0
    with proxy.fault(Match.writes(verbs={"delete"}), Call(lambda _: operator.kill(), then="cut")) as rule:
        generation = plane.api.merge(path_of(namespace), less)["metadata"]["generation"]
        while True:
            eventually(_crashed_or_ready(plane, namespace, operator, generation), bool, what="a crash or the end")
            if not ended(operator):
                break
            # The next operator gets one deletion further.
            deletions = hits(rule)
            proxy.remove(rule)
            rule = proxy.add(Match.writes(verbs={"delete"}, nth=2), Call(lambda _: operator.kill(), then="cut"))
            operator.start()
    proxy.clear()
    wait_ready(plane, namespace, generation)
    assert differences(plane, namespace) == []
    assert deletions
    wants = expected(planned(plane, plane.api.get(path_of(namespace)), own_namespace=namespace))
    assert len(before - wants) >= 4
    check_quiet(proxy, operator)

"""Which requests a rule hits, how often, and which it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from e2e.controlplane.api import Api, ApiError
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import DropEvent, Match, Rule, Status
from e2e.controlplane.tests.objects import config_map, deployment


def test_only_the_nth_occurrence_is_hit(api: Api, proxy: FaultProxy, namespace: str) -> None:
    rule = proxy.add(Match.writes(nth={2, 4}), Status(500))
    outcomes = [_outcome(partial(api.create, config_map(namespace, f"m{n}"))) for n in range(5)]
    assert outcomes == [None, 500, None, 500, None]
    assert rule.hits == 2


def test_a_limited_rule_stops_after_its_hits(api: Api, proxy: FaultProxy, maps: str) -> None:
    proxy.add(Match(verbs={"list"}, times=2), Status(500))
    assert [_outcome(lambda: api.get(maps)) for _ in range(4)] == [500, 500, None, None]


def test_probability_follows_its_seed(api: Api, proxy: FaultProxy, maps: str) -> None:
    def run(seed: int) -> list[int | None]:
        with proxy.fault(Match(verbs={"list"}, probability=0.3, seed=seed), Status(500)):
            return [_outcome(lambda: api.get(maps)) for _ in range(60)]

    first = run(1)
    assert first == run(1)
    assert first != run(2)
    assert 5 <= first.count(500) <= 35


@pytest.mark.parametrize(
    "match",
    [
        Match(verbs={"create"}),
        Match(resource="deployments"),
        Match(resource="configmaps/status"),
        Match(name="b.*"),
        Match(namespace="other"),
        Match(group="apps"),
        Match(user_agent="kopf"),
        Match(where=lambda info, body: body is not None),
        Match.writes(),
    ],
    ids=("verb", "resource", "subresource", "name", "namespace", "group", "user-agent", "body", "writes"),
)
def test_a_rule_that_does_not_fit_does_nothing(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str, match: Match
) -> None:
    control_plane.api.create(config_map(namespace))
    rule = proxy.add(match, Status(500))
    assert api.get(f"{maps}/a")["metadata"]["name"] == "a"
    assert rule.hits == 0


def test_a_rule_can_ask_the_body(api: Api, proxy: FaultProxy, namespace: str) -> None:
    proxy.add(Match(where=lambda info, body: (body or {}).get("data", {}).get("x") == "bad"), Status(500))
    assert _outcome(lambda: api.create(config_map(namespace, "good", x="good"))) is None
    assert _outcome(lambda: api.create(config_map(namespace, "bad", x="bad"))) == 500


def test_a_fault_of_events_is_refused_for_requests() -> None:
    with pytest.raises(TypeError, match="DropEvent does not go with Match"):
        Rule(Match(), DropEvent())


def test_controllers_are_not_disturbed_by_rules(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str
) -> None:
    proxy.add(Match(resource="replicasets"), Status(500))
    api.create(deployment(namespace, "web", 1))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    control_plane.api.wait(path, lambda d: bool((d or {}).get("status", {}).get("replicas")), what="a ReplicaSet")
    assert _outcome(lambda: api.items(f"/apis/apps/v1/namespaces/{namespace}/replicasets")) == 500


def _outcome(act: Callable[[], object]) -> int | None:
    try:
        act()
    except ApiError as error:
        return error.status
    return None

"""Faults of a real node: engines' pods go, containerd is restarted."""

from __future__ import annotations

import pytest
from e2e.cluster.service import CHUNKS, GONE_SECONDS, NAME, UP_SECONDS, Served, answered
from e2e.controlplane.api import Json
from e2e.local.tiers import BLOCK
from e2e.operator.objects import eventually, path_of

RANKS = "Initializing a V1 LLM engine"
"""What vLLM's first rank says once it runs: from then on process 1 waits for it."""

pytestmark = [pytest.mark.engines, pytest.mark.timeout(UP_SECONDS + 300)]


def test_all_engines_deleted_at_once_come_back_are_proved_again_and_load_what_valkey_has(served: Served) -> None:
    served.wait("Ready")
    with served.storing("prefill", CHUNKS):
        cold = served.ask(4)
    router = served.pod("router")
    old = [*served.pods("prefill"), *served.pods("decode")]
    for pod in old:
        served.delete_pod(pod, grace=0)
    served.wait("Ready", "False", timeout=60)
    served.wait("Ready")
    present = {pod["metadata"]["uid"] for role in ("prefill", "decode") for pod in served.pods(role)}
    assert not present & {pod["metadata"]["uid"] for pod in old}
    before = served.read("prefill")
    warm = served.ask(4)
    assert warm.ids == cold.ids
    assert served.read("prefill").since(before).loaded == {"l1": 0, "l2": CHUNKS * BLOCK}
    assert served.pod("router")["metadata"]["uid"] == router["metadata"]["uid"]


def test_a_decode_pod_that_is_deleted_is_missed_by_nobody(served: Served) -> None:
    served.merge({"decode": {"replicas": 2}})
    served.wait("Ready")
    gone = served.pods("decode")[0]
    with served.traffic() as statuses:
        answered(statuses, 5)
        served.delete_pod(gone)
        served.wait("Ready", "False", timeout=60)
        answered(statuses, 10)
        served.wait("Ready")
        answered(statuses, 5)
    assert set(statuses) == {200}
    assert gone["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in served.pods("decode")}


@pytest.mark.parametrize("moment", ["imports", "waits for its ranks"])
def test_an_engine_that_does_not_serve_yet_goes_without_its_grace(served: Served, moment: str) -> None:
    """In the second moment vLLM itself drops a first SIGTERM."""
    served.merge({"decode": {"replicas": 3}})
    [loading] = eventually(
        lambda: [pod for pod in served.pods("decode") if _loads(pod)], bool, what="an engine loads", timeout=60
    )[:1]
    assert loading["spec"]["terminationGracePeriodSeconds"] > GONE_SECONDS, "it would not have gone before"
    if moment != "imports":
        eventually(lambda: served.log(loading), lambda log: RANKS in log, what="its ranks start", timeout=UP_SECONDS)
    served.delete_pod(loading)
    served.merge({"decode": {"replicas": 1}})
    served.wait("Ready")


def _loads(pod: Json) -> bool:
    """Whether the engine of a pod runs and has not been ready yet."""
    engines = [c for c in pod["status"].get("containerStatuses") or () if c["name"] == "engine"]
    return any("running" in one["state"] and not one["started"] for one in engines)


def test_containerd_is_restarted_under_traffic_and_no_pod_is(served: Served) -> None:
    served.settled()
    before = served.identities()
    with served.traffic() as statuses:
        answered(statuses, 3)
        served.lane.node.containerd.restart(downtime=5)
        answered(statuses, 10)
    assert set(statuses) == {200}
    assert served.identities() == before
    served.wait("Ready")


def test_the_object_is_the_same_one_still(served: Served) -> None:
    obj = served.lane.plane.api.get(path_of(served.namespace, NAME))
    assert "deletionTimestamp" not in obj["metadata"]
    assert "finalizers" not in obj["metadata"]

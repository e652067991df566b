"""Where an object's pods go, and what they take there: devices, taints, engines of several pods."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.doctor.world import SPEC, TAINTED, env, found, healthy, node, spoiled, with_pod
from tests.plan.support import edited

from kvserving_operator.doctor import checks

FACTS = healthy()
TWO_DECODES = healthy(edited(edited(SPEC, "decode.replicas", 1), "rollout.maxSurge", 0))
SPANNING = edited(edited(SPEC, "decode.nodes", 2), "decode.parallelism.tensor", 2)


def test_a_rollout_that_replaces_engines_needs_no_spare_device() -> None:
    assert "no-room-for-a-rollout" not in found(spoiled(TWO_DECODES, nodes=(node("a", **{"nvidia.com/gpu": "2"}),)))


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"operator": "Exists", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu"},
    ],
)
def test_a_toleration_of_the_template_lets_pods_onto_tainted_nodes(toleration: dict[str, str]) -> None:
    template = {"spec": {"tolerations": [toleration]}}
    spec = edited(edited(SPEC, "prefill.template", template), "decode.template", template)
    assert "tainted" not in found(spoiled(healthy(spec), nodes=TAINTED))


def test_a_role_whose_pods_have_nodes_is_left_to_the_scheduler() -> None:
    facts = with_pod(FACTS, "decode", lambda p: p["spec"].update(nodeName="a"))
    places = [f.where for f in checks.of_object(spoiled(facts, nodes=TAINTED)) if f.check == "tainted"]
    assert [place for place in places if "-decode-" in place] == []
    assert [place for place in places if "-prefill-" in place] != []


def test_what_leader_worker_set_adds_to_its_pods_is_no_finding() -> None:
    facts = healthy(SPANNING)

    def joined(p: Any) -> None:
        env(p, "LWS_LEADER_ADDRESS", "qwen-decode-0.qwen-decode.prod")
        env(p, "LWS_WORKER_INDEX", "0")

    assert found(with_pod(facts, "decode", joined)) == found(facts)
    assert "pod-env-added" in found(with_pod(facts, "prefill", joined))


def test_the_pods_of_an_engine_each_take_their_devices() -> None:
    facts = healthy(SPANNING)
    assert "too-few-devices" not in found(spoiled(facts, nodes=(node("a", **{"nvidia.com/gpu": "3"}),)))
    told = found(spoiled(facts, nodes=(node("a", **{"nvidia.com/gpu": "2"}),)))["too-few-devices"]
    assert "ask for 3" in told.what


def test_the_further_pods_of_an_engine_are_looked_at_too() -> None:
    facts = healthy(SPANNING)
    assert facts.live is not None
    leader = next(p for p in facts.live.pods if p["metadata"]["labels"]["kvserving.dev/role"] == "decode")
    worker = copy.deepcopy(leader)
    worker["metadata"]["name"] += "-1"
    worker["metadata"]["labels"]["kvserving.dev/role"] = "decode-worker"
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    worker["status"]["conditions"] = [nowhere]
    told = found(spoiled(facts, pods=(*facts.live.pods, worker)))
    assert told["unschedulable"].where == f"pod {worker['metadata']['name']}"

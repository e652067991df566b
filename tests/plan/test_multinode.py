"""Engines that span nodes: a LeaderWorkerSet whose leaders are the engines that everybody else knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plan.support import LOCAL, Rendered, faults, pair, render

from kvserving_operator.plan import labels
from kvserving_operator.plan.names import Names

SPAN = {"nodes": 2, "parallelism": {"tensor": 4}}


def spanning(role: str = "decode", **more: Any) -> Rendered:
    return render(pair(**{role: {**SPAN, **more.pop("section", {})}}, **more))


def groups(made: Rendered) -> Mapping[str, Any]:
    (found,) = made.all("LeaderWorkerSet")
    return found


def test_a_role_of_several_nodes_is_a_leader_worker_set_in_place_of_its_deployment() -> None:
    made = spanning(section={"replicas": 3})
    found = groups(made)
    assert (found["apiVersion"], found["spec"]["replicas"]) == ("leaderworkerset.x-k8s.io/v1", 3)
    assert found["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert {o["metadata"]["labels"][labels.ROLE] for o in made.all("Deployment")} == {"prefill", "router"}
    assert found["metadata"]["labels"] == labels.child_labels("qwen", "decode", made.plan.revision)
    noted = made.prefill.deployment["metadata"]["annotations"]
    assert found["metadata"]["annotations"] == noted


def test_one_node_stays_a_deployment() -> None:
    assert "LeaderWorkerSet" not in render(pair(decode={"nodes": 1, "parallelism": {"tensor": 4}})).kinds()


def test_each_pod_knows_which_part_of_the_engine_it_is() -> None:
    made = spanning()
    leader, worker = made.decode, made.worker("decode")
    assert {leader.flag("--nnodes"), worker.flag("--nnodes")} == {"2"}
    assert (leader.flag("--node-rank"), worker.flag("--node-rank")) == ("0", "$(LWS_WORKER_INDEX)")
    assert {leader.flag("--master-addr"), worker.flag("--master-addr")} == {"$(LWS_LEADER_ADDRESS)"}
    assert (leader.flags("--headless"), len(worker.flags("--headless"))) == ((), 1)
    assert leader.env["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert "VLLM_HOST_IP" not in made.prefill.env


def test_a_worker_is_the_leader_without_what_takes_requests() -> None:
    made = spanning(section={"args": ["--max-num-seqs", "64"], "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]})
    leader, worker = made.decode, made.worker("decode")
    assert leader.container["command"] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert worker.container["command"] == ["python3", "-m", "vllm.entrypoints.cli.main", "serve"]
    assert {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & set(worker.container) == set()
    assert {"startupProbe", "readinessProbe", "livenessProbe", "ports"} <= set(leader.container)
    assert [arg for arg in leader.args if arg not in worker.args] == ["--node-rank=0"]
    assert worker.env == leader.env
    assert worker.pod["volumes"] == leader.pod["volumes"]
    assert worker.container["resources"] == leader.container["resources"]


def test_a_worker_is_not_told_how_many_api_servers_run() -> None:
    made = render({"decode": {"nodes": 2, "parallelism": {"data": 2}, "args": ["--api-server-count=2"]}})
    assert made.decode.flag("--api-server-count") == "2"
    assert made.worker("decode").flag("--api-server-count") is None


def test_a_pod_asks_for_its_share_of_the_devices() -> None:
    made = spanning()
    assert made.decode.container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert made.worker("decode").container["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_only_leaders_have_the_label_by_which_roles_are_selected() -> None:
    made = spanning("prefill")
    leader, worker = made.prefill, made.worker("prefill")
    assert leader.template["metadata"]["labels"][labels.ROLE] == "prefill"
    assert worker.template["metadata"]["labels"][labels.ROLE] == "prefill-worker"
    chosen = made.router.args[made.router.args.index("--prefill-selector") + 1 :][:3]
    wanted = dict(term.split("=") for term in chosen)
    assert wanted.items() <= leader.template["metadata"]["labels"].items()
    assert not wanted.items() <= worker.template["metadata"]["labels"].items()
    assert "smg.ai/kv-connector" not in (worker.template["metadata"].get("annotations") or {})


def test_the_pods_of_a_group_reach_each_other() -> None:
    policies = spanning().all("NetworkPolicy")
    (policy,) = (o for o in policies if labels.REVISION in o["spec"]["podSelector"]["matchLabels"])
    (roles,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert roles["values"] == ["prefill", "decode", "decode-worker"]
    assert policy["spec"]["ingress"][0] == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}


def test_the_group_stops_together_and_waits_for_the_engines_requests() -> None:
    made = spanning("prefill", section={"drainTimeout": "90s"}, transfer={"lease": "20s"})
    leader, worker = made.prefill, made.worker("prefill")
    assert {engine.pod["terminationGracePeriodSeconds"] for engine in (leader, worker)} == {3 + 90 + 20 + 10}
    asked = [e.container["lifecycle"]["preStop"]["exec"]["command"] for e in (leader, worker)]
    assert asked[1] == [*asked[0], "--leader"]
    assert groups(made)["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


@pytest.mark.parametrize(
    ("rollout", "bounds"),
    [
        ({"maxSurge": 2, "maxUnavailable": 1}, {"maxSurge": 2, "maxUnavailable": 1, "partition": 0}),
        ({"strategy": "Recreate"}, {"maxSurge": 0, "maxUnavailable": "100%", "partition": 0}),
        ({"paused": True}, {"maxSurge": 0, "maxUnavailable": 1, "partition": 1_000_000}),
    ],
)
def test_groups_follow_their_template_within_the_bounds_of_the_rollout(
    rollout: dict[str, Any], bounds: dict[str, Any]
) -> None:
    strategy = groups(spanning(rollout=rollout))["spec"]["rolloutStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdateConfiguration": bounds}


def test_another_number_of_nodes_is_another_revision() -> None:
    revisions = [
        render(pair(decode={"nodes": nodes, "parallelism": {"tensor": 4}})).plan.revision for nodes in (1, 2, 4)
    ]
    assert len(set(revisions)) == 3
    assert revisions[0] == render(pair(decode={"parallelism": {"tensor": 4}})).plan.revision


def test_suspended_and_scaled_roles_have_the_numbers_of_deployments() -> None:
    assert groups(spanning(suspend=True))["spec"]["replicas"] == 0
    assert "replicas" not in groups(spanning(section={"autoscaling": {"max": 4}}))["spec"]


def test_names_leave_room_for_what_is_added_to_them() -> None:
    """A StatefulSet's pods carry its name and a hash of up to ten digits in one label of 63 characters."""
    long = Names("a" * 40, "0123456789abcdef").groups("prefill")
    other = Names("a" * 39 + "b", "0123456789abcdef").groups("prefill")
    assert len(f"{long}-9999-1234567890") <= 63
    assert long != other
    assert Names("qwen", "0123456789abcdef").groups("decode") == "qwen-decode-01234567"


def test_the_queue_is_told_to_the_group_and_its_pods() -> None:
    made = spanning(scheduling={"gang": "volcano", "queue": "batch"})
    found = groups(made)
    assert found["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "batch"
    for engine in (made.decode, made.worker("decode")):
        assert engine.template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "batch"
        assert engine.pod["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    ("gang", "said"),
    [("volcano", "gangSchedulingManagement"), ("coscheduling", "use volcano"), ("auto", "name volcano")],
)
def test_what_is_missing_for_a_gang_is_said(gang: str, said: str) -> None:
    found = spanning(scheduling={"gang": gang}).plan.notices
    assert any(notice.path == "spec.scheduling.gang" and said in notice.message for notice in found)


def test_one_machine_is_one_node() -> None:
    report = faults(pair(decode=SPAN), site=LOCAL)
    assert report == "spec.decode.nodes: 2: this machine is one node: set it to 1, or apply the object to a cluster"


def test_stages_of_layers_are_for_engines_that_transfer_nothing() -> None:
    stages = {"nodes": 2, "parallelism": {"tensor": 4, "pipeline": 2}}
    assert render({"decode": stages}).decode.flag("--pipeline-parallel-size") == "2"
    assert "spec.prefill.parallelism.pipeline" in faults(pair(prefill=stages))

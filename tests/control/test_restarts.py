from __future__ import annotations

import pytest
from tests.control.bodies import KEY, children, planned, pods_of, view
from tests.control.restart_stage import SAYS, STUCK, Stage, run

from kvserving_operator.control.conditions import conditions
from kvserving_operator.control.facts import Facts, Transfer
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.kube import MayNotWrite
from kvserving_operator.plan.engine import DEAD_GRACE_SECONDS
from kvserving_operator.reasons import Reason
from kvserving_operator.verify.activity import Activity
from kvserving_operator.verify.legs import Endpoint, Failure
from kvserving_operator.verify.proof import Cause


def test_a_hung_engine_is_deleted_with_little_grace_and_it_is_said() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(6)
        assert (stage.deleted, stage.trouble, stage.told) == ([], None, [])
        await stage.look()
        assert stage.deleted == ["d"]
        assert stage.api.graces == [DEAD_GRACE_SECONDS]
        assert stage.trouble == (
            Reason.ENGINE_HUNG,
            f"Pod d: this decode engine {SAYS}; the operator replaces it",
        )
        assert stage.events == [f"EngineHung: pod d: this decode engine {SAYS}"]
        assert stage.counted == ["EngineHung"]
        assert stage.told == [KEY]

    run(work)


def test_what_is_wrong_degrades_the_object_and_neither_stalls_it_nor_makes_it_unavailable() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(7)
        plan = planned(stage.serving).plan
        assert plan is not None
        there = children(stage.serving)
        facts = Facts(
            view=view(stage.serving, there, *pods_of(there)),
            plan=plan,
            revision=plan.revision,
            disaggregated=True,
            routed=True,
            suspended=False,
            problems=stage.restarts.problems(stage.serving.uid),
            transfer=Transfer("True", Reason.VERIFIED, ""),
        )
        found = {condition.type: condition for condition in conditions(facts)}
        assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.ENGINE_HUNG)
        assert (found["Degraded"].reason, found["Degraded"].message) == stage.trouble
        states = {name: found[name].status for name in ("Ready", "Available", "Progressing", "Stalled")}
        assert states == {"Ready": "False", "Available": "True", "Progressing": "False", "Stalled": "False"}

    run(work)


def test_trouble_stays_until_the_role_serves_again() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(7)
        stage.store.remove_pod(KEY, "d", "uid-d", "999")
        stage.add("d2", "decode", ready=False)
        await stage.look(10)
        assert stage.trouble is not None
        stage.add("d2", "decode")
        await stage.look()
        assert stage.trouble is None
        assert stage.told == [KEY, KEY]
        assert stage.deleted == ["d"]

    run(work)


def test_engines_that_are_not_ready_or_suspended_are_not_even_asked() -> None:
    async def work() -> None:
        stage = Stage({"suspend": True}).pair()
        await stage.look(10)
        assert stage.asked == []
        stage = Stage()
        stage.add("p", "prefill", ready=False)
        stage.shows["p"] = STUCK
        await stage.look(10)
        assert (stage.asked, stage.deleted) == ([], [])

    run(work)


def test_an_engine_whose_metrics_cannot_be_read_is_left_to_the_kubelet() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = Failure("timeout", "decode d did not answer /metrics within 5 s")
        await stage.look(100)
        assert (stage.deleted, stage.trouble) == ([], None)

    run(work)


def test_one_pod_at_a_time() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows |= {"p": STUCK, "d": STUCK}
        await stage.look(7)
        assert stage.deleted == ["d"]
        stage.store.remove_pod(KEY, "d", "uid-d", "999")
        stage.add("d2", "decode", ready=False)
        await stage.look(20)
        assert stage.deleted == ["d"]
        assert stage.trouble == (
            Reason.ENGINE_HUNG,
            f"Pod p: this prefill engine {SAYS}; it is not replaced: the restart of d is not over yet",
        )
        stage.add("d2", "decode")
        await stage.look()
        assert stage.deleted == ["d", "p"]

    run(work)


def test_a_process_that_the_kubelet_started_meanwhile_is_not_killed() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(6)
        # The watch has not told yet.
        stage.api.objects["Pod", "prod", "d"]["status"]["containerStatuses"][0]["restartCount"] = 1
        await stage.look()
        assert (stage.deleted, stage.trouble) == ([], None)
        # Now it has, and the new process is judged from the beginning.
        stage.add("d", "decode", containerStatuses=[{"name": "engine", "restartCount": 1}])
        await stage.look(6)
        assert stage.deleted == []
        await stage.look()
        assert stage.deleted == ["d"]

    run(work)


def test_an_engine_that_leaves_while_it_is_asked_is_not_replaced() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(6)
        asking = stage.activity

        async def activity(endpoint: Endpoint) -> Activity | Failure:
            stage.add("d", "decode", ready=False)
            return await asking(endpoint)

        stage.activity = activity  # type: ignore[method-assign]
        await stage.look(2)
        assert (stage.deleted, stage.trouble) == ([], None)

    run(work)


def test_trouble_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        stage = Stage()
        stage.add("p", "prefill")
        stage.add("d", "decode", owner="StatefulSet/qwen")
        stage.shows["d"] = STUCK
        await stage.look(20)

    run(work)
    assert len(caplog.records) == 1


def test_the_leader_of_an_engine_of_several_nodes_is_replaced_and_its_group_with_it() -> None:
    async def work() -> None:
        stage = Stage({"decode": {"nodes": 2, "parallelism": {"tensor": 2}}})
        groups = stage.deployments["decode"]
        assert groups.kind == "LeaderWorkerSet"
        stage.add("p", "prefill")
        stage.add(f"{groups.name}-0", "decode", owner=f"StatefulSet/{groups.name}")
        stage.shows[f"{groups.name}-0"] = STUCK
        await stage.look(10)
        assert stage.deleted == [f"{groups.name}-0"]

    run(work)


@pytest.mark.parametrize("owner", ["StatefulSet/qwen", "ReplicaSet/other-abc"])
def test_a_pod_that_only_carries_our_label_is_not_deleted(owner: str) -> None:
    async def work() -> None:
        stage = Stage()
        stage.add("p", "prefill")
        stage.add("d", "decode", owner=owner)
        stage.shows["d"] = STUCK
        await stage.look(10)
        assert stage.deleted == []
        assert stage.trouble is not None
        assert "no workload of this object would make another" in stage.trouble[1]

    run(work)


def test_a_pod_that_changed_at_the_last_moment_is_judged_again() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        stage.api.fail["delete", "Pod"] = ApiFailure(409, "Conflict", "", "delete pods prod/d", {})
        await stage.look(7)
        assert (stage.trouble, stage.counted, stage.events) == (None, [], [])
        await stage.look()
        assert stage.counted == ["EngineHung"]

    run(work)


def test_without_the_right_to_delete_it_says_so_and_goes_on() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        for _ in range(10):
            stage.api.fail["delete", "Pod"] = ApiFailure(403, "Forbidden", "", "delete pods prod/d", {})
            await stage.look()
        assert stage.trouble is not None
        assert "could not be replaced: delete pods prod/d: forbidden" in stage.trouble[1]
        assert stage.counted == []

    run(work)


def test_whoever_may_not_write_any_more_ends() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK

        async def refused(*_: object, **__: object) -> None:
            raise MayNotWrite("delete pods")

        stage.api.delete = refused  # type: ignore[method-assign]
        with pytest.raises(MayNotWrite):
            await stage.look(7)

    run(work)


def test_a_decode_whose_transfers_fail_again_and_again_is_replaced_and_may_drain() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.verdicts = {("p", "d"): None}
        await stage.verify()
        stage.verdicts = {("p", "d"): Cause.TRANSFER_FAILED}
        await stage.verify(2)
        assert stage.deleted == []
        await stage.verify()
        assert stage.deleted == ["d"]
        assert stage.api.graces == [None]
        said = (
            "Pod d: this decode engine cannot fetch from p, verification after verification; the operator replaces it"
        )
        assert stage.trouble == (Reason.PEER_STALE, said)

    run(work)


def test_the_last_decode_is_kept_where_it_computes_what_it_cannot_fetch() -> None:
    async def work() -> None:
        stage = Stage({"transfer": {"onFailure": "recompute"}}).pair()
        stage.verdicts = {("p", "d"): None}
        await stage.verify()
        stage.verdicts = {("p", "d"): Cause.TRANSFER_FAILED}
        await stage.verify(5)
        assert stage.deleted == []
        assert stage.trouble is not None
        assert stage.trouble[0] is Reason.PEER_STALE
        assert stage.trouble[1].endswith("it is not replaced: d is the last decode engine that serves")

    run(work)


def test_a_hung_peer_is_the_cause_of_failed_transfers() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.verdicts = {("p", "d"): None}
        await stage.verify()
        stage.shows["p"] = STUCK
        stage.verdicts = {("p", "d"): Cause.TRANSFER_FAILED}
        await stage.verify(4)
        assert stage.deleted == ["p"]

    run(work)


def test_a_verification_of_a_process_that_is_gone_counts_for_nobody() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.verdicts = {("p", "d"): None}
        await stage.verify()
        stage.verdicts = {("p", "d"): Cause.TRANSFER_FAILED}
        await stage.verify(2)
        stage.add("p", "prefill", containerStatuses=[{"name": "engine", "restartCount": 1}])
        await stage.verify(2)
        assert stage.deleted == []
        await stage.verify()
        assert stage.deleted == ["d"]

    run(work)


def test_what_is_known_of_an_object_goes_with_it() -> None:
    async def work() -> None:
        stage = Stage().pair()
        stage.shows["d"] = STUCK
        await stage.look(7)
        assert stage.trouble is not None
        stage.store.remove_serving(KEY, stage.serving.uid, "9")
        await stage.look()
        assert stage.trouble is None

    run(work)

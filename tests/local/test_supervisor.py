"""The life of a service: up, hurt, healed, stopped. Real processes stand for engines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local import client, procfs, proof, watch
from kvserving_operator.local.errors import LocalError
from kvserving_operator.local.state import ServiceDir, State
from kvserving_operator.recovery.hung import Limits

from .support import Outcome, Service, deployment, nothing_left, pod, probe, run_of


def ready(state: State) -> bool:
    return state.phase == "Ready"


def full() -> tuple[dict[str, Any], ...]:
    return deployment("prefill"), deployment("decode"), deployment("router")


def test_pods_come_up_with_an_address_each_and_the_router_where_it_was_asked_for(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(*full())
        async with Service(run, directory) as service:
            state = await service.until(ready)
            assert [p.role for p in state.pods] == ["prefill", "decode", "router"]
            addresses = {p.address for p in state.pods}
            assert len(addresses) == 3
            assert (pod(state, "router").address, pod(state, "router").port) == run.listen
            assert all(p.ready and p.restarts == 0 for p in state.pods)
            assert state.verification is not None
            began = state.verification.pop("began")
            assert max(p.ended for p in state.pods) < began < state.updated
            assert state.verification == {"ok": True, "at": 1.0, "lines": ["verified: by the test"]}
            assert json.loads(directory.state_file.read_text())["phase"] == "Ready"
            workers = json.loads(directory.discovery_file.read_text())
            assert workers == {
                "version": 1,
                "workers": [
                    {
                        "id": f"svc-{role}-0.1",
                        "url": f"http://{pod(state, role).address}:18000",
                        "worker_type": role,
                        "kv_connector": "NixlConnector",
                    }
                    for role in ("decode", "prefill")
                ],
            }
        assert nothing_left([state.instance])

    asyncio.run(go())


def test_a_stop_drains_router_then_decode_then_prefill_and_removes_keys_and_state(
    directory: ServiceDir, tmp_path: Path
) -> None:
    order = tmp_path / "order"

    async def go() -> State:
        flags = ("--order", str(order))
        roles = (deployment(role, *flags) for role in ("prefill", "decode", "router"))
        async with Service(run_of(*roles), directory) as service:
            state = await service.until(ready)
            assert (directory.secrets / "svc-keys" / "signing").stat().st_mode & 0o777 == 0o600
            return state

    state = asyncio.run(go())
    assert order.read_text().split() == ["router", "decode", "prefill"]
    assert nothing_left([state.instance])
    assert not directory.state_file.exists()
    assert not directory.secrets.exists()
    assert {p.name for p in directory.logs.glob("*.log")} == {f"svc-{r}-0.log" for r in ("prefill", "decode", "router")}


def test_a_killed_engine_is_restarted_leaves_discovery_meanwhile_and_is_verified_again(directory: ServiceDir) -> None:
    verified: list[tuple[int, ...]] = []

    def verify(state: State) -> Outcome:
        verified.append(tuple(p.restarts for p in state.pods))
        return Outcome()

    async def go() -> None:
        async with Service(run_of(*full()), directory, verify) as service:
            state = await service.until(ready)
            os.kill(pod(state, "decode").pid, signal.SIGKILL)
            # A probe may miss it before its end is seen.
            down = await service.until(lambda s: not pod(s, "decode").ready and pod(s, "decode").ended > 0)
            assert down.phase == "Degraded"
            assert proof.caveat(down, 2.0) == "last verified 1 s ago, before svc-decode-0 ended"
            types = [w["worker_type"] for w in json.loads(directory.discovery_file.read_text())["workers"]]
            assert types == ["prefill"]
            again = await service.until(lambda s: ready(s) and pod(s, "decode").restarts == 1)
            assert "SIGKILL" in pod(again, "decode").last_exit
            assert pod(again, "decode").pid != pod(state, "decode").pid
            workers = json.loads(directory.discovery_file.read_text())["workers"]
            assert "svc-decode-0.2" in [w["id"] for w in workers]
            assert len(verified) == 2, "it is Ready when that was proved of the new process"
            await service.until(lambda s: ready(s) and not proof.caveat(s, 2.0))
            phases = [phase for phase, _ in groupby(s.phase for s in service.states)]
            assert phases == ["Starting", "Verifying", "Ready", "Degraded", "Verifying", "Ready"]
        assert verified == [(0, 0, 0), (0, 1, 0)]

    asyncio.run(go())


@pytest.mark.parametrize("session", ["same-session", "own-session"])
def test_children_of_a_killed_engine_do_not_stay(directory: ServiceDir, session: str) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill", "--child", session), deployment("decode"))
        async with Service(run, directory) as service:
            state = await service.until(ready)
            children = set(procfs.instance_processes(state.instance)) - {p.pid for p in state.pods}
            assert len(children) == 1
            os.kill(pod(state, "prefill").pid, signal.SIGKILL)
            await service.until(lambda s: ready(s) and pod(s, "prefill").restarts == 1)
            if session == "same-session":
                assert not children & set(procfs.instance_processes(state.instance))
        assert nothing_left([state.instance])

    asyncio.run(go())


def test_an_engine_that_keeps_failing_before_it_is_ready_fails_up_with_its_last_lines(directory: ServiceDir) -> None:
    async def go() -> str:
        run = run_of(deployment("prefill", "--exit-after", "0", "--exit-code", "7"), deployment("decode"))
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        instance = service.states[-1].instance
        assert nothing_left([instance])
        return str(error.value)

    message = asyncio.run(go())
    assert "svc-prefill-0 ended 3 times before it was ready: exit status 7" in message
    assert "RuntimeError: the stand-in was told to fail" in message
    state = directory.read()
    assert state is not None
    assert state.phase == "Failed"
    assert state.message == message
    assert not directory.secrets.exists()


def test_an_engine_that_takes_longer_than_its_startup_probe_allows_fails_up(directory: ServiceDir) -> None:
    async def go() -> str:
        slow = deployment("decode", "--never-healthy", startupProbe=probe(failures=5))
        async with Service(run_of(deployment("prefill"), slow), directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        assert nothing_left([service.states[-1].instance])
        return str(error.value)

    message = asyncio.run(go())
    assert "svc-decode-0 was too slow: not started within 1 s (status 503)" in message


def test_a_timeout_names_what_was_waited_for(directory: ServiceDir) -> None:
    async def go() -> str:
        run = run_of(deployment("prefill"), deployment("decode", "--never-healthy"), timeout=2.5)
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        assert nothing_left([service.states[-1].instance])
        return str(error.value)

    told = r"svc was not ready within 2\.5 s \(--timeout\): waiting for svc-decode-0 \([^()]+\)\. Its logs are in \S+"
    assert re.fullmatch(told, asyncio.run(go()))


def test_an_engine_that_is_not_ready_leaves_discovery_and_comes_back_without_a_restart(
    directory: ServiceDir, tmp_path: Path
) -> None:
    flag = tmp_path / "unhealthy"

    async def go() -> None:
        run = run_of(deployment("prefill", "--unhealthy-when", str(flag)), deployment("decode"))
        async with Service(run, directory) as service:
            before = await service.until(ready)
            flag.touch()
            state = await service.until(lambda s: not pod(s, "prefill").ready)
            assert pod(state, "prefill").notable == "status 503"
            workers = json.loads(directory.discovery_file.read_text())["workers"]
            assert [w["worker_type"] for w in workers] == ["decode"]
            flag.unlink()
            after = await service.until(ready)
            assert pod(after, "prefill").pid == pod(before, "prefill").pid
            assert pod(after, "prefill").notable == ""
            assert len(json.loads(directory.discovery_file.read_text())["workers"]) == 2

    asyncio.run(go())


def test_an_engine_whose_liveness_fails_is_restarted(directory: ServiceDir, tmp_path: Path) -> None:
    flag = tmp_path / "unhealthy"

    async def go() -> None:
        sick = deployment("prefill", "--unhealthy-when", str(flag), livenessProbe=probe(failures=2))
        async with Service(run_of(sick, deployment("decode")), directory) as service:
            await service.until(ready)
            flag.touch()
            state = await service.until(lambda s: pod(s, "prefill").restarts == 1)
            assert pod(state, "prefill").last_exit == "no longer alive (status 503)"
            flag.unlink()
            await service.until(ready)

    asyncio.run(go())


def test_an_engine_that_was_stopped_is_killed_and_restarted(directory: ServiceDir) -> None:
    """It takes connections and answers nothing; it heeds no SIGTERM, so its grace of 20 s is not waited for."""

    async def go() -> None:
        stopped = deployment("prefill", livenessProbe={**probe(failures=2), "timeoutSeconds": 0.5})
        async with Service(run_of(stopped, deployment("decode")), directory) as service:
            before = await service.until(ready)
            os.kill(pod(before, "prefill").pid, signal.SIGSTOP)
            state = await service.until(lambda s: ready(s) and pod(s, "prefill").restarts == 1, 10)
            assert pod(state, "prefill").last_exit == "no longer alive (no answer within 0.5 s)"
            assert pod(state, "decode").restarts == 0

    asyncio.run(go())


STUCK = """\
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.0
"""


def test_an_engine_that_answers_and_computes_nothing_is_restarted(
    directory: ServiceDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SECONDS", 0.1)
    monkeypatch.setattr(watch, "LIMITS", Limits(queued=0.5))
    metrics = tmp_path / "metrics"

    async def go() -> None:
        hanging = deployment("decode", "--metrics", str(metrics))
        async with Service(run_of(deployment("prefill"), hanging), directory) as service:
            before = await service.until(ready)
            metrics.write_text(STUCK)
            state = await service.until(lambda s: pod(s, "decode").restarts == 1)
            metrics.unlink()
            text = "EngineHung: has requests waiting, none running, and computed nothing for 0.5 s"
            assert pod(state, "decode").last_exit == text
            again = await service.until(ready)
            assert pod(again, "prefill").pid == pod(before, "prefill").pid
            assert pod(again, "decode").pid != pod(before, "decode").pid

    asyncio.run(go())


def test_a_second_request_to_stop_does_not_wait_for_an_engine_that_ignores_the_first(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill", "--ignore-sigterm"), deployment("decode"))
        async with Service(run, directory) as service:
            state = await service.until(ready)
            service.supervisor.request_stop()
            await service.until(lambda s: pod(s, "prefill").phase == "Stopping")
            service.supervisor.request_stop()
            async with asyncio.timeout(8):
                await asyncio.wait({service.task})
        assert nothing_left([state.instance])

    asyncio.run(go())


def test_an_engine_that_is_still_loading_is_not_waited_for(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill", "--ignore-sigterm", "--never-healthy"), deployment("decode"))
        async with Service(run, directory) as service:
            state = await service.until(lambda s: pod(s, "decode").ready)
            service.supervisor.request_stop()
            async with asyncio.timeout(15):  # its grace is 20 s
                await asyncio.wait({service.task})
        assert nothing_left([state.instance])

    asyncio.run(go())


def test_a_transfer_that_is_not_proved_leaves_the_service_up_and_degraded(directory: ServiceDir) -> None:
    async def go() -> None:
        async with Service(run_of(*full()), directory, lambda state: Outcome(ok=False)) as service:
            state = await service.until(lambda s: s.verification is not None)
            assert state.phase == "Degraded"
            assert all(p.ready for p in state.pods)

    asyncio.run(go())


def test_a_signal_makes_it_verify_at_once(directory: ServiceDir) -> None:
    outcomes = [Outcome(), Outcome(ok=False)]

    async def go() -> None:
        async with Service(run_of(*full()), directory, lambda state: outcomes.pop(0)) as service:
            state = await service.until(ready)
            client.check_again(state)
            await service.until(lambda s: s.phase == "Degraded")
            assert outcomes == []

    asyncio.run(go())


def test_a_check_that_breaks_is_an_outcome_and_not_the_end(directory: ServiceDir) -> None:
    def broken(state: State) -> Outcome:
        raise RuntimeError("no route")

    async def go() -> None:
        async with Service(run_of(*full()), directory, broken) as service:
            state = await service.until(lambda s: s.verification is not None)
            assert state.phase == "Degraded"
            assert state.verification is not None
            assert state.verification["message"] == "the check itself failed: RuntimeError: no route"

    asyncio.run(go())


def test_one_router_runs_whatever_the_replicas(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill"), deployment("decode"), deployment("router", replicas=2))
        async with Service(run, directory) as service:
            state = await service.until(ready)
            assert [p.role for p in state.pods].count("router") == 1

    asyncio.run(go())


def test_an_aggregated_service_lists_workers_without_a_type(directory: ServiceDir) -> None:
    async def go() -> None:
        async with Service(run_of(deployment("decode"), deployment("router")), directory) as service:
            await service.until(ready)
            [worker] = json.loads(directory.discovery_file.read_text())["workers"]
            assert "worker_type" not in worker

    asyncio.run(go())


def test_two_services_never_share_an_address(directory: ServiceDir) -> None:
    async def go() -> None:
        other = ServiceDir("svc2", directory.base)
        again = run_of(deployment("prefill", name="svc2"), deployment("decode", name="svc2"), name="svc2")
        run = run_of(deployment("prefill"), deployment("decode"))
        async with Service(run, directory) as one, Service(again, other) as two:
            first, second = await one.until(ready), await two.until(ready)
            assert len({p.address for p in (*first.pods, *second.pods)}) == 4

    asyncio.run(go())

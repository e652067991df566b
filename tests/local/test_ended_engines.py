"""What is told of an engine that ended: its cause, and nothing that is over."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kvserving_operator.cli.view import pod_line
from kvserving_operator.local.errors import LocalError
from kvserving_operator.local.state import ServiceDir, State

from .support import Service, deployment, pod, run_of


def ready(state: State) -> bool:
    return state.phase == "Ready"


def test_an_engine_that_refuses_its_arguments_fails_up_at_once_with_the_cause_first(directory: ServiceDir) -> None:
    async def go() -> tuple[str, State]:
        run = run_of(deployment("prefill", "--exit-code=many"), deployment("decode"))
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        return str(error.value), service.states[-1]

    message, state = asyncio.run(go())
    cause = "argument --exit-code: invalid int value: 'many'"
    assert message.startswith(
        f"svc-prefill-0 refuses its arguments: {cause} (exit status 2). Correct spec.engine.args or spec.prefill.args."
    )
    assert f"  | stand_in.py: error: {cause}\n" in message
    assert "usage:" not in message
    assert "[--" not in message
    assert (pod(state, "prefill").restarts, pod(state, "prefill").last_exit) == (0, f"exit status 2: {cause}")
    assert "usage: stand_in.py" in (directory.logs / "svc-prefill-0.log").read_text()


def test_exit_status_2_without_a_word_on_arguments_is_restarted_and_its_cause_is_told(directory: ServiceDir) -> None:
    async def go() -> tuple[str, list[State]]:
        words = "--last-words=error: no device at 'tcp://me:hunter22@there'"
        run = run_of(deployment("prefill", "--exit-after", "0", "--exit-code", "2", words), deployment("decode"))
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        return str(error.value), service.states

    message, states = asyncio.run(go())
    cause = "exit status 2: no device at 'tcp://***@there'"
    assert f"svc-prefill-0 ended 3 times before it was ready: {cause}. Its last lines:" in message
    lines = [pod_line(p) for state in states for p in state.pods if p.phase == "Restarting"]
    assert set(lines) == {f"svc-prefill-0: Restarting, after {cause}"}


@pytest.mark.parametrize(
    ("flags", "number", "told"),
    [
        ((), signal.SIGKILL, "Restarting, after killed by SIGKILL (often: out of memory)"),
        ((), signal.SIGTERM, "Restarting, after exit status 0"),
        (("--exit-after", "0"), None, "Restarting, RuntimeError: the stand-in was told to fail, after exit status 1"),
    ],
)
def test_of_an_engine_that_ended_its_progress_is_not_told_and_its_exception_is(
    directory: ServiceDir, flags: tuple[str, ...], number: int | None, told: str
) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill", "--never-healthy", *flags), deployment("decode"))
        async with Service(run, directory) as service:
            if number is not None:
                loading = await service.until(lambda s: pod(s, "prefill").notable != "")
                assert pod_line(pod(loading, "prefill")).startswith("svc-prefill-0: Loading, Loading weights took 0.1")
                os.kill(pod(loading, "prefill").pid, number)
            ended = await service.until(lambda s: pod(s, "prefill").phase == "Restarting")
            assert pod_line(pod(ended, "prefill")) == f"svc-prefill-0: {told}"

    asyncio.run(go())

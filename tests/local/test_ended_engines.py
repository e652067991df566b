"""What is told of an engine that ended: its cause, and nothing that is over."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest

from kvserving_operator import cli
from kvserving_operator.cli.view import pod_line
from kvserving_operator.local import failures, procfs, supervisor
from kvserving_operator.local.errors import LocalError
from kvserving_operator.local.logfile import in_short
from kvserving_operator.local.pods import of_objects
from kvserving_operator.local.process import describe_exit
from kvserving_operator.local.restarting import RestartPolicy
from kvserving_operator.local.run import Run
from kvserving_operator.local.state import ServiceDir, State

from .support import NAME, Service, deployment, pod, run_of


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
        (
            (),
            signal.SIGKILL,
            f"Restarting, after {describe_exit(-signal.SIGKILL, 0)}",
        ),
        ((), signal.SIGTERM, "Restarting, after exit status 0"),
        (("--exit-after", "0"), None, "Restarting, after exit status 1: RuntimeError: the stand-in was told to fail"),
    ],
)
def test_of_an_engine_that_ended_its_progress_is_not_told_and_its_exception_is(
    directory: ServiceDir, flags: tuple[str, ...], number: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "memory_kills", lambda: 5)

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


def test_a_kill_is_told_as_the_kernels_where_that_counted_one_and_as_from_outside_where_it_did_not() -> None:
    kill = -signal.SIGKILL
    assert describe_exit(kill, 2) == "killed by SIGKILL (out of memory: the kernel killed 2 processes meanwhile)"
    assert describe_exit(kill, 0) == "killed by SIGKILL (from outside; the kernel killed nothing for want of memory)"
    assert describe_exit(kill) == "killed by SIGKILL (often: out of memory)"
    assert describe_exit(-signal.SIGTERM, 2) == "killed by SIGTERM"
    counted = procfs.memory_kills()
    assert counted is None or counted >= 0


TOO_LARGE = (
    "ValueError: To serve at least one request with the model's max seq len (2048), (0.12 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.01 GiB). Try increasing `gpu_memory_utilization` (which "
    "also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine."
)


def test_a_timeout_tells_of_each_engine_that_ended_how_often_and_why(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    async def go() -> str:
        words = ("--exit-after=0", "--exit-code=7", f"--last-words={TOO_LARGE}")
        roles = (deployment("prefill", *words), deployment("decode", *words), deployment("router", "--never-healthy"))
        # The second attempt does not come within the time.
        async with Service(run_of(*roles, first_pause=600.0, timeout=8.0), directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        return str(error.value)

    message = asyncio.run(go())
    head, *rest = message.splitlines()
    cause = "ended once before it was ready: exit status 7: ValueError: To serve at least one request"
    assert head.startswith(f"svc was not ready within 8 s (--timeout): svc-prefill-0 and svc-decode-0 {cause}")
    assert head.endswith(f". Its logs are in {directory.logs}")
    ended = "svc-{}-0 ended once before it was ready: exit status 7: ValueError: To serve at least one request"
    named = "It names --gpu-memory-utilization and --max-model-len: spec.engine.args or spec.{}.args."
    assert rest[0].startswith(ended.format("prefill"))
    assert rest[0].endswith(f"{named.format('prefill')} Its last lines:")
    assert f"  | {TOO_LARGE}" in rest
    assert rest[-2] == f"The whole log: {directory.logs / 'svc-prefill-0.log'}"
    assert rest[-1].startswith(ended.format("decode")), "what ended alike has no second end of a log"
    assert rest[-1].endswith(named.format("decode"))
    assert in_short(message) == [head, rest[0].removesuffix(" Its last lines:"), rest[-1]]
    assert cli.run(["status", NAME]) == 1
    assert f"  {rest[-1]}\n" in capsys.readouterr().out
    assert cli.run(["doctor", NAME]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert ended.format("prefill") in told
    assert ended.format("decode") in told
    assert "none of its 3 processes runs" in told
    assert f"`kvserving status {NAME}` shows the last lines of the log" in told


@pytest.mark.parametrize(
    ("words", "attempts"),
    [
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "once"),
        ("ValueError: No common block size for 100 (CPU_ATTN: [MultipleOf(32)]).", "2 times"),
        ("RuntimeError: the network is down", "3 times"),
    ],
)
def test_an_engine_whose_settings_settle_that_it_ends_is_not_started_again(
    directory: ServiceDir, words: str, attempts: str
) -> None:
    async def go() -> str:
        run = run_of(deployment("prefill", "--exit-after=0", f"--last-words={words}"), deployment("decode"))
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready, 60)
        return str(error.value)

    again = " It would end so again." if attempts != "3 times" else ""
    told = f"svc-prefill-0 ended {attempts} before it was ready: exit status 1: {words.rstrip('.')}.{again}"
    assert asyncio.run(go()).startswith(f"{told} Its last lines:")


def test_one_that_ends_late_each_time_before_it_is_ready_fails_up_as_well(
    directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every life is a long one.
    monkeypatch.setattr(supervisor, "RestartPolicy", partial(RestartPolicy, longest=0.0))

    async def go() -> str:
        run = run_of(deployment("prefill", "--exit-after", "0"), deployment("decode"))
        async with Service(run, directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready, 60)
        return str(error.value)

    cause = "exit status 1: RuntimeError: the stand-in was told to fail"
    assert asyncio.run(go()).startswith(f"svc-prefill-0 ended 3 times before it was ready: {cause}. Its last lines:")


def test_what_is_counted_of_ends_tells_those_before_it_was_ready_from_the_others(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(deployment("prefill"), deployment("decode", "--never-healthy"))
        async with Service(run, directory) as service:
            loading = await service.until(lambda s: pod(s, "decode").notable != "")
            os.kill(pod(loading, "decode").pid, signal.SIGKILL)
            ended = pod(await service.until(lambda s: pod(s, "decode").restarts == 1), "decode")
            assert (ended.early, ended.losses) == (1, 0)
            assert ended.failure == f"ended once before it was ready: {ended.last_exit}"
            served = await service.until(lambda s: pod(s, "prefill").ready)
            os.kill(pod(served, "prefill").pid, signal.SIGKILL)
            ended = pod(await service.until(lambda s: pod(s, "prefill").restarts == 1), "prefill")
            assert (ended.early, ended.losses, ended.failure) == (0, 1, "")

    asyncio.run(go())


def test_a_flag_that_an_engine_does_not_know_is_told_with_the_field_that_gave_it(directory: ServiceDir) -> None:
    run = run_of(
        deployment("prefill", "--exit-code=many", "--other"),
        deployment("decode"),
        arguments={"spec.engine.args": ["--other=1"], "spec.prefill.args": ["--exit-code=many"]},
    )

    async def go() -> str:
        async with Service(Run.from_json(run.to_json()), directory) as service:
            with pytest.raises(LocalError) as error:
                await service.until(ready)
        return str(error.value)

    assert " (exit status 2). Correct spec.prefill.args[0]. Its last lines:" in asyncio.run(go())
    engine = next(pod for pod in run.pods()[0] if pod.role == "prefill")
    assert failures.arguments(engine, "unrecognized arguments: --other=1") == "spec.engine.args[0]"
    assert failures.arguments(engine, "unrecognized arguments: --third") == "spec.engine.args or spec.prefill.args"


def test_the_options_that_an_exception_names_are_told_with_their_fields() -> None:
    (engine, router), _ = of_objects([deployment("decode", "--num-gpu-blocks-override=4"), deployment("router")])
    said = "ValueError: --num-gpu-blocks-override is too small; raise `gpu_memory_utilization`, see `some_function`"
    assert failures.fields(engine, said) == (
        " It names --num-gpu-blocks-override and --gpu-memory-utilization: spec.engine.args or spec.decode.args."
    )
    assert failures.fields(engine, "RuntimeError: no device") == failures.fields(router, said) == ""

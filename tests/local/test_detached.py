"""Services in the background, and what happens when their supervisor dies."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvserving_operator.local import client, procfs, waiting
from kvserving_operator.local.errors import EnvironmentFault, LocalError
from kvserving_operator.local.leftovers import end_leftovers
from kvserving_operator.local.run import Run
from kvserving_operator.local.state import FAILED, STOPPING, ServiceDir, State

from .support import NAME, ROOT, deployment, nothing_left, pod, run_of


def small(*flags: str) -> Run:
    return run_of(deployment("prefill", *flags), deployment("decode"), deployment("router"), spec_digest="abc")


def start(run: Run, directory: ServiceDir) -> State:
    lock = client.claim(run.name, run.spec_digest, directory)
    state = client.start_detached(run, directory, lock, lambda state: None)
    assert state is not None
    return state


@pytest.fixture
def stopped_after(directory: ServiceDir) -> Iterator[None]:
    yield
    client.stop(directory, lambda state: None)


@pytest.mark.usefixtures("stopped_after")
def test_it_goes_on_in_a_session_of_its_own_and_down_stops_it(directory: ServiceDir) -> None:
    state = start(small(), directory)
    supervisor = state.supervisor["pid"]
    assert os.getsid(supervisor) == supervisor
    shown = client.current(directory)
    assert shown is not None
    assert [p.ready for p in shown.pods] == [True, True, True]
    assert all(p.memory > 2**20 for p in shown.pods)
    phases = []
    assert client.stop(directory, lambda s: phases.append(s.phase))
    assert nothing_left([state.instance])
    assert not procfs.is_running(supervisor, state.supervisor["start_time"])
    assert client.current(directory) is None
    assert not client.stop(directory, lambda s: None)


@pytest.mark.usefixtures("stopped_after")
def test_a_killed_supervisor_takes_engines_and_their_children_with_it(directory: ServiceDir) -> None:
    state = start(small("--child", "own-session", "--ignore-sigterm"), directory)
    assert len(procfs.instance_processes(state.instance)) == 4
    os.kill(state.supervisor["pid"], signal.SIGKILL)
    assert nothing_left([state.instance], seconds=20)
    lost = client.current(directory)
    assert lost is not None
    assert (lost.phase, [p.ready for p in lost.pods]) == ("Lost", [False] * 3)
    assert "kvserving down svc" in lost.message
    assert client.stop(directory, lambda s: None)
    assert client.current(directory) is None


@pytest.mark.usefixtures("stopped_after")
def test_stopping_what_a_killed_supervisor_left_leaves_its_logs_alone(directory: ServiceDir) -> None:
    state = start(small(), directory)
    os.kill(state.supervisor["pid"], signal.SIGKILL)
    assert waiting.all_gone([state.supervisor["pid"]], 5)
    for half_written in (".state.json.2212", ".discovery.json.2212"):
        (directory.path / half_written).touch()
    assert client.stop(directory, lambda s: None)
    assert {path.name for path in directory.path.iterdir()} == {"logs", "supervisor.lock"}
    assert client.is_stopped(directory)
    assert {path.name for path in directory.path.iterdir()} == {"logs", "supervisor.lock"}


def test_a_refused_start_leaves_no_empty_folders_beside_old_logs(directory: ServiceDir) -> None:
    directory.create()
    (directory.logs / "svc-decode-0.log").write_text("old\n")
    os.close(client.claim(NAME, "abc", directory))
    directory.discard_unused()
    assert {path.name for path in directory.path.iterdir()} == {"logs", "supervisor.lock"}


@pytest.mark.usefixtures("stopped_after")
def test_who_stops_a_service_is_told_what_is_left_of_it_though_no_state_can_be_written(directory: ServiceDir) -> None:
    state = start(small("--ignore-sigterm"), directory)
    resource.prlimit(state.supervisor["pid"], resource.RLIMIT_FSIZE, (0, 0))
    told: list[State] = []
    hurried: list[bool] = []

    def hear(now: State) -> None:
        told.append(now)
        if [p.pid is not None for p in now.pods] == [True, False, False] and not hurried:
            hurried.append(True)
            raise KeyboardInterrupt  # the first engine does not heed what asks it to stop

    assert client.stop(directory, hear)
    assert {now.phase for now in told} == {"Stopping"}
    assert [(p.phase, p.ready) for p in told[-1].pods][1:] == [("Stopped", False)] * 2
    assert nothing_left([state.instance])


@pytest.mark.usefixtures("stopped_after")
def test_engines_do_not_see_the_packages_of_the_command(directory: ServiceDir) -> None:
    state = start(small(), directory)
    packages = {path for path in sys.path if path.endswith("site-packages")}
    assert packages
    for shown in state.pods:
        entries = Path(f"/proc/{shown.pid}/environ").read_bytes().decode().split("\0")
        found = next((entry for entry in entries if entry.startswith("PYTHONPATH=")), "")
        assert not packages & set(found.removeprefix("PYTHONPATH=").split(os.pathsep))


@pytest.mark.usefixtures("stopped_after")
def test_the_next_up_ends_what_a_killed_supervisor_left(directory: ServiceDir) -> None:
    state = start(small(), directory)
    os.kill(state.supervisor["pid"], signal.SIGKILL)
    assert waiting.all_gone([state.supervisor["pid"]], 5)
    again = start(replace(small(), listen=state_listen(state)), directory)
    assert again.instance != state.instance
    assert nothing_left([state.instance])
    assert all(p.ready for p in again.pods)


def state_listen(state: State) -> tuple[str, int]:
    return pod(state, "router").address, pod(state, "router").port


@pytest.mark.usefixtures("stopped_after")
def test_a_second_up_of_the_name_is_refused_and_says_how_to_stop_the_first(directory: ServiceDir) -> None:
    state = start(small(), directory)
    with pytest.raises(
        EnvironmentFault, match=rf"already running: process {state.supervisor['pid']}.*this same object"
    ):
        client.claim(NAME, "abc", directory)
    with pytest.raises(EnvironmentFault, match=r"another version of the object\. Stop it with `kvserving down svc`"):
        client.claim(NAME, "def", directory)


@pytest.mark.usefixtures("stopped_after")
@pytest.mark.parametrize("digest", ["abc", "def"])
def test_an_up_while_the_service_stops_is_told_to_come_again_when_down_has_ended(
    directory: ServiceDir, digest: str
) -> None:
    state = start(small("--ignore-sigterm"), directory)
    refused: list[str] = []

    def bring_up(now: State) -> None:
        written = directory.read()
        if refused or written is None or written.phase != STOPPING:
            return
        with pytest.raises(EnvironmentFault) as refusal:
            client.claim(NAME, digest, directory)
        refused.append(str(refusal.value))
        raise KeyboardInterrupt  # the first engine does not heed what asks it to stop

    assert client.stop(directory, bring_up)
    assert refused == [
        f"svc is being stopped: process {state.supervisor['pid']} ends what still runs. Bring it up again when that is"
        " done and `kvserving down svc` has ended; `kvserving status svc` shows what is left, another"
        " `kvserving down svc` makes it hurry"
    ]


def test_an_up_while_a_start_that_failed_is_cleared_up_is_not_told_that_the_service_runs(directory: ServiceDir) -> None:
    lock = directory.lock()
    assert lock is not None
    supervisor = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    directory.create()
    directory.write(replace(start_state(directory, 0, 0, 0, 0), phase=FAILED, supervisor=supervisor))
    try:
        with pytest.raises(EnvironmentFault, match=r"^svc is just being started or stopped"):
            client.claim(NAME, "", directory)
    finally:
        os.close(lock)


def test_a_start_that_fails_tells_the_starter_why_and_leaves_nothing(directory: ServiceDir) -> None:
    states: list[State] = []
    run = small("--exit-after", "0")
    with pytest.raises(LocalError, match="svc-prefill-0 ended 3 times before it was ready: exit status 1"):
        client.start_detached(run, directory, client.claim(NAME, "", directory), states.append)
    assert nothing_left([states[-1].instance])
    assert client.claim(NAME, "", directory)


def test_an_interrupted_starter_leaves_nothing(directory: ServiceDir) -> None:
    states: list[State] = []

    def interrupt(state: State) -> None:
        states.append(state)
        if any(p.pid for p in state.pods):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.start_detached(small(), directory, client.claim(NAME, "", directory), interrupt)
    assert nothing_left([states[-1].instance])


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_that_is_asked_to_stop_is_told_of_to_its_end_and_a_second_time_stops_at_once(
    directory: ServiceDir, times: int
) -> None:
    asked, states = client.Asked(), []
    prefill = deployment("prefill", "--order", str(directory.path / "order"), *["--ignore-sigterm"] * (times - 1))
    prefill["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
    run = run_of(prefill, deployment("decode", "--never-healthy"))

    def hear(state: State) -> None:
        states.append(state)
        phase = pod(state, "prefill").phase
        if (asked.number is None and phase == "Ready") or (times == 2 and phase == "Stopping"):
            assert asked.stop(signal.SIGINT)

    assert client.start_detached(run, directory, client.claim(NAME, "", directory), hear, asked) is None
    assert asked.number == signal.SIGINT
    assert states[-1].phase == STOPPING
    assert {p.phase for p in states[-1].pods} == {"Stopped"}
    assert nothing_left([states[-1].instance])
    assert client.is_stopped(directory)
    assert (directory.path / "order").exists() == (times == 1), "one that hurries lets nothing end in order"


def test_a_stop_that_is_asked_for_before_the_supervisor_is_there_reaches_it(directory: ServiceDir) -> None:
    asked = client.Asked()
    assert asked.stop(signal.SIGTERM)
    states: list[State] = []
    run = run_of(deployment("prefill", "--never-healthy"))
    assert client.start_detached(run, directory, client.claim(NAME, "", directory), states.append, asked) is None
    assert all(not p.ready for state in states for p in state.pods)
    assert client.is_stopped(directory)


@pytest.mark.usefixtures("stopped_after")
def test_what_is_asked_once_a_service_is_up_stops_nothing(directory: ServiceDir) -> None:
    asked = client.Asked()
    lock = client.claim(NAME, "", directory)
    state = client.start_detached(small(), directory, lock, lambda state: None, asked)
    assert state is not None
    assert not asked.stop(signal.SIGTERM)
    assert procfs.is_running(state.supervisor["pid"], state.supervisor["start_time"])


def test_a_supervisor_that_cannot_start_shows_its_last_lines(directory: ServiceDir) -> None:
    broken = run_of({**deployment("prefill"), "kind": "StatefulSet"})
    with pytest.raises(LocalError, match="does not run on one machine"):
        client.start_detached(broken, directory, client.claim(NAME, "", directory), lambda s: None)


def test_leftovers_are_ended_by_pid_and_start_time_and_nothing_else_is(directory: ServiceDir) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    ours, reused = subprocess.Popen(sleeper), subprocess.Popen(sleeper)
    try:
        started = procfs.start_time(ours.pid)
        assert started is not None
        state = start_state(directory, ours.pid, started, reused.pid, started - 1)
        directory.create()
        directory.write(state)
        assert end_leftovers(directory) == 1
        assert ours.wait(5) == -signal.SIGTERM
        assert reused.poll() is None
    finally:
        ours.kill()
        reused.kill()
        ours.wait()
        reused.wait()


def start_state(directory: ServiceDir, pid: int, started: int, other: int, other_started: int) -> State:
    pods = [
        {"name": "a", "role": "prefill", "address": "127.0.0.1", "port": 1, "pid": pid, "start_time": started},
        {"name": "b", "role": "decode", "address": "127.0.0.1", "port": 1, "pid": other, "start_time": other_started},
    ]
    return State.from_dict(
        {
            "name": NAME, "revision": "r", "phase": "Ready", "router": {"url": None}, "engine_python": "", "pods": pods,
            "served_model": "m", "supervisor": {"pid": 1, "start_time": -1}, "instance": "no-such-run",
        }
    )  # fmt: skip


def test_waiting_for_processes_ends_with_the_last_of_them() -> None:
    quick = subprocess.Popen([sys.executable, "-c", "pass"])
    slow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert waiting.all_gone([quick.pid], 10)
        began = time.monotonic()
        assert not waiting.all_gone([slow.pid], 0.2)
        assert time.monotonic() - began < 5
    finally:
        slow.kill()
        quick.wait()
        slow.wait()


def test_nothing_here_asks_for_root(directory: ServiceDir, tmp_path: Path) -> None:
    """The whole way from start to stop as a user without privileges."""
    if os.getuid() != 0:
        pytest.skip("the other tests of this file already run without root")
    home = tmp_path / "home"
    home.mkdir()
    for folder in (home, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    os.chown(home, 65534, 65534)
    os.chown(tmp_path, 65534, 65534)
    script = (
        "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
        "from tests.local.test_detached import small, start, nothing_left\n"
        "from kvserving_operator.local import client\n"
        "from kvserving_operator.local.state import ServiceDir\n"
        "d = ServiceDir('svc'); s = start(small(), d); assert all(p.ready for p in s.pods)\n"
        "assert client.stop(d, lambda s: None) and nothing_left([s.instance])\n"
    )
    path = ":".join([str(ROOT), str(ROOT / "operator/src"), *(p for p in sys.path if p)])
    try:
        subprocess.run([sys.executable, "-c", ""], user=65534, group=65534, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("this interpreter cannot be run by other users")
    done = subprocess.run(
        [sys.executable, "-c", script, path], user=65534, group=65534, extra_groups=[], cwd=tmp_path,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "KVSERVING_STATE_DIR": str(home / "state")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

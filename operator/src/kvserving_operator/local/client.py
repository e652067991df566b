"""What commands do to a service that another process runs: start it there, stop it, read its state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from . import module, procfs, runlogs, waiting
from .errors import UP, EnvironmentFault, LocalError, NoSuchService, there_are
from .leftovers import end_leftovers
from .run import Run
from .state import DEGRADED, FAILED, LOST, READY, STOPPING, PodState, ServiceDir, State, services

SILENT_SECONDS = 15.0
"""A supervisor that runs writes its state every few seconds."""
_LEAST_BYTES = 64 * 2**10
"""Room for a state and what lies beside it while it is written."""
UNDER_WAY = "{name} is just being started or stopped by another command"
BUSY = UNDER_WAY + "; try again when it is done"


def claim(name: str, digest: str, directory: ServiceDir) -> int:
    """Take the lock of a service's name; the descriptor that holds it.

    ``digest`` is that of the object that is to run. Raises ``EnvironmentFault`` with the way
    out when a service of that name runs already, or still, also when it runs the same object.
    """
    directory.create()
    descriptor = directory.lock()
    if descriptor is None:
        raise EnvironmentFault(_already_runs(name, digest, directory.read()))
    return descriptor


def _already_runs(name: str, digest: str, state: State | None) -> str:
    if state is None or not state.supervised or state.phase == FAILED:
        return BUSY.format(name=name)
    if state.phase == STOPPING:
        return (
            f"{name} is being stopped: process {state.supervisor['pid']} ends what still runs. Bring it up again when"
            f" that is done and `kvserving down {name}` has ended; `kvserving status {name}` shows what is left,"
            f" another `kvserving down {name}` makes it hurry"
        )
    same = (
        "It runs this same object, so there is nothing to bring up; `kvserving status` shows it."
        if state.spec_digest == digest
        else "It runs another version of the object."
    )
    return (
        f"{name} is already running: process {state.supervisor['pid']}, phase {state.phase},"
        f" {state.router['url'] or 'no router'}. {same} Stop it with `kvserving down {name}`"
    )


def start_detached(
    run: Run, directory: ServiceDir, lock: int, on_state: Callable[[State], None], asked: Asked | None = None
) -> State | None:
    """Start a supervisor in a session of its own and wait until the service is up.

    ``on_state`` gets every state on the way. Returns the state once verification had a
    result; raises ``LocalError`` with the reason when the service failed. What is ``asked``
    meanwhile goes to the supervisor: the service stops in drain order, a second time at once,
    and None is returned. Whatever is raised here goes on when the supervisor has ended.
    """
    asked = asked or Asked()
    runlogs.begin(directory.logs)
    with open(directory.supervisor_log, "wb") as log:
        process = subprocess.Popen(  # noqa: S603
            module.command("kvserving_operator.local.detached", str(directory.base), str(lock)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=(lock,), start_new_session=True,
            env=module.environment(), text=True,
        )  # fmt: skip
    os.close(lock)
    assert process.stdin is not None
    assert process.stdout is not None
    asked.tell(process)
    try:
        with suppress(BrokenPipeError):  # it has ended already: what it leaves says why
            process.stdin.write(run.to_json())
            process.stdin.close()
        state = None
        for line in process.stdout:
            state = State.from_dict(json.loads(line))
            on_state(state)
            if state.phase in (READY, DEGRADED) and asked.settle():
                return state
        process.wait()
    except BaseException:
        process.stdout.close()  # a supervisor that nobody reads would wait
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        process.stdout.close()
    if state is not None and state.phase == FAILED:
        raise LocalError(state.message)
    if asked.number is not None:
        _clear_up(directory)
        return None
    if process.returncode == 0:
        raise LocalError(f"{run.name} was stopped by another command before it was up")
    tail = "".join(directory.supervisor_log.read_text().splitlines(keepends=True)[-25:])
    raise LocalError(f"the supervisor of {run.name} ended: exit status {process.returncode}\n{tail}")


def _clear_up(directory: ServiceDir) -> None:
    """Remove what a supervisor made that could not heed its signal yet, or was told again at its very end."""
    if (lock := directory.lock()) is not None:  # else another command has begun with it
        try:
            end_leftovers(directory)
            directory.clear()
        finally:
            os.close(lock)


class Asked:
    """Whether the start of a service in the background was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._process: subprocess.Popen[str] | None = None
        self._settled = False

    def stop(self, number: signal.Signals) -> bool:
        """Pass it on to the supervisor, each time anew; False once the service is up and is left to go on."""
        if self._settled:
            return False
        self.number = self.number or number
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        return True

    def tell(self, process: subprocess.Popen[str]) -> None:
        """The supervisor is there, and hears also what was asked before."""
        self._process = process
        if self.number is not None:
            process.send_signal(signal.SIGTERM)

    def settle(self) -> bool:
        """The service is up: whether nothing was asked, so that it goes on whatever is asked from now on."""
        self._settled = True
        self._settled = self.number is None
        return self._settled


def current(directory: ServiceDir) -> State | None:
    """The state with what can be known only now: whether its supervisor runs, and memory."""
    state = directory.read()
    return None if state is None else as_now(state)


def as_now(state: State) -> State:
    """``state``, as it was written, with what can be known only now."""
    if state.phase == FAILED:
        return state
    if state.supervised:
        if (silent := time.time() - state.updated) > SILENT_SECONDS:
            text = f"what stands here is old: its supervisor has written nothing for {silent:.0f} s: {_silence(state)}"
            state = replace(state, message=f"{state.message}\n{text}" if state.message else text)
        pods = tuple(_measured(_ended_since(pod, "Ended")) for pod in state.pods)
        phase = DEGRADED if state.phase == READY and any(not pod.ready for pod in pods) else state.phase
        return replace(state, phase=phase, pods=pods)
    pods = tuple(replace(pod, ready=False, phase="Lost", notable="", pid=None, memory=0) for pod in state.pods)
    message = f"its supervisor was killed; `kvserving down {state.name}` clears up what it left"
    return replace(state, phase=LOST, pods=pods, message=message)


def _silence(state: State) -> str:
    """Why a supervisor that runs writes nothing, as far as that can be seen from outside."""
    try:
        disk = os.statvfs(state.directory)
    except OSError as error:
        return f"its folder cannot be used: {error.strerror}: {state.directory}"
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk of {state.directory} is read-only"
    if disk.f_bavail * disk.f_frsize < _LEAST_BYTES or (disk.f_files and not disk.f_favail):
        return f"the disk of {state.directory} is full. Free some space; the service goes on"
    return f"it stands still, or may not write into {state.directory}"


def stop(directory: ServiceDir, on_state: Callable[[State], None]) -> bool:
    """Stop a service in drain order and remove its state; whether there was one.

    ``on_state`` gets the state every second, with what the kernel knows of the pods: a supervisor whose disk is full
    writes none. A KeyboardInterrupt while waiting makes the supervisor hurry; the wait goes on.
    """
    state = directory.read()
    if state is None:
        return False
    if state.supervised:
        pid = int(state.supervisor["pid"])
        procfs.send([pid], signal.SIGTERM)
        hurried = False
        while procfs.is_running(pid, state.supervisor["start_time"]):
            try:
                if not waiting.all_gone([pid], 1.0):
                    state = directory.read() or state
                    on_state(_stopping(state))
            except KeyboardInterrupt:
                if hurried:
                    raise
                hurried = True
                procfs.send([pid], signal.SIGTERM)
    end_leftovers(directory)
    directory.clear()
    return True


def _stopping(state: State) -> State:
    """The state, as it was written, of a service that was told to stop."""
    if state.phase == FAILED:
        return state

    return replace(state, phase=STOPPING, pods=tuple(_ended_since(pod, "Stopped") for pod in state.pods))


def _ended_since(pod: PodState, phase: str) -> PodState:
    """``pod`` in ``phase`` where its process has gone since its supervisor wrote of it, which takes some moments."""
    if pod.pid is None or pod.start_time is None or procfs.is_running(pod.pid, pod.start_time):
        return pod
    now = time.time()
    return replace(pod, ready=False, phase=phase, notable="", pid=None, start_time=None, memory=0, ended=now)


def _measured(pod: PodState) -> PodState:
    return replace(pod, memory=procfs.memory_bytes(procfs.session_processes(pod.pid))) if pod.pid else pod


def check_again(state: State) -> None:
    """Tell the supervisor that what it knows of the transfer is out of date: it verifies at once."""
    procfs.send([int(state.supervisor["pid"])], signal.SIGUSR1)


def is_stopped(directory: ServiceDir) -> bool:
    """Whether the service ran and is stopped: of it only logs are left.

    Raises ``LocalError`` while another command starts or stops it.
    """
    if directory.state_file.is_file() or not any(directory.logs.glob("*.log")):
        return False
    lock = directory.lock()
    if lock is None:
        raise LocalError(BUSY.format(name=directory.name))
    os.close(lock)
    return True


def running(name: str) -> State:
    """The state of the service of that name; raise ``LocalError`` when it is not there or does not run."""
    [directory] = find(name)
    state = current(directory)
    if state is None or not state.supervised:
        raise LocalError(f"{name} does not run; `kvserving status {name}` says why")
    return state


def find(name: str | None) -> list[ServiceDir]:
    """The service of that name, or all; raise ``NoSuchService`` when the named one is not there.

    Raises ``LocalError`` for one that another command is just starting or stopping.
    """
    found = services()
    if name is None:
        return found
    match = [s for s in found if s.name == name]
    if not match:
        if ServiceDir(name).taken:
            raise LocalError(BUSY.format(name=name))
        raise NoSuchService(f"no service {name} on this machine; {there_are([s.name for s in found])}; {UP}")
    return match

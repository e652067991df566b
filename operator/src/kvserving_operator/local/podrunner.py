"""One pod, kept as it should be: started, probed, restarted, stopped."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from . import failures
from .container import ProcessSpec
from .errors import LocalError
from .logfile import LogFile, log_end, shortened
from .pods import LocalPod
from .probes import Probe, is_silence
from .process import Managed, describe_exit
from .restarting import RestartPolicy
from .state import PodState
from .tasks import cancel

PENDING, LOADING, RUNNING, SERVING, WAITING, ENDING, ENDED = (
    "Pending", "Loading", "NotReady", "Ready", "Restarting", "Stopping", "Stopped",
)  # fmt: skip
TAIL_LINES = 25
WRONG_USAGE = 2
"""Exit status of a program that refuses its arguments."""


@dataclass(frozen=True)
class PodSpec:
    """All that a runner needs to know of its pod."""

    pod: LocalPod
    address: str
    port: int
    process: ProcessSpec
    folder: Path
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None
    pre_stop: tuple[str, ...] | None


class PodFailed(LocalError):
    """A pod that never became ready and will not: the message has the reason and its last lines."""


class PodRunner:
    """Runs one pod until it is told to stop. ``changed`` is called on every change of what ``state`` shows."""

    def __init__(self, spec: PodSpec, log: LogFile, changed: Callable[[], None], policy: RestartPolicy) -> None:
        self.spec = spec
        self.log = log
        self.ready = False
        self.generation = 0
        self.restarts = 0
        self.exit_code: int | None = None
        """How the process ended last, negative: by which signal."""
        self._changed = changed
        self._policy = policy
        self._process: Managed | None = None
        self._phase = PENDING
        self._since = time.time()
        self._last_exit: str | None = None
        self._ended = 0.0
        self._memory = 0
        self._ever_ready = False
        self._was_ready = False
        """Whether the present process was ready, or the last one where none runs."""
        self._early = 0
        self._losses = 0
        self._failure: failures.Failure | None = None
        self._exception = ""
        self._by_itself = False
        self._began = self._loaded = 0.0
        self._unready = ""
        """How its readiness probe failed last, as long as it is not ready."""
        self._drained = False
        self._started = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._useless: asyncio.Future[str] | None = None

    @property
    def state(self) -> PodState:
        """The pod as ``status`` shows it."""
        process = self._process
        return PodState(
            name=self.spec.pod.name,
            role=self.spec.pod.role,
            address=self.spec.address,
            port=self.spec.port,
            pid=process.pid if process else None,
            start_time=process.start_time if process else None,
            ready=self.ready,
            restarts=self.restarts,
            last_exit=self._last_exit,
            log=str(self.log.path),
            memory=self._memory,
            phase=self._phase,
            notable=self._notable,
            since=self._since,
            ended=self._ended,
            early=self._early,
            losses=self._losses,
            loaded=self._loaded,
        )

    @property
    def failure(self) -> failures.Failure | None:
        """How its last process ended that was not ready before; None where it is ready, or has been since."""
        return self._failure

    @property
    def _notable(self) -> str:
        notes = {LOADING: self.log.notable, RUNNING: self._unready}
        return notes.get(self._phase, "")

    async def measure(self) -> None:
        """Read the memory of the pod's processes."""
        process = self._process
        memory = await process.measure() if process else 0
        self._memory = memory if process is self._process else 0

    def request_stop(self, *, drained: bool = False) -> None:
        """Begin to stop, with the grace of the pod. ``drained``: nobody sends to it any more, preStop is left out."""
        self._drained = drained
        self._stop.set()

    def request_restart(self, reason: str) -> None:
        """Kill the present process and start it anew: it lives, and is of no use."""
        if self._useless is not None and not self._useless.done():
            self._useless.set_result(reason)

    def request_hurry(self) -> None:
        """Stop at once: no drain, SIGKILL after some seconds."""
        self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Keep the pod running until a stop is requested; nothing of it is left when this returns.

        Raises ``PodFailed`` when it ended too often, took longer than its startup probe allows, or
        refused its arguments, before it was ready for the first time.
        """
        in_a_row = 0
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                while not self._stop.is_set():
                    started = time.monotonic()
                    reason, too_slow = await self._live(session)
                    if self._stop.is_set():
                        return
                    in_a_row = 1 if time.monotonic() - started >= self._policy.longest else in_a_row + 1
                    settled = self._take_end(reason, too_slow)
                    # One that ends after minutes has failed as well: all ends before it was ready count.
                    if not self._ever_ready and self._policy.given_up(self._early, too_slow=too_slow, settled=settled):
                        raise PodFailed(str(self._failure))
                    self.restarts += 1
                    self._set(WAITING)
                    await self._pause(self._policy.pause(in_a_row))
        finally:
            self._set(ENDED)
            self.log.close()

    def _take_end(self, reason: str, too_slow: bool) -> bool:
        """Note why the process ended, and what it said of it; whether its arguments settle that it ends so again."""
        pod, code = self.spec.pod, self.exit_code or 0
        by_itself = code != 0 and self._by_itself
        fault = self.log.fault if by_itself else ""
        exception = self.log.exception if by_itself and code > 0 else ""
        cause = fault or shortened(exception)
        refused = by_itself and code == WRONG_USAGE and self.log.wrong_usage
        settled = refused or failures.settled(exception, self._exception)
        self._exception = exception
        if refused:
            self.log.drop_usage()
        self._last_exit = f"{reason}: {cause}" if cause else reason
        if self._was_ready:
            self._losses += 1
        else:
            self._early += 1
            if refused:
                way_out = f" Correct {failures.arguments(pod, fault)}." if pod.is_engine else ""
                sentence = f"{pod.name} refuses its arguments: {fault} (exit status {code}).{way_out}"
            elif too_slow:
                sentence = f"{pod.name} was too slow: {self._last_exit}."
            else:
                ended = f"{pod.name} {self.state.failure}".removesuffix(".")
                again = " It would end so again." if settled else ""
                sentence = f"{ended}.{failures.fields(pod, exception)}{again}"
            log = log_end(self.log.tail(TAIL_LINES), self.log.path)
            self._failure = failures.Failure(sentence, self._last_exit, log)
        self.log.note_end(pod.name, self._last_exit)
        return settled

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until a stop is requested."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _live(self, session: aiohttp.ClientSession) -> tuple[str, bool]:
        """One life of the process; why it ended, and whether it was too slow to start."""
        self.generation += 1
        self._started = False
        self._unready = ""
        self._was_ready = self._by_itself = False
        self._began = time.monotonic()
        self.log.begin()
        process = self._process = await Managed.start(self.spec.process, self.log, self.spec.folder)
        self._set(LOADING)
        probing = asyncio.create_task(self._probe(session))
        stopping = asyncio.create_task(self._stop.wait())
        useless = self._useless = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({process.ended, probing, stopping, useless}, return_when=asyncio.FIRST_COMPLETED)
            if process.ended.done():
                self._by_itself = True
                return process.end, False
            if useless.done():
                return useless.result(), False
            if probing.done():
                return probing.result()
            await cancel(probing)
            await self._shut_down(process, session)
            return "stopped", False
        finally:
            await cancel(probing)
            await cancel(stopping)
            self._useless = None
            self.ready = False
            self._ended = time.time()
            # The name of the session stays until all its members are gone.
            await asyncio.shield(process.finish())
            self.log.end()
            self.exit_code = process.ended.result()
            self._process = None
            self._memory = 0

    async def _probe(self, session: aiohttp.ClientSession) -> tuple[str, bool]:
        """Probe for as long as the process is fine; the reason to end it, and whether it started too slowly."""
        startup = self.spec.startup
        if startup is not None:
            failure = await self._until_failed(startup, session, stop_at_success=True)
            if failure is not None:
                return f"not started within {startup.budget:g} s ({failure})", True
        self._started = True
        if self.spec.readiness is None:
            self._set_ready(True)
        else:
            self._set(RUNNING)
        watching = asyncio.create_task(self._watch_readiness(session))
        try:
            if self.spec.liveness is None:
                await watching
                raise AssertionError("readiness is watched for as long as the process lives")
            failure = await self._until_failed(self.spec.liveness, session, stop_at_success=False)
        finally:
            await cancel(watching)
        return f"no longer alive ({failure})", False

    async def _until_failed(
        self,
        probe: Probe,
        session: aiohttp.ClientSession,
        *,
        stop_at_success: bool,
        counts: Callable[[str], bool] = lambda _: True,
    ) -> str | None:
        """Ask until the probe failed as often in a row as it may; the last reason. None: it succeeded.

        Only failures that ``counts`` takes are counted.
        """
        await asyncio.sleep(probe.initial_delay)
        failures = 0
        while True:
            began = time.monotonic()
            failure = await probe.check(session, self.spec.process.env)
            if failure is None and stop_at_success:
                return None
            failures = failures + 1 if failure is not None and counts(failure) else 0
            if failures >= probe.failures:
                return failure
            await asyncio.sleep(max(0.0, probe.period - (time.monotonic() - began)))

    async def _watch_readiness(self, session: aiohttp.ClientSession) -> None:
        probe = self.spec.readiness
        if probe is None:
            await asyncio.Event().wait()
        assert probe is not None
        await asyncio.sleep(probe.initial_delay)
        successes = failures = 0
        while True:
            began = time.monotonic()
            failure = await probe.check(session, self.spec.process.env)
            successes, failures = (successes + 1, 0) if failure is None else (0, failures + 1)
            if successes >= probe.successes:
                self._set_ready(True)
            elif failures >= probe.failures:
                self._unready = failure or ""
                self._set_ready(False)
            await asyncio.sleep(max(0.0, probe.period - (time.monotonic() - began)))

    async def _shut_down(self, process: Managed, session: aiohttp.ClientSession) -> None:
        """preStop, SIGTERM, and the rest of the grace; whoever hurries cuts it short, and so does a silent process.

        What has not started yet has nothing to drain, and vLLM does not heed SIGTERM while it loads.
        """
        self._set(ENDING)
        if not self._started:
            self._hurry.set()
        silence = asyncio.create_task(self._hurry_when_silent(session))
        try:
            await self._end(process)
        finally:
            await cancel(silence)

    async def _end(self, process: Managed) -> None:
        deadline = time.monotonic() + self.spec.pod.grace
        if self.spec.pre_stop is not None and not self._drained and not self._hurry.is_set():
            await self._run_pre_stop(process, self.spec.pod.grace)
        await process.signal(signal.SIGTERM)
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait(
                {process.ended, hurry},
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if hurry.done() and not process.ended.done():
                await asyncio.wait({process.ended}, timeout=self._policy.hurry_grace)
        finally:
            await cancel(hurry)

    async def _run_pre_stop(self, process: Managed, limit: float) -> None:
        assert self.spec.pre_stop is not None
        hook_spec = ProcessSpec(self.spec.pre_stop, self.spec.process.env)
        hook = await Managed.start(hook_spec, self.log, self.spec.folder)
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({hook.ended, process.ended, hurry}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if hook.ended.done() and hook.ended.result() != 0:
                self.log.note(f"preStop of {self.spec.pod.name} failed: {describe_exit(hook.ended.result())}")
        finally:
            await cancel(hurry)
            await asyncio.shield(hook.finish())

    async def _hurry_when_silent(self, session: aiohttp.ClientSession) -> None:
        """What takes connections and answers nothing cannot drain, nor heed a signal: it is not waited for."""
        probe = self.spec.liveness
        if probe is not None:
            failure = await self._until_failed(probe, session, stop_at_success=False, counts=is_silence)
            self.log.note(f"{self.spec.pod.name} is not waited for: {failure}")
            self._hurry.set()

    def _set_ready(self, ready: bool) -> None:
        if ready:
            if not self._was_ready:
                self._loaded = time.monotonic() - self._began
            self._ever_ready = self._was_ready = True
            self._unready = ""
            self._early = 0
            self._failure = None
        if ready != self.ready or (ready and self._phase != SERVING):
            self.ready = ready
            self._set(SERVING if ready else RUNNING)

    def _set(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._since = time.time()
        self._changed()

"""The owner of all processes of one service: starts, watches, publishes, verifies, stops."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from ..plan import labels
from ..routers import ROUTERS
from . import procfs, volumes
from .build import place_addresses, pod_specs
from .cache import folder_of
from .discovery import Worker, publish, render
from .errors import LocalError
from .failures import headline, together
from .leftovers import end_leftovers
from .lifeline import Lifeline
from .logfile import LogFile
from .podrunner import PodRunner
from .restarting import RestartPolicy
from .run import Run
from .state import DEGRADED, FAILED, READY, STARTING, STOPPING, VERIFYING, ServiceDir, State
from .tasks import cancel
from .watch import EngineWatch

_STOP_ORDER = (("router",), ("decode",), ("prefill",), ("store",))
_SENDERS = {"decode": "router", "prefill": "decode"}
_MEASURE_SECONDS = 5.0
_RETRY_SECONDS = 30.0
"""Longest time until a verification that failed is tried again."""


class Verification(Protocol):
    """What the executor needs of a verification."""

    @property
    def ok(self) -> bool:
        """Whether the transfer was proved."""

    def lines(self) -> tuple[str, ...]:
        """The outcome for people."""

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""


Verifier = Callable[[State], Awaitable[Verification]]
Listener = Callable[[State], None]


class Supervisor:
    """Runs one service. ``run`` is its whole life; ``request_stop`` ends it."""

    def __init__(self, run: Run, directory: ServiceDir, verifier: Verifier, listener: Listener) -> None:
        self._run = run
        self._dir = directory
        self._verifier = verifier
        self._listener = listener
        self._runners: list[PodRunner] = []
        self._tasks: dict[asyncio.Task[None], PodRunner] = {}
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._checking: asyncio.Task[dict[str, Any]] | None = None
        self._checked: tuple[int, ...] = ()
        self._known: tuple[int, ...] = ()
        """The processes that the last outcome of a verification is of, by their generations."""
        self._check_due = math.inf
        self._lifeline: Lifeline | None = None
        self._unwritten = ""
        self._up = False
        self._stopping = False
        self.stopped_by: signal.Signals | None = None
        self._watch = EngineWatch(run.revision)
        self._pods, notices = run.pods()
        own = os.getpid()
        self._state = State(
            name=run.name,
            revision=run.revision,
            phase=STARTING,
            router={"url": run.url if any(p.role == "router" for p in self._pods) else None},
            engine_python=run.engine_python,
            served_model=_served_model(run),
            pods=(),
            supervisor={"pid": own, "start_time": procfs.start_time(own)},
            instance=secrets.token_hex(8),
            spec_digest=run.spec_digest,
            notices=notices,
            api_key_secret=run.api_key_secret,
            store_size=run.store_size,
            directory=str(directory.path),
            claims=volumes.claims(self._pods, directory.base / "claims"),
        )

    @property
    def state(self) -> State:
        """The service as last reported."""
        return self._state

    def request_stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop in drain order; asked a second time, stop at once. ``number`` is the signal that asked."""
        self.stopped_by = self.stopped_by or number
        if self._stop.is_set():
            self._hurry.set()
            for runner in self._runners:
                runner.request_hurry()
        self._stop.set()

    def check_again(self) -> None:
        """Verify as soon as all pods are ready: someone saw another result than ours."""
        self._check_due = 0.0
        self._changed.set()

    async def run(self) -> None:
        """Run until a stop is requested. The caller holds the lock of the service.

        Nothing of the service runs when this returns or raises. A clean stop removes the
        state; a failure leaves it in phase Failed with its message and raises ``LocalError``.
        """
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.request_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self.check_again)
        try:
            try:
                await self._serve()
            finally:
                await self._end()
        except LocalError as error:
            self._dir.clear_run()
            self._report(replace(self._state, phase=FAILED, message=str(error)))
            raise
        finally:
            for number in (*numbers, signal.SIGUSR1):
                loop.remove_signal_handler(number)
        self._dir.clear()

    async def _serve(self) -> None:
        end_leftovers(self._dir)
        self._dir.clear_run()
        self._dir.create()
        addresses = place_addresses(self._run, self._dir, self._pods, self._state)
        self._lifeline = Lifeline(self._state.instance)
        specs = pod_specs(self._run, self._dir, self._pods, addresses, self._state.instance)
        commands = (spec.process.argv for spec in specs if spec.pod.is_engine)
        self._state = replace(self._state, store_folder=folder_of(commands))
        publish(self._dir.discovery_file, self._discovery())
        policy = RestartPolicy(first=self._run.first_pause)
        for spec in specs:
            log = LogFile(self._dir.logs / f"{spec.pod.name}.log")
            self._runners.append(PodRunner(spec, log, self._changed.set, policy))
        for runner in self._runners:
            if not (runner.spec.pod.role == "router" and self._router_waits):
                self._start(runner)
        helpers = {asyncio.create_task(self._measure()), asyncio.create_task(self._watch.run(self._runners))}
        try:
            await self._loop(helpers)
        finally:
            for helper in helpers:
                await cancel(helper)
            if self._checking is not None:
                await cancel(self._checking)

    async def _loop(self, helpers: set[asyncio.Task[None]]) -> None:
        """Bring discovery, router, verification and state in line with the pods whenever something changed."""
        deadline = math.inf if self._run.timeout is None else time.monotonic() + self._run.timeout
        stop = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                self._changed.clear()
                self._reconcile()
                changed = asyncio.create_task(self._changed.wait())
                until = self._check_due if self._up else deadline
                watched: set[asyncio.Task[Any]] = {changed, stop, *helpers, *self._tasks}
                if self._checking is not None:
                    watched.add(self._checking)
                await asyncio.wait(
                    watched,
                    timeout=None if until == math.inf else max(0.0, until - time.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                changed.cancel()
                for task in (*helpers, *self._tasks):
                    if task.done():
                        task.result()  # a pod that failed for good ends the service
                if not self._up and time.monotonic() >= deadline:
                    raise LocalError(self._too_late())
        finally:
            await cancel(stop)

    def _reconcile(self) -> None:
        self._publish()
        if self._router_waits and all(r.ready for r in self._runners if r.spec.pod.is_engine):
            for runner in self._runners:
                if runner not in self._tasks.values():
                    self._start(runner)
        self._reconcile_verification()
        self._report(replace(self._state, phase=self._phase()))

    def _reconcile_verification(self) -> None:
        """Verify once all is ready: the first time, with every new set of processes, and at an interval."""
        if self._checking is not None and self._checking.done():
            outcome = self._checking.result()
            self._checking = None
            self._known = self._checked
            self._up = True
            self._check_due = time.monotonic() + min(
                self._run.verify_interval, math.inf if outcome["ok"] else _RETRY_SECONDS
            )
            self._state = replace(self._state, verification=outcome)  # reported with the phase that follows from it
            if self._checked == tuple(r.generation for r in self._runners):
                self._watch.hear(self._runners, outcome)
        if self._checking is not None or not all(r.ready for r in self._runners):
            return
        generations = tuple(r.generation for r in self._runners)
        if generations != self._checked or time.monotonic() >= self._check_due:
            self._checked = generations
            self._check_due = math.inf
            self._checking = asyncio.create_task(self._verify())

    def _too_late(self) -> str:
        late = [runner for runner in self._runners if not runner.ready]
        head = (
            f"{self._run.name} was not ready within {self._run.timeout:g} s (--timeout):"
            f" {headline(runner.state for runner in late)}. Its logs are in {self._dir.logs}"
        )
        return "\n".join([head, *together(runner.failure for runner in late if runner.failure is not None)])

    def _phase(self) -> str:
        if self._stopping:
            return STOPPING
        if not self._up:
            return VERIFYING if self._checking is not None else STARTING
        if not all(runner.ready for runner in self._runners):
            return DEGRADED
        if self._checking is not None and self._known != tuple(runner.generation for runner in self._runners):
            return VERIFYING  # what was proved was proved of others
        proved = self._state.verification is not None and self._state.verification["ok"]
        return READY if proved else DEGRADED

    @property
    def _router_waits(self) -> bool:
        """Whether the router is told its engines when it starts, so that it must start after them."""
        started = (str(next(iter(p.container.get("args") or ()), "")) for p in self._pods if p.role == "router")
        return any((kind := ROUTERS.get(name)) is not None and not kind.follows_file for name in started)

    def _start(self, runner: PodRunner) -> None:
        self._tasks[asyncio.create_task(runner.run())] = runner

    def _discovery(self) -> str:
        workers = [
            Worker(r.spec.pod.name, r.spec.pod.role, r.spec.address, r.spec.port, r.generation, r.spec.pod.connector)
            for r in self._runners
            if r.ready and r.spec.pod.is_engine
        ]
        return render(workers, disaggregated=any(p.role == "prefill" for p in self._pods))

    async def _verify(self) -> dict[str, Any]:
        began = time.time()
        try:
            outcome = await self._verifier(self._state)
        except Exception as error:  # the service stays up whatever the check meets; its outcome says so
            traceback.print_exc()
            text = f"the check itself failed: {type(error).__name__}: {error}"
            return {"ok": False, "reason": "VerificationFailed", "message": text, "at": time.time(), "lines": [text]}
        return {**outcome.to_json(), "began": began, "lines": list(outcome.lines())}

    async def _measure(self) -> None:
        while True:
            for runner in self._runners:
                await runner.measure()
            self._changed.set()
            await asyncio.sleep(_MEASURE_SECONDS)

    async def _end(self) -> None:
        """Stop all pods in drain order and see that nothing is left."""
        self._stopping = True
        if self._runners:
            self._report(replace(self._state, phase=STOPPING))
        if not self._stop.is_set():
            self._hurry.set()  # it failed: there is nothing to drain
        for roles in [("router", "decode", "prefill", "store")] if self._hurry.is_set() else _STOP_ORDER:
            await self._stop_roles(roles)
        if self._lifeline is not None:
            await self._telling(self._lifeline.close())

    async def _stop_roles(self, roles: tuple[str, ...]) -> None:
        tasks = [task for task, runner in self._tasks.items() if runner.spec.pod.role in roles]
        for task in tasks:
            runner = self._tasks[task]
            if self._hurry.is_set():
                runner.request_hurry()
            # Without a router no request comes in, and without decode engines no lease is of use.
            runner.request_stop(drained=self._gone_before(runner.spec.pod.role))
        await self._telling(asyncio.gather(*tasks, return_exceptions=True))

    async def _telling(self, work: Awaitable[object]) -> None:
        """Wait for the end of a part of the stop, and report meanwhile what changes, and that it still goes on."""
        done = asyncio.ensure_future(work)
        while not done.done():
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({changed, done}, timeout=_MEASURE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            self._changed.clear()
            self._report(replace(self._state, phase=STOPPING))
        done.result()

    def _gone_before(self, role: str) -> bool:
        """Whether all that sends to this role belongs to the service and has ended."""
        senders = [task for task, r in self._tasks.items() if r.spec.pod.role == _SENDERS.get(role)]
        return bool(senders) and all(task.done() for task in senders)

    def _publish(self) -> None:
        """Tell the router its engines. A disk that is full is asked again with the next measurement."""
        try:
            publish(self._dir.discovery_file, self._discovery())
        except OSError as error:
            self._unwritten = str(error)

    def _report(self, state: State) -> None:
        """Write the state and tell the listener. Engines that serve go on where the disk takes no state."""
        pods = tuple(r.state for r in self._runners) or state.pods
        self._state = replace(state, pods=pods, updated=time.time())
        try:
            self._dir.write(self._state)
        except OSError as error:
            self._unwritten = str(error)
        if self._unwritten:
            message = f"the state cannot be written: {self._unwritten}. Free some space; the service goes on"
            self._listener(replace(self._state, message=self._state.message or message))
            self._unwritten = ""
        else:
            self._listener(self._state)


def _served_model(run: Run) -> str:
    for pod in run.pods()[0]:
        if pod.is_engine and (name := pod.option("--served-model-name") or pod.option("--model")):
            return name
    noted = ((manifest.get("metadata") or {}).get("annotations") or {} for manifest in run.objects)
    return next((str(notes[labels.SERVED_MODEL]) for notes in noted if labels.SERVED_MODEL in notes), run.name)

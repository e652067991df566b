"""Progress of a service on standard error: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..local.state import DEGRADED, FAILED, READY, STARTING, STOPPING, VERIFYING, PodState, State
from .summary import memory, print_summary

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


_QUIET_SECONDS = 24.0
"""Silence after which the next state is told though nothing changed. States come every 5 s, so a line every 30 s."""
_FIRST_QUIET_SECONDS = 9.0
"""As that, since something last changed."""
_STOPPING_SECONDS = 4.0
"""As that, while a service stops."""
_USUAL_SECONDS = 30.0
"""Until then it is said how long a start takes."""
_LONG_SECONDS = 180.0
"""A start that takes longer may never end: what to do about it is said."""


class View:
    """Lines on standard error: one for each change, and while it is waited for something one after 10 s, then every 30.

    While a service stops there is one every 5 s.

    ``clock`` tells seconds since any fixed moment.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._began = self._said = self._phase_began = clock()
        self._seen: dict[str, tuple[str, str]] = {}
        self._phase = ""
        self._was_up = False
        self._waits = False
        self._message = ""
        self.hurry = ""
        """What hurries a stop that was asked for; told while the service stops."""

    def step(self, text: str) -> None:
        """Say what is being done before there is a state."""
        self._say(text)

    def notice(self, text: str) -> None:
        """Say something that the user should know."""
        self._say(f"notice: {text}")

    def update(self, state: State) -> None:
        """Take a state; says what changed since the last one."""
        for pod in state.pods:
            shown = (pod.phase, pod.notable)
            if self._seen.get(pod.name) != shown:
                self._seen[pod.name] = shown
                self._say(pod_line(pod))
        if state.phase != self._phase:
            before, self._phase = self._phase, state.phase
            self._phase_began = self._clock()
            self._say(f"{state.name}: {state.phase}{self._more(state, before)}")
            self._come_up(state)
        elif self._clock() - self._said >= self._quiet and (awaited := waited_for(state)):
            elapsed = self._clock() - self._phase_began
            way_out = f"; {told}" if (told := _way_out(state, elapsed)) else ""
            self._say(f"{state.name}: {state.phase} for {elapsed:.0f} s, waiting for {awaited}{way_out}")
            self._waits = True
        if state.message != self._message and state.phase != FAILED:
            self._message = state.message
            self.notice(state.message or f"the state of {state.name} is written again")

    def _more(self, state: State, before: str) -> str:
        """What is said beside a new phase: how to hurry a stop, and the new proof of a service that was up already."""
        if state.phase == STOPPING and self.hurry:
            return f" ({self.hurry})"
        if self._was_up and before == VERIFYING and state.verification and state.phase in (READY, DEGRADED):
            return f"; {state.verification['lines'][-1]}"
        return ""

    @property
    def _quiet(self) -> float:
        """Seconds of silence until the same is told again."""
        if self._phase == STOPPING:
            return _STOPPING_SECONDS
        return _QUIET_SECONDS if self._waits else _FIRST_QUIET_SECONDS

    def close(self) -> None:
        """Stop showing."""

    def _come_up(self, state: State) -> None:
        """Print the summary when a service that this process supervises is up for the first time."""
        if state.phase in (READY, DEGRADED) and not self._was_up:
            self._was_up = True
            if state.supervisor["pid"] == os.getpid():
                self.close()
                print_summary(state, detached=False)

    def _say(self, text: str) -> None:
        self._said = self._clock()
        self._waits = False
        print(f"[{self._said - self._began:5.1f}s] {text}", file=sys.stderr, flush=True)


class LiveView(View):
    """A table that is drawn again while the service starts or stops; plain lines in between."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, clock)
        self._state: State | None = None
        self._text = "starting"
        self._live: Live | None = None

    def step(self, text: str) -> None:
        """Say what is being done before there is a state."""
        self._text = text
        self._open()

    def update(self, state: State) -> None:
        """Take a state; the table shows it."""
        self._state = state
        if state.phase in (STARTING, VERIFYING, STOPPING):
            self._open()
            self._phase = state.phase
            self._seen = {pod.name: (pod.phase, pod.notable) for pod in state.pods}
        else:
            self.close()
            super().update(state)

    def close(self) -> None:
        """Take the table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            console = Console(stderr=True)
            self._live = Live(get_renderable=self._table, console=console, transient=True, refresh_per_second=4)
            self._live.start()

    def _table(self) -> Table:
        from rich.table import Table

        state = self._state
        elapsed = f"{self._clock() - self._began:.0f} s"
        title = f"{self._name}: {state.phase if state else self._text}  {elapsed}"
        if state is not None and state.phase == STOPPING and self.hurry:
            title += f"  ({self.hurry})"
        caption = None if state is None else _way_out(state, self._clock() - self._began) or None
        table = Table(
            title=title, title_justify="left", box=None, pad_edge=False, caption=caption, caption_justify="left"
        )
        for column in ("pod", "phase", "for", "memory", ""):
            table.add_column(column)
        for pod in state.pods if state else ():
            note = ", ".join(_told(pod)) or (f"last exit: {pod.last_exit}" if pod.last_exit else "")
            seconds = f"{max(0.0, time.time() - pod.since):.0f} s" if pod.since else ""
            table.add_row(pod.name, pod.phase, seconds, memory(pod), note)
        return table


def waited_for(state: State) -> str:
    """What the service needs for its next phase; empty when it needs nothing."""
    if state.phase == VERIFYING:
        return "the verification"
    if state.phase in (STARTING, DEGRADED):
        return ", ".join(_late(pod) for pod in state.pods if not pod.ready)
    if state.phase == STOPPING:
        pods = [pod for pod in state.pods if pod.pid is not None]
        if not pods:
            return f"its supervisor (process {state.supervisor['pid']})"
        return ", ".join(f"{pod.name} ({pod.phase})" for pod in pods)
    return ""


def _late(pod: PodState) -> str:
    """A pod that is not ready, with how it ended where it did before it was."""
    if not pod.failure:
        return f"{pod.name} ({pod.phase})"
    again = "" if pod.phase == "Restarting" else " again"
    return f"{pod.name} ({pod.phase}{again}; {pod.failure.rstrip('.')})"


def _way_out(state: State, elapsed: float) -> str:
    """What to do about a start that goes on for so many seconds, or in which a process ended; else empty.

    The same of a service that was up and waits for a process.
    """
    if state.phase not in (STARTING, DEGRADED):
        return ""
    failed = next((pod.name for pod in state.pods if not pod.ready and pod.failure), None)
    if not failed and elapsed < _USUAL_SECONDS and any(pod.phase == "Loading" for pod in state.pods):
        return _usual(state)
    ways = [f"`kvserving logs {state.name} {failed} --previous` shows how {failed} ended"] if failed else []
    if elapsed >= _LONG_SECONDS:
        ways += [] if failed else [f"`kvserving logs {state.name}` may say why"]
        ways += ["`up --timeout 10m` gives up by then"] if state.phase == STARTING else []
    return ", ".join(ways)


def _usual(state: State) -> str:
    """How long engines take that load, by their last starts where there were some, and where to look meanwhile."""
    took = max((pod.loaded for pod in state.pods if not pod.ready), default=0.0)
    known = "engines take about a minute on a CPU, longer with large models"
    usual = f"the last start took {took:.0f} s" if took else known
    return f"{usual}; `kvserving logs {state.name} -f` shows what they do"


def pod_line(pod: PodState) -> str:
    """One pod in a line."""
    parts = [f"{pod.name}: {pod.phase}", *_told(pod)]
    if pod.memory:
        parts.append(memory(pod))
    return ", ".join(parts)


def _told(pod: PodState) -> list[str]:
    """What the pod's log says, and why the pod is started again."""
    restarts = pod.phase == "Restarting" and pod.last_exit
    return [*([pod.notable] if pod.notable else ()), *([f"after {pod.last_exit}"] if restarts else ())]


@contextmanager
def progress(name: str) -> Iterator[View]:
    """A view for the time of a command."""
    view = LiveView(name) if sys.stderr.isatty() else View(name)
    try:
        yield view
    finally:
        view.close()

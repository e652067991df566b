"""What a service that ``kvserving up`` runs on this machine says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from ...amounts import size
from ...listing import times
from ..facts import Process, ServiceFacts
from ..findings import Finding, error, info, warning
from . import restarts

_LOST, _FAILED = "Lost", "Failed"
_LEAST_DISK = 2**20
_KILLED, _FROM_OUTSIDE = "killed by SIGKILL", "from outside"
_STARTING = frozenset({"Starting", "Verifying", "Pending", "Restarting"})


def findings(facts: ServiceFacts) -> Iterator[Finding]:
    """Findings about one service, its engines' counters apart."""
    for unread in facts.unread:
        yield info("not-looked-at", unread.what, unread.reason, why="what is wrong there is not told", fix=unread.fix)
    if facts.phase == _LOST:
        # All that follows from it, each process that does not serve among it, has the same way out.
        yield error(
            "supervisor-gone",
            facts.name,
            "its supervisor was killed, and its processes with it or after it",
            why="nothing serves, and what is left may hold memory, GPUs and addresses",
            fix=f"`kvserving down {facts.name}` clears up what it left, then bring it up again",
        )
        return
    if facts.phase == _FAILED:
        # The supervisor itself stopped the other processes.
        yield error(
            "service-failed",
            facts.name,
            " ".join(facts.message.splitlines()),
            why="nothing of it runs: the supervisor has stopped what was left",
            fix=f"correct that and bring it up again; {_more(facts)}",
        )
        return
    if facts.disk_free is not None and facts.disk_free < _LEAST_DISK:
        yield error(
            "state-folder-full",
            "the folder of all services",
            f"it has {size(facts.disk_free)} left, and what status shows is {facts.silent:.0f} s old",
            why="the service goes on, but no state, log or list of engines is written: the router does not learn of an "
            "engine that is started again",
            fix="free some: the supervisor writes again within seconds",
        )
    for sentence in facts.message.splitlines():
        yield warning(
            "service-message",
            facts.name,
            sentence,
            why="the supervisor wants it to be known",
            fix=f"`kvserving logs {facts.name} supervisor` has more",
        )
    engine_missing = any(pod.role in ("prefill", "decode") and not pod.ready for pod in facts.pods)
    for pod in facts.pods:
        if pod.role == "router" and pod.phase == "NotReady" and engine_missing:
            # A router that runs is ready once its engines are: they are what is wrong.
            continue
        yield from _process(facts, pod)
    if facts.verified is False:
        yield error(
            "not-verified",
            facts.name,
            facts.proof,
            why="prompts are computed twice, or requests fail",
            fix=f"`kvserving verify {facts.name}` proves it again and names the leg",
        )


def _process(facts: ServiceFacts, pod: Process) -> Iterator[Finding]:
    """Findings about one process of a service that goes on."""
    ended = f"; its last exit: {pod.last_exit}" if pod.last_exit else ""
    lasts = f" for {pod.since:.0f} s" if pod.since else ""
    log = f"`kvserving logs {facts.name} {pod.name}{' --previous' if pod.last_exit else ''}` says why"
    if not pod.ready and pod.early:
        yield error(
            "ended-before-ready",
            pod.name,
            f"it ended {times(pod.early)} before it was ready: {pod.last_exit}; now it is {pod.phase}",
            why="requests need every role, and the next attempt may end alike",
            fix=log,
        )
    elif not pod.ready and facts.phase not in _STARTING:
        yield error(
            "process-not-ready",
            pod.name,
            f"it is {pod.phase}{f' ({pod.notable})' if pod.notable else ''}{lasts}{ended}",
            why="requests need every role",
            fix=_after_kill(pod) or log,
        )
    elif pod.restarts:
        yield warning(
            "restarted",
            pod.name,
            f"it was started again {times(pod.restarts)}{ended}",
            why=restarts.EARLY if pod.losses == 0 else restarts.cost(pod.role),
            fix=_sender(pod) or log,
        )


def _after_kill(pod: Process) -> str:
    """What to do about a process that was killed and is started again; empty for one that ended otherwise."""
    if not (sender := _sender(pod)):
        return ""
    usual = f"its last start took {pod.loaded:.0f} s" if pod.loaded else "loading takes a minute on a CPU, or longer"
    return f"wait: the service starts it again by itself ({usual}); {sender}"


def _sender(pod: Process) -> str:
    """Where to look for who killed a process, which cannot tell of it; empty for one that ended otherwise."""
    if not pod.last_exit.startswith(_KILLED):
        return ""
    if _FROM_OUTSIDE in pod.last_exit:
        return "its log cannot say who killed it: a person, a program, or the end of its session"
    return "its log cannot say why: `dmesg` tells of the kernel's kills, which more memory or smaller sizes avoid"


def _more(facts: ServiceFacts) -> str:
    """Where more of a failure is told than a finding holds."""
    logs = f"`kvserving logs {facts.name}`"
    if not facts.explained:
        return f"{logs} shows the last lines of each process"
    return f"`kvserving status {facts.name}` shows the last lines of the log, {logs} more"

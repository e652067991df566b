"""A service in print: table, address, proof."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence

from ..api.faults import printable
from ..local import proof, storedisk
from ..local.ages import moment
from ..local.state import DEGRADED, FAILED, PodState, ServiceDir, State


def print_summary(state: State, *, detached: bool) -> None:
    """What `up` ends with: pods, address, commands to copy, and the proof."""
    print_state(state, wide=False)
    if url := state.router["url"]:
        body = {"model": state.served_model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
        print(f"\nTry it:\n  curl {url}/v1/models")
        print(
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
        )
    if detached:
        print(f"\nStop it:  kvserving down {state.name}      Logs:  kvserving logs {state.name} -f")
    else:
        print("\nCtrl-C stops it.")
    print(end="", flush=True)


def print_state(state: State, *, wide: bool, brief: bool = False) -> None:
    """One service: a line on the whole, a table of its pods, and its proof; ``brief`` shortens what a failure says."""
    print(f"{state.name}  {state.phase}  {state.router['url'] or 'no router'}  model {state.served_model}")
    if state.message:
        lines = _short(state) if brief and state.phase == FAILED else state.message.splitlines()
        print("\n".join(f"  {printable(line)}" for line in lines))
    if (disk := storedisk.look(state.store_folder)) is not None and (short := disk.short(state.store_size)):
        print(f"  notice: {printable(short)}")
    if state.phase == DEGRADED and (down := [pod for pod in state.pods if not pod.ready]):
        print(f"  not ready: {', '.join(f'{pod.name} ({note})' if (note := _why(pod)) else pod.name for pod in down)}")
    if state.pods and state.phase != FAILED:
        head = ["POD", "ROLE", "READY", "PHASE", "ADDRESS", "PID", "MEMORY", "RESTARTS", "LAST EXIT"]
        rows = [_row(pod, wide) for pod in state.pods]
        print_table([*head, "SINCE", "LOG"] if wide else head, rows)
    if wide:
        print(
            f"  revision {state.revision}  supervisor {state.supervisor['pid']}  engines' Python {state.engine_python}"
        )
    if state.verification is not None:
        now = time.time()
        caveat = proof.caveat(state, now)
        if caveat:
            print(f"  {caveat}:")
        for line in state.verification["lines"]:
            print(f"  {'  ' * bool(caveat)}{line}")
        if not caveat:
            print(f"  checked at {moment(state.verification['at'], now)}")


def _why(pod: PodState) -> str:
    """What is known of why a pod is not ready."""
    return pod.notable or pod.failure or (pod.last_exit or "") * (pod.phase == "Restarting")


def _short(state: State) -> list[str]:
    """What a failure says without the ends of logs, and where the rest is."""
    from ..local.logfile import in_short, logs_of

    lines = state.message.splitlines()
    if len(lines) == 1:
        return lines
    return [*in_short(state.message), *logs_of(state.message), f"`kvserving status {state.name}` shows all of it"]


def stopped(directory: ServiceDir, claims: Sequence[str], *, already: bool = False) -> str:
    """What a command says of a service that is stopped, and of what is left of it.

    ``claims`` are the folders of those that its pods mounted; others were left by an earlier one of its name.
    """
    lines = [f"{directory.name} is stopped{' already' * already}; its logs stay in {directory.logs}"]
    for claim in directory.claims():
        whose = "it" if str(claim) in claims else f"an earlier {directory.name}"
        lines.append(f"what {whose} stored stays in {claim}; remove the folder to be rid of it")
    return "\n".join(lines)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns, left-aligned, without an empty last one."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def memory(pod: PodState) -> str:
    """What a pod uses, for people; a dash where it does not run."""
    from ..amounts import size

    return size(pod.memory) if pod.memory else "-"


def _row(pod: PodState, wide: bool) -> list[str]:
    row = [
        pod.name,
        pod.role,
        "yes" if pod.ready else "no",
        pod.phase,
        f"{pod.address}:{pod.port}",
        str(pod.pid or "-"),
        memory(pod),
        str(pod.restarts),
        pod.last_exit or "-",
    ]
    return [*row, f"{max(0.0, time.time() - pod.since):.0f}s", pod.log] if wide else row

"""Pods of an operator: why they do not start, what their exit codes mean, and which were started again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ...control.exit_codes import ExitCode
from ...control.pods import PodState, containers, ended, pod_state
from ...listing import times
from ..facts import Body
from ..findings import Finding, warning

CODES: Mapping[int, tuple[str, str]] = {
    ExitCode.FAILED: ("a watch or another part failed for good", ""),
    2: ("it does not know an argument that it is given", "use the chart of the image's version"),
    ExitCode.PERMISSIONS: (
        "permissions are missing",
        "apply the RBAC of the operator's version: the chart, or deploy/install.yaml",
    ),
    ExitCode.LEASE_LOST: (
        "it could not renew its Lease in time, and another operator may write",
        "if it comes again, look at the apiserver's answers and raise lease.durationSeconds in the chart",
    ),
    ExitCode.CLUSTER: (
        "the apiserver cannot be reached, or the CRD is not installed",
        "let the operator's namespace reach the apiserver (network policies, CNI)",
    ),
}
"""What each exit code of the operator means, and the way out beside its log."""
_KILLED = {137: "it was killed: for memory, by a probe or with its node", 143: "it was asked to stop, as by a probe"}
_CODE = re.compile(r"exit code (\d+)")


def failing(pods: Sequence[Body]) -> PodState | None:
    """The first pod that does not start, or finds no node."""
    states = (pod_state(pod) for pod in pods)
    return next((s for s in states if not s.ready and not s.deleting and (s.failing or s.unschedulable)), None)


def stuck(pods: Sequence[Body]) -> str:
    """Which pod does not start and why, its exit code in words; empty where every one does."""
    if (state := failing(pods)) is None:
        return ""
    said = f"{state.failing} {state.failing_message}".strip() or state.unschedulable
    return f"pod {state.name}: {said}{_meaning(said)}"


def way_out(state: PodState) -> str:
    """The way out of an exit code of the operator beside its log; empty where there is none."""
    code = _CODE.search(state.failing_message)
    return CODES.get(int(code[1]), ("", ""))[1] if code else ""


def restarted(where: str, pods: Sequence[Body]) -> Iterator[Finding]:
    """Findings about containers of operators that run, and were started again."""
    for pod in pods:
        state = pod_state(pod)
        if state.failing or state.deleting:
            continue
        for container in containers(pod.get("status") or {}):
            if not (count := container.get("restartCount") or 0):
                continue
            last = ended(container) or (container.get("lastState") or {}).get("terminated") or {}
            yield warning(
                "operator-restarted",
                where,
                f"pod {state.name}: container {container.get('name')} was started again {times(count)}{_end(last)}",
                why="repairs, changes and proofs waited until it, or another replica, had the Lease",
                fix=f"`kubectl logs {state.name} -n {pod['metadata'].get('namespace')} --previous` ends with the "
                "cause; `kubectl describe pod` names a probe that failed",
            )


def _end(last: Mapping[str, object]) -> str:
    if (code := last.get("exitCode")) is None:
        return ""
    reason = f" ({last['reason']})" if last.get("reason") == "OOMKilled" else _meaning(f"exit code {code}")
    at = f" at {last['finishedAt']}" if last.get("finishedAt") else ""
    return f", the last time after exit code {code}{reason}{at}"


def _meaning(said: str) -> str:
    code = _CODE.search(said)
    meaning = (CODES.get(int(code[1]), ("", ""))[0] or _KILLED.get(int(code[1]), "")) if code else ""
    return f" ({meaning})" if meaning else ""

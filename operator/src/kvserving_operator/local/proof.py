"""Whether the proof of a service still holds, judged once and in the same words for every command."""

from __future__ import annotations

from .ages import ago
from .state import LOST, State

_PROVED = frozenset({"prefill", "decode", "router"})
"""Roles whose processes a proof is about."""


def caveat(state: State, now: float) -> str:
    """What has to be said before the proof in ``state`` is shown; empty where it holds, or failed, or is not there.

    A proof is past when its supervisor was killed, the plan changed, or an engine or the router ended or was replaced
    since it began. A process that is not ready and has not ended makes no proof past: it is named.
    """
    proof = state.verification
    if proof is None or not proof["ok"]:
        return ""
    # The state of a former release does not say when the proof began.
    began = proof.get("began", proof["at"])
    pods = [pod for pod in state.pods if pod.role in _PROVED]
    ended = [pod.name for pod in pods if pod.ended > began]
    waiting = [pod.name for pod in pods if not pod.ready]
    if state.phase == LOST:
        since = ", before its supervisor was killed"
    elif proof.get("revision", state.revision) != state.revision:
        since = ", before the plan changed"
    elif ended:
        since = f", before {' and '.join(ended)} ended"
    elif waiting:
        have, are = ("has", "is") if len(waiting) == 1 else ("have", "are")
        since = f"; {' and '.join(waiting)} {have} not ended, and {are} not ready now"
    else:
        return ""
    return f"last verified {ago(proof['at'], now)}{since}"

"""How ``rollout undo`` writes a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..control.failures import ApiFailure, describe, problem
from ..control.permissions import SERVING
from ..doctor.connection import refused
from ..local.errors import LocalError
from ..reasons import Reason

if TYPE_CHECKING:
    from ..doctor.connection import Connection

Body = Mapping[str, Any]
_WRITES = 5


async def write(connection: Connection, body: Body, spec: Mapping[str, Any], manager: str) -> Body:
    """Write the spec in place of that of ``body``. Raises ``ApiFailure``, a conflict where somebody changed the object.

    The operator's own writes of the status, several a second in a rollout, are no change.
    """
    for _ in range(_WRITES - 1):
        try:
            return await connection.kube.replace(SERVING, {**body, "spec": spec}, manager=manager)
        except ApiFailure as failure:
            if failure.status != 409:
                raise
            metadata = body["metadata"]
            now = await connection.kube.get(SERVING, metadata["namespace"], metadata["name"])
            if now is None or now["metadata"]["uid"] != metadata["uid"] or now.get("spec") != body.get("spec"):
                raise
            body = now
    return await connection.kube.replace(SERVING, {**body, "spec": spec}, manager=manager)


def refusal(server: str, failure: ApiFailure) -> LocalError:
    """Return what to tell of a spec that was not written."""
    if failure.status == 409:
        return LocalError("the object changed while this ran, and nothing was written: run it again")
    if problem(failure).reason is Reason.APPLY_FAILED:
        return LocalError(f"{describe(failure)}; nothing was written")
    return refused(server, failure)

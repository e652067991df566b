"""An object of a cluster by its name."""

from __future__ import annotations

from typing import Any

from ..api.v1alpha1 import KIND
from ..control.failures import ApiFailure
from ..control.permissions import SERVING
from ..local.errors import LocalError, there_are
from .connection import Connection

Body = dict[str, Any]


class NoSuchObject(LocalError):
    """There is no object of that name; the message says which there are."""


async def read_named(connection: Connection, name: str) -> Body:
    """The object of that name in the connection's namespace.

    Raises ``NoSuchObject``, and ``ApiFailure`` where the object itself cannot be had.
    """
    namespace = connection.namespace
    body = await connection.kube.get(SERVING, namespace, name)
    if body is not None:
        return body
    try:
        bodies = [item async for page in connection.kube.list(SERVING, namespace) for item in page.items]
        others = there_are(sorted(str(item["metadata"]["name"]) for item in bodies))
    except ApiFailure as failure:
        why = "may not be read" if failure.status == 403 else f"cannot be read ({failure.status or failure.reason})"
        others = f"which there are {why}"
    raise NoSuchObject(f"no {KIND} {name} in namespace {namespace}; {others}")

"""How many ready pods a role has had at least, by a watch."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from e2e.controlplane.cluster import Cluster


class PodCount:
    """Counts ready pods of one role in a namespace, of all revisions, from ``__enter__`` to ``__exit__``.

    ``least`` is the smallest number that any event of the watch left.
    """

    def __init__(self, cluster: Cluster, namespace: str, role: str) -> None:
        self._api = cluster.api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = f"kvserving.dev/role={role}"
        self._end = threading.Event()
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        listed = self._api.get(self._path, labelSelector=self._selector)
        self._ready = {item["metadata"]["name"] for item in listed["items"] if _ready(item)}
        self.least = len(self._ready)
        self._thread = threading.Thread(target=self._watch, args=(listed["metadata"]["resourceVersion"],))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    def _watch(self, version: str) -> None:
        try:
            while not self._end.is_set():
                watch = self._api.watch(self._path, timeout=1, labelSelector=self._selector, resourceVersion=version)
                for event in watch:
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._see(event)
        except BaseException as error:
            self._errors.append(error)

    def _see(self, event: dict[str, Any]) -> None:
        name = event["object"]["metadata"]["name"]
        if event["type"] != "DELETED" and _ready(event["object"]):
            self._ready.add(name)
        else:
            self._ready.discard(name)
        self.least = min(self.least, len(self._ready))


def _ready(pod: dict[str, Any]) -> bool:
    found = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or ()}
    return found.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]

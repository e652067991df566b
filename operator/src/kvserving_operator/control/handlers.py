"""What kopf calls: trim into the store, nothing else. The store tells the queue.

There are event handlers only. kopf's indices would hold every listed body in memory until all
kinds are listed; here each is trimmed as it comes, and the first comparison with the cluster
(``resync``) tells when everything is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .observe import Store, child_of, key_of, serving_of
from .permissions import PODS, SERVING, Resource

log = logging.getLogger(__name__)

Body = Mapping[str, Any]


class Handlers:
    """Handlers of one kind."""

    def __init__(self, resource: Resource, store: Store) -> None:
        self._resource = resource
        self._store = store

    def take(self, event: Mapping[str, Any]) -> None:
        """Take note of an object that was listed, changed or deleted. Never raises: it would not come again."""
        try:
            if event.get("type") == "DELETED":
                self.forget(event["object"])
            else:
                self.note(event["object"])
        except Exception:
            log.exception("an event of %s could not be read and is ignored", self._resource.full_name)

    def note(self, body: Body) -> None:
        """Put a body into the store."""
        if self._resource is SERVING:
            self._store.put_serving(serving_of(body))
            return
        key, metadata = key_of(body), body["metadata"]
        if key is None:
            self._store.leave(self._resource.kind, metadata["name"], metadata["uid"], None)
            return
        if self._resource is PODS:
            self._store.put_pod(key, body)
        elif not self._store.has_child(key, self._resource.kind, metadata):
            self._store.put_child(key, child_of(body, self._resource.api_version, self._resource.kind))

    def forget(self, body: Body) -> None:
        """Take a body out of the store."""
        metadata = body["metadata"]
        version = metadata.get("resourceVersion", "")
        key = key_of(body)
        if self._resource is SERVING:
            self._store.remove_serving(serving_of(body).key, metadata["uid"], version)
        elif key is not None and self._resource is PODS:
            self._store.remove_pod(key, metadata["name"], metadata["uid"])
        elif key is not None:
            self._store.remove_child(key, self._resource.kind, metadata["name"], metadata["uid"], version)

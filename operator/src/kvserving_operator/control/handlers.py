"""From a body to the store, in two steps: trimmed in the thread of the watches, taken note of in the store's loop.

There are event handlers only. kopf's indices would hold every listed body in memory until all
kinds are listed; here each is trimmed as it comes, and the first comparison with the cluster
(``resync``) tells when everything is known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .observe import Store, child_of, key_of, serving_of
from .permissions import PODS, SERVING, Resource
from .pods import pod_state

log = logging.getLogger(__name__)

Body = Mapping[str, Any]
Note = Callable[[], None]
"""A call to be made in the loop that the store belongs to."""


class Handlers:
    """Handlers of one kind."""

    def __init__(self, resource: Resource, store: Store) -> None:
        self._resource = resource
        self._store = store

    def event(self, event: Mapping[str, Any]) -> Note | None:
        """Return what to note of an object that was listed, changed or deleted; ``None`` for nothing.

        Never raises: the event would not come again.
        """
        try:
            return self.deleted(event["object"]) if event.get("type") == "DELETED" else self.seen(event["object"])
        except Exception:
            log.exception("an event of %s could not be read and is ignored", self._resource.full_name)
            return None

    def seen(self, body: Body) -> Note | None:
        """Return what to note of an object that is there."""
        if self._resource is SERVING:
            return partial(self._store.put_serving, serving_of(body))
        key, metadata = key_of(body), body["metadata"]
        if key is None:
            return partial(self._store.leave, self._resource.kind, metadata["name"], metadata["uid"], None)
        if self._resource is PODS:
            return partial(self._store.put_pod, key, pod_state(body))
        if self._store.has_child(key, self._resource.kind, metadata):
            return None
        return partial(self._store.put_child, key, child_of(body, self._resource.api_version, self._resource.kind))

    def deleted(self, body: Body) -> Note | None:
        """Return what to note of an object that is gone."""
        metadata = body["metadata"]
        version = metadata.get("resourceVersion", "")
        key = key_of(body)
        if self._resource is SERVING:
            return partial(self._store.remove_serving, serving_of(body).key, metadata["uid"], version)
        if key is None:
            return None
        if self._resource is PODS:
            return partial(self._store.remove_pod, key, metadata["name"], metadata["uid"], version)
        kind = self._resource.kind
        return partial(self._store.remove_child, key, kind, metadata["name"], metadata["uid"], version)

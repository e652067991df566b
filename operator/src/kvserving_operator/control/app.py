"""kopf as the source of events: an explicit registry and settings, nothing global, nothing written by it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client.configuration import Configuration

from ..plan import labels
from .handlers import Handlers
from .observe import Store
from .permissions import CHILDREN, PODS, SERVING, Resource
from .preflight import Installed

log = logging.getLogger(__name__)

_PREFIX = "operator.kvserving.dev"
_WATCH_SECONDS = 480
_INACTIVITY_SECONDS = 70.0
_CONNECT_SECONDS = 10.0
_CHUNK = 50


class _NoDiffBase(kopf.DiffBaseStorage):
    """No record of former specs: there are no handlers of changes, and records are annotations."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("nothing is stored on the user's object")


def watched(kinds: Installed) -> tuple[Resource, ...]:
    """Return the kinds to watch: the objects, their pods and those kinds of children that the cluster has."""
    present = (child for child in CHILDREN if (child.api_version, child.kind) in kinds.present)
    return (SERVING, PODS, *present)


def registry(
    resources: tuple[Resource, ...],
    store: Store,
    login: Callable[[], Any],
    tell: Callable[..., None],
    begun: Callable[[], None],
) -> kopf.OperatorRegistry:
    """Return a registry with an event handler of every kind, and ``login`` as the way to credentials.

    ``tell`` makes a call in the loop that ``store`` belongs to. ``begun`` is called there once for each kind, with the
    first of its objects that a watch has listed: from then on that watch tells of every deletion.
    """
    made = kopf.OperatorRegistry()
    silent = set(resources)
    for resource in resources:
        handlers = Handlers(resource, store)

        async def event(
            event: Mapping[str, Any], handlers: Handlers = handlers, kind: Resource = resource, **_: Any
        ) -> None:
            if (note := handlers.event(event)) is not None:
                tell(note)
            if kind in silent:
                silent.remove(kind)
                tell(begun)

        where = (resource.group, resource.version, resource.plural)
        name = resource.full_name.replace(".", "-")
        kopf.on.event(*where, registry=made, id=f"event-{name}")(event)

    async def log_in(**_: Any) -> Any:
        return login()

    kopf.on.login(registry=made, id="login")(log_in)
    return made


def settings(resources: tuple[Resource, ...]) -> kopf.OperatorSettings:
    """Return kopf's settings: only labelled children are streamed, silent watches are restarted, nothing is posted."""
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.scanning.disabled = True
    made.posting.enabled = False
    made.posting.loggers = False
    made.watching.server_timeout = _WATCH_SECONDS
    made.watching.client_timeout = _WATCH_SECONDS + 60.0
    made.watching.connect_timeout = _CONNECT_SECONDS
    made.watching.inactivity_timeout = _INACTIVITY_SECONDS
    made.watching.chunk_size = _CHUNK
    made.networking.request_timeout = 60.0
    made.networking.connect_timeout = _CONNECT_SECONDS
    # A worker per object lives this long after its last event; a listing of thousands would keep thousands.
    made.queueing.idle_timeout = 0.05
    # It would kill the process; the watches have a thread that can be left behind instead.
    made.process.ultimate_exiting_timeout = None
    made.persistence.finalizer = f"{_PREFIX}/unused"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_PREFIX, v1=False)
    made.persistence.diffbase_storage = _NoDiffBase()
    for resource in resources:
        if resource is not SERVING:
            made.watching.label_selectors[resource.group, resource.version, resource.plural] = labels.NAME
    return made


def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the connection of ``configuration`` as kopf takes it."""
    source: Any = configuration
    keys: Mapping[str, str] = source.api_key
    if source.refresh_api_key_hook is not None:
        source.refresh_api_key_hook(source)
    scheme, _, token = (keys.get("BearerToken") or "").strip().rpartition(" ")
    return kopf.ConnectionInfo(
        server=source.host,
        ca_path=source.ssl_ca_cert,
        insecure=not source.verify_ssl,
        token=token or None,
        scheme="Bearer" if scheme else None,
        certificate_path=source.cert_file,
        private_key_path=source.key_file,
        default_namespace="default",
    )

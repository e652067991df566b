"""A small synchronous client that sends what it is told, for tests that need exact requests.

``kubernetes`` and ``kubernetes.aio`` work against the control plane as well (``Cluster.kubeconfig``); this one adds
what tests need in one line: query parameters such as ``fieldValidation``, errors with status and body, waiting by
watch, and server-side apply of any kind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from e2e.controlplane.pki import Credentials

Json = dict[str, Any]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """An answer of 400 or above: ``status``, ``reason`` and the decoded ``body``."""

    def __init__(self, status: int, body: Json, request: str) -> None:
        self.status = status
        self.body = body
        self.reason = str(body.get("reason", ""))
        super().__init__(f"{request}: {status} {self.reason}: {body.get('message', '')}")


class NotInTime(Exception):
    """What was waited for did not happen; the message says what, and the last object seen."""


class Api:
    """Requests to one server as one user. Thread-safe."""

    def __init__(self, server: str, ca_file: Path | None, credentials: Credentials) -> None:
        self.server = server.rstrip("/")
        self.credentials = credentials
        self._headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
        self._pool = urllib3.PoolManager(
            maxsize=32,
            retries=False,
            ca_certs=str(ca_file) if ca_file else None,
            cert_file=str(credentials.cert_file) if credentials.cert_file else None,
            key_file=str(credentials.key_file) if credentials.key_file else None,
        )
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        content_type: str = "application/json",
        timeout: float = 30,
    ) -> Json:
        """Send one request and return the decoded answer. Raises ``ApiError``, or ``urllib3``'s errors."""
        answer = self._send(method, path, body, query, content_type, timeout, preload=True)
        return _decoded(answer.data)

    def get(self, path: str, **query: object) -> Json:
        """Read an object or a list."""
        return self.request("GET", path, query=query)

    def find(self, path: str) -> Json | None:
        """Read an object, ``None`` when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def items(self, path: str, **query: object) -> list[Json]:
        """Return the items of a list."""
        return list(self.get(path, **query).get("items") or [])

    def create(self, obj: Mapping[str, Any], **query: object) -> Json:
        """Create ``obj`` in the namespace that its metadata names."""
        return self.request("POST", self.path_of(obj, collection=True), obj, query=query)

    def apply(self, obj: Mapping[str, Any], *, manager: str = "tests", force: bool = True, **query: object) -> Json:
        """Server-side apply ``obj`` as ``manager``."""
        query = {"fieldManager": manager, "force": str(force).lower(), **query}
        return self.request("PATCH", self.path_of(obj), obj, query=query, content_type=APPLY)

    def merge(self, path: str, patch: Mapping[str, Any], **query: object) -> Json:
        """Merge-patch the object at ``path``."""
        return self.request("PATCH", path, patch, query=query, content_type=MERGE)

    def delete(self, path: str, **options: object) -> Json:
        """Delete the object at ``path``; ``options`` are fields of DeleteOptions, e.g. ``gracePeriodSeconds=0``."""
        return self.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def watch(self, path: str, *, timeout: float, **query: object) -> Iterator[Json]:
        """Yield the events of one watch until the server ends it after ``timeout`` seconds."""
        params = {"watch": "true", "timeoutSeconds": max(1, int(timeout)), **query}
        answer = self._send("GET", path, None, params, "application/json", timeout + 10, preload=False)
        try:
            rest = b""
            for chunk in answer.stream(2**16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        finally:
            answer.close()

    def wait(
        self, path: str, condition: Callable[[Json | None], bool], *, what: str, timeout: float = 30
    ) -> Json | None:
        """Return the object at ``path`` (``None``: it is gone) as soon as ``condition`` of it holds.

        It is told of changes by a watch. Raises ``NotInTime`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        collection, _, name = path.rpartition("/")
        selector = {"fieldSelector": f"metadata.name={name}"}
        seen: Json | None = None
        while (left := deadline - time.monotonic()) > 0:
            listed = self.get(collection, **selector)
            found = listed.get("items") or []
            # Items of a list carry no kind; a caller that looks at it gets the same as from an event.
            seen = found[0] if found else None
            if condition(seen):
                return seen
            version = listed["metadata"]["resourceVersion"]
            for event in self.watch(collection, timeout=left, resourceVersion=version, **selector):
                if event["type"] == "ERROR":
                    break
                seen = None if event["type"] == "DELETED" else event["object"]
                if condition(seen):
                    return seen
                if time.monotonic() > deadline:
                    break
        raise NotInTime(f"not within {timeout:.0f} s: {what}; last seen: {json.dumps(seen, indent=1)}")

    def path_of(self, obj: Mapping[str, Any], *, collection: bool = False) -> str:
        """Return the path of ``obj`` (or of its collection), found by discovery from its apiVersion and kind."""
        version, kind = obj["apiVersion"], obj["kind"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._plurals:
            for resource in self.get(base)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = (resource["name"], bool(resource["namespaced"]))
        if (version, kind) not in self._plurals:
            raise LookupError(f"the server has no kind {kind} in {version}")
        plural, namespaced = self._plurals[version, kind]
        if namespaced:
            base += f"/namespaces/{obj['metadata'].get('namespace', 'default')}"
        return f"{base}/{plural}" if collection else f"{base}/{plural}/{obj['metadata']['name']}"

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, object] | None,
        content_type: str,
        timeout: float,
        *,
        preload: bool,
    ) -> urllib3.BaseHTTPResponse:
        answer = self._pool.request(
            method,
            f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=None if body is None else json.dumps(body),
            headers={**self._headers, "Content-Type": content_type, "Accept": "application/json"},
            timeout=timeout,
            preload_content=preload,
        )
        if answer.status >= 400:
            raise ApiError(answer.status, _decoded(answer.data), f"{method} {path}")
        return answer


def _decoded(data: bytes) -> Json:
    try:
        value = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}
    return value if isinstance(value, dict) else {"value": value}

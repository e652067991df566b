"""The apiserver as the operator uses it: a few typed calls over the transport of ``kubernetes.aio``.

Its dynamic client sends the same requests, but formats a traceback for every 404, and the
answer to "is this name free" is one. Kinds come from the table of permissions: no discovery.
Every write passes the gate (the Lease must be held) and the rate limit; after an answer 429, all
writes wait as long as the server asked for.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from .config import FIELD_MANAGER, ROLLOUT_MANAGER
from .failures import ApiFailure
from .permissions import EVENTS, LEASES, Resource
from .workqueue import TokenBucket

Json = dict[str, Any]
# With a parameter the client takes bytes as they are. By itself it writes emoji as escaped surrogate pairs, which are
# JSON and no YAML: the apiserver refuses the whole patch.
_APPLY = "application/apply-patch+yaml; charset=utf-8"
_MERGE = "application/merge-patch+json"
# No stored object has this version, so an apply with it makes a new object or fails with 409.
_ABSENT = {"resourceVersion": "1"}
_PAGE = 100
_LONGEST_RETRY_AFTER = 300.0
_LONGEST_HOLD = 30.0
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


class MayNotWrite(Exception):
    """The Lease is not held (any more): nothing may be written."""


@dataclass(frozen=True)
class Call:
    """One finished request, for metrics: verb, plural name of the resource, status (0: no answer), seconds."""

    verb: str
    resource: str
    status: int
    seconds: float


@dataclass(frozen=True)
class Page:
    """A part of a list. ``version`` is that of the state from which all parts are."""

    version: str
    items: Sequence[Json]


class Kube:
    """Requests to one apiserver. ``may_write`` is asked before each write; ``observe`` is told of each request."""

    def __init__(
        self,
        api: ApiClient,
        *,
        limit: TokenBucket,
        timeout: float,
        may_write: Callable[[], bool],
        observe: Callable[[Call], None],
        now: Callable[[], float],
    ) -> None:
        self._api: Any = api
        self._limit = limit
        self._timeout = timeout
        self._may_write = may_write
        self._observe = observe
        self._now = now

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return one object, ``None`` when there is none. Raises ``ApiFailure``."""
        path = self._path(resource, namespace, name)
        try:
            return await self._send("get", resource, path, name, namespace)
        except ApiFailure as failure:
            if failure.missing:
                return None
            raise

    async def list(self, resource: Resource, namespace: str | None, *, selector: str = "") -> AsyncIterator[Page]:
        """Yield all objects of a kind, in one namespace or everywhere, page by page. Raises ``ApiFailure``."""
        token = ""
        while True:
            query = {"limit": str(_PAGE), "labelSelector": selector, "continue": token}
            query = {name: value for name, value in query.items() if value}
            page = await self._send("list", resource, self._path(resource, namespace), "", namespace or "", query=query)
            metadata = page.get("metadata") or {}
            yield Page(str(metadata.get("resourceVersion") or ""), page.get("items") or [])
            token = metadata.get("continue") or ""
            if not token:
                return

    async def apply(self, resource: Resource, body: Mapping[str, Any], *, force: bool) -> Json:
        """Server-side apply ``body`` and return the object. Raises ``ApiFailure``."""
        metadata = body["metadata"]
        path = self._path(resource, metadata["namespace"], metadata["name"])
        params = _apply(force) | {"body": body}
        return await self._write("patch", resource, path, metadata["name"], metadata["namespace"], **params)

    async def apply_new(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """Create ``body`` by server-side apply. Raises ``ApiFailure``, of status 409 when there is one of that name,
        which is left untouched whoever made it.

        A plain create would enter every defaulted field under our name, and a later apply could not take one away.
        """
        return await self.apply(resource, {**body, "metadata": {**body["metadata"], **_ABSENT}}, force=False)

    async def apply_status(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """Server-side apply the status of ``body``, whose metadata should carry the UID. Raises ``ApiFailure``."""
        metadata = body["metadata"]
        path = self._path(resource, metadata["namespace"], metadata["name"]) + "/status"
        resource = replace(resource, plural=f"{resource.plural}/status")
        params = _apply(True) | {"body": body}
        return await self._write("patch", resource, path, metadata["name"], metadata["namespace"], **params)

    async def adjust(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Json:
        """Merge ``body``, whose metadata should carry the UID, into one object and return it. Raises ``ApiFailure``.

        Under a field manager of its own: what is changed so is no longer as it was applied, and the next apply sees it.
        """
        params: Json = {"content_type": _MERGE, "query": {"fieldManager": ROLLOUT_MANAGER}, "body": body}
        return await self._write("patch", resource, self._path(resource, namespace, name), name, namespace, **params)

    async def replace(self, resource: Resource, body: Mapping[str, Any], *, manager: str) -> Json:
        """Put ``body``, an object as it was read with changes, in the place of the stored one; return what is stored.

        Raises ``ApiFailure``, of status 409 where the object is no longer in the resource version of ``body``.
        """
        metadata = body["metadata"]
        path = self._path(resource, metadata["namespace"], metadata["name"])
        params: Json = {"body": body, "query": {"fieldManager": manager}}
        return await self._write("update", resource, path, metadata["name"], metadata["namespace"], **params)

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """Create ``body``. Raises ``ApiFailure``, of status 409 when there is one of that name."""
        metadata = body["metadata"]
        name = metadata.get("name", "")
        return await self._write(
            "create",
            resource,
            self._path(resource, metadata["namespace"]),
            name,
            metadata["namespace"],
            body=body,
            query={"fieldManager": FIELD_MANAGER},
        )

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str, grace: int | None = None
    ) -> None:
        """Delete one object if it still has this UID and resource version. Raises ``ApiFailure``.

        ``grace``: seconds that a pod gets to end in place of its own.
        """
        preconditions = {"uid": uid, "resourceVersion": version}
        body: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self._write("delete", resource, self._path(resource, namespace, name), name, namespace, body=body)

    async def try_event(self, namespace: str) -> None:
        """Ask whether an event could be created in ``namespace``; nothing is stored. Raises ``ApiFailure``."""
        metadata = {"namespace": namespace, "generateName": "probe."}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": {"namespace": namespace}}
        what = f"create {EVENTS.full_name} in {namespace} (dry run)"
        path = self._path(EVENTS, namespace)
        await self._request("create", "reviews", path, what, body=body, query={"dryRun": "All"})

    async def put_lease(self, body: Mapping[str, Any], *, create: bool) -> Json:
        """Create or replace a Lease: the one write that needs none. Raises ``ApiFailure``."""
        metadata = body["metadata"]
        path = self._path(LEASES, metadata["namespace"], None if create else metadata["name"])
        verb = "create" if create else "update"
        what = f"{verb} {LEASES.full_name} {metadata['namespace']}/{metadata['name']}"
        return await self._request(verb, LEASES.plural, path, what, body=dict(body))

    async def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create a review (nothing is stored by it). Raises ``ApiFailure``."""
        return await self._request("create", "reviews", path, f"create {path}", body=dict(body))

    async def read(self, path: str) -> Json | None:
        """Return what is at ``path``, such as a discovery document; ``None`` for 404. Raises ``ApiFailure``."""
        try:
            return await self._request("get", "discovery", path, f"get {path}")
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise

    async def text(self, path: str) -> str:
        """Return the text at ``path``, such as what a pod answers behind the proxy. Raises ``ApiFailure``."""
        raw = await self._answer("get", "proxy", path, f"get {path}", accept="*/*")
        return raw.decode("utf-8", "replace")

    def _path(self, resource: Resource, namespace: str | None, name: str | None = None) -> str:
        base = f"/{'apis' if resource.group else 'api'}/{resource.api_version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{base}{where}/{resource.plural}" + (f"/{quote(name, safe='')}" if name else "")

    async def _write(self, verb: str, resource: Resource, path: str, name: str, namespace: str, **params: Any) -> Json:
        delay = self._limit.reserve()
        if delay > 0:
            await asyncio.sleep(delay)
        if not self._may_write():
            raise MayNotWrite(f"{verb} {resource.full_name} {namespace}/{name}")
        what = f"{verb} {resource.full_name} {namespace}/{name}".rstrip("/")
        return await self._request(verb, resource.plural, path, what, **params)

    async def _send(self, verb: str, resource: Resource, path: str, name: str, namespace: str, **params: Any) -> Json:
        what = f"{verb} {resource.full_name} {namespace}/{name}".rstrip("/ ")
        return await self._request(verb, resource.plural, path, what, **params)

    async def _request(self, verb: str, plural: str, path: str, what: str, **params: Any) -> Json:
        raw = await self._answer(verb, plural, path, what, **params)
        try:
            answer = json.loads(raw)
        except ValueError:
            raise ApiFailure(0, "answer is no JSON", "", what, {}) from None
        if not isinstance(answer, dict):
            raise ApiFailure(0, "answer is no object", "", what, {})
        return answer

    async def _answer(
        self,
        verb: str,
        plural: str,
        path: str,
        what: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        started = self._now()
        status = 0
        try:
            request = await self._api.param_serialize(
                _METHODS[verb],
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body if content_type != _APPLY or body is None else json.dumps(body, ensure_ascii=False).encode(),
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(*request, _request_timeout=self._timeout)
            raw: bytes = await response.read()
            status = int(response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiFailure(0, _cause(error), "", what, {}) from None
        finally:
            self._observe(Call(verb, plural, status, self._now() - started))
        if not 200 <= status < 300:
            raise self._refused(status, response, raw, what)
        return raw

    def _refused(self, status: int, response: Any, raw: bytes, what: str) -> ApiFailure:
        failure = _failure(status, response, raw, what)
        if status == 429:
            self._limit.hold(min(failure.retry_after, _LONGEST_HOLD))
        return failure


def _apply(force: bool) -> Json:
    query = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
    return {"content_type": _APPLY, "query": query}


def _cause(error: Exception) -> str:
    """Why there was no answer, in words of the system."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{error.host}:{error.port}: {error.os_error.strerror or error.os_error or type(error).__name__}"
    return str(error) or type(error).__name__


def _failure(status: int, response: Any, raw: bytes, what: str) -> ApiFailure:
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        # Something before the apiserver answers in its own words.
        body = {}
    if not isinstance(body, dict):
        body = {}
    details = body.get("details")
    details = details if isinstance(details, dict) else {}
    return ApiFailure(
        status=status,
        reason=str(body.get("reason") or response.reason or ""),
        message=str(body.get("message") or ""),
        what=what,
        details=details,
        retry_after=_retry_after(response.headers, details),
    )


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float:
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds")):
        try:
            seconds = float(str(value))
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds > 0:
            return min(seconds, _LONGEST_RETRY_AFTER)
    return 0.0

"""As much of an apiserver as the plugin's commands ask, over real HTTP: reads, reviews, and the proxy to pods."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from tests.serving_thread import served

from kvserving_operator.api.schema import object_schema
from kvserving_operator.api.v1alpha1 import GROUP, KIND
from kvserving_operator.control.permissions import CHILDREN, SERVING

TOKEN = "a-token-of-the-tests"
Body = dict[str, Any]


@dataclass
class Apiserver:
    """Objects by plural name. ``forbidden`` are plurals (or ``pods/proxy``, ``version``, ``discovery``) that may not be
    read, plurals after ``list`` that may not be listed, and reviews that may not be asked for.

    ``answers`` are what pods say behind the proxy by (pod, path), ``forward`` their own addresses where they serve.
    """

    objects: dict[str, list[Body]] = field(default_factory=dict)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    forward: dict[str, str] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    reviews: list[Body] = field(default_factory=list)
    kinds: tuple[str, ...] = tuple(resource.kind for resource in (*CHILDREN, SERVING))
    writes: list[str] = field(default_factory=list)
    url: str = ""

    def app(self) -> web.Application:
        """The server."""
        app = web.Application(middlewares=[self._checked])
        app.router.add_get("/version", self._version)
        app.router.add_get("/openapi/v3/apis/kvserving.dev/v1alpha1", self._openapi)
        app.router.add_post("/apis/authorization.k8s.io/v1/{kind}", self._review)
        pod = "/api/v1/namespaces/{namespace}/pods/{pod}/proxy/{path:.*}"
        app.router.add_route("*", pod, self._proxy)
        for base in ("/api/{version}", "/apis/{group}/{version}"):
            app.router.add_get(base, self._discovery)
            app.router.add_get(f"{base}/{{plural}}", self._list)
            app.router.add_get(f"{base}/{{plural}}/{{name}}", self._get)
            app.router.add_get(f"{base}/namespaces/{{namespace}}/{{plural}}", self._list)
            app.router.add_get(f"{base}/namespaces/{{namespace}}/{{plural}}/{{name}}", self._get)
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        reading = request.method == "GET" or "/proxy/" in request.path or "accessreviews" in request.path
        if not reading:
            self.writes.append(f"{request.method} {request.path}")
        response: web.StreamResponse = await handler(request)
        return response

    async def _version(self, _: web.Request) -> web.Response:
        if "version" in self.forbidden:
            return _status(403, "Forbidden")
        return web.json_response({"gitVersion": "v1.35.1"})

    async def _openapi(self, _: web.Request) -> web.Response:
        schema = {**object_schema(), "x-kubernetes-group-version-kind": [{"group": GROUP, "kind": KIND}]}
        return web.json_response({"components": {"schemas": {"dev.kvserving.KVServing": schema}}})

    async def _discovery(self, request: web.Request) -> web.Response:
        if "discovery" in self.forbidden:
            return _status(403, "Forbidden")
        wanted = "/".join(filter(None, (request.match_info.get("group"), request.match_info["version"])))
        there = [r for r in (*CHILDREN, SERVING) if r.api_version == wanted and r.kind in self.kinds]
        if not there:
            return _status(404, "NotFound")
        return web.json_response({"resources": [{"name": r.plural, "kind": r.kind} for r in there]})

    async def _review(self, request: web.Request) -> web.Response:
        if request.match_info["kind"] in self.forbidden:
            return _status(403, "Forbidden")
        body = await request.json()
        self.reviews.append(body)
        asked = body["spec"]["resourceAttributes"]
        plural = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return web.json_response({"status": {"allowed": plural not in self.forbidden}}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace")
        if {plural, f"list {plural}"} & self.forbidden:
            return _status(403, "Forbidden")
        wanted = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        items = [
            body
            for body in self.objects.get(plural, [])
            if namespace in (None, body["metadata"].get("namespace"))
            and wanted.items() <= (body["metadata"].get("labels") or {}).items()
        ]
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async def _get(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        if plural in self.forbidden:
            return _status(403, "Forbidden")
        for body in self.objects.get(plural, []):
            if body["metadata"]["name"] == name:
                return web.json_response(body)
        return _status(404, "NotFound", name=name)

    async def _proxy(self, request: web.Request) -> web.Response:
        if "pods/proxy" in self.forbidden:
            return _status(403, "Forbidden")
        pod, path = request.match_info["pod"].partition(":")[0], request.match_info["path"]
        if pod in self.forward:
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, f"{self.forward[pod]}/{path}", data=await request.read() or None,
                                headers={"Content-Type": "application/json"}) as answer,
            ):  # fmt: skip
                return web.Response(body=await answer.read(), status=answer.status)
        if (pod, path) not in self.answers:
            return _status(503, "ServiceUnavailable")
        return web.Response(text=self.answers[pod, path])


def _status(code: int, reason: str, **details: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "details": details}, status=code)


def secret(name: str, values: Mapping[str, str]) -> Body:
    """A Secret of the namespace ``prod``."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"metadata": {"name": name, "namespace": "prod"}, "data": data}


@contextmanager
def running(server: Apiserver, folder: Path) -> Iterator[Path]:
    """Serve in a thread; yield a kubeconfig whose context has the namespace ``prod``."""
    with served(server.app()) as port:
        server.url = f"http://127.0.0.1:{port}"
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(_kubeconfig(server.url)))
        yield file


def leave(kubeconfig: Path) -> None:
    """Make a cluster that does not answer, and the namespace ``elsewhere``, the current context instead of ``test``."""
    body = yaml.safe_load(kubeconfig.read_text())
    body["clusters"].append({"name": "gone", "cluster": {"server": "http://127.0.0.1:9"}})
    body["contexts"].append({"name": "gone", "context": {"cluster": "gone", "user": "test", "namespace": "elsewhere"}})
    kubeconfig.write_text(yaml.safe_dump({**body, "current-context": "gone"}))


def _kubeconfig(url: str) -> Mapping[str, Any]:
    def named(kind: str, value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [{"name": "test", kind: value}]

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": named("cluster", {"server": url}),
        "users": named("user", {"token": TOKEN}),
        "contexts": named("context", {"cluster": "test", "user": "test", "namespace": "prod"}),
    }

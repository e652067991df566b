"""Network policies: who may reach engines, store and router, and where engines may go.

Side channels and transfers have no authentication, so engines accept only routers and
peers of their own revision, the operator (probes, counters) and the monitoring namespace.
Policies add up: whoever needs another way makes a policy beside these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.stores import EXTERNAL
from ..connectors import l2_type
from . import addresses, labels, ports, router, storage
from .context import Context
from .objects import manifest

_NAMESPACE = "kubernetes.io/metadata.name"
_WEB = {"https": 443, "http": 80}
_OPERATOR = {"app.kubernetes.io/name": "kvserving-operator"}
# Variables with the addresses of hubs, object stores and proxies that downloads go to in place of the public ones.
_ENDPOINTS = frozenset(
    {
        "HF_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        *(name for plain in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") for name in (plain, plain.lower())),
    }
)


def objects(ctx: Context) -> list[dict[str, Any]]:
    """The policies of the object; none where the user switched them off."""
    if not ctx.spec.network_policy.enabled:
        return []
    made = [_engines(ctx)]
    if router.deployed(ctx):
        made.append(_router(ctx))
    l2 = storage.active(ctx)
    if l2 is not None and l2_type(l2) == "valkey":
        made.append(_store(ctx))
    return made


def _engines(ctx: Context) -> dict[str, Any]:
    http = sorted({ports.engine_http(ctx.spec.engine.args, ctx.role(role)) for role in ctx.roles})
    peers = _engine_pods(ctx, ctx.revision)
    # A router of the user's is known by the first two labels: it pairs engines by their revision itself.
    revision = ctx.revision if router.deployed(ctx) else None
    routers = _pods(labels.selector(ctx.name, "router", revision))
    spec = {
        "podSelector": peers["podSelector"],
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            # UCX opens further ports for a transfer: peers reach every port, nobody else does.
            {"from": [peers]},
            {"from": [routers, _operator(ctx), _monitoring(ctx)], "ports": [_tcp(port) for port in http]},
        ],
        "egress": [*_names(), {"to": [peers]}, *_outside(ctx)],
    }
    return _policy(ctx, ctx.names.engine_policy, spec, revision=ctx.revision)


def _names() -> list[dict[str, Any]]:
    """Ways to DNS. Some policies see the server's own port behind the Service: 5353 where the platform says so."""

    def both(port: int) -> list[dict[str, Any]]:
        return [_tcp(port), {"protocol": "UDP", "port": port}]

    return [{"ports": both(53)}, {"to": [{"namespaceSelector": {}}], "ports": both(5353)}]


def _outside(ctx: Context) -> list[dict[str, Any]]:
    """Ways out of the engines beside DNS and peers: the store, and downloads of models."""
    rules: list[dict[str, Any]] = []
    l2 = storage.active(ctx)
    kind = l2_type(l2)
    if kind == "valkey":
        rules.append({"to": [_pods(labels.selector(ctx.name, "store"))], "ports": [_tcp(ports.STORE)]})
    elif l2 is not None:
        # A store may have a scheme of the web's for its own: what is not its address goes to the web's ports.
        stores = {scheme: store.port for scheme, store in EXTERNAL.items()} if kind == "external" else _WEB
        if l2.url and not l2.url.startswith("s3://"):
            rules += _ways_to(l2.url, stores)
        if l2.endpoint:
            rules += _ways_to(l2.endpoint, _WEB)
    rules += [way for url in _endpoints(ctx) for way in _ways_to(url, _WEB)]
    downloads = [ctx.spec.model.uri, *(lora.uri for lora in ctx.spec.model.loras)]
    public_bucket = kind == "s3" and l2 is not None and l2.endpoint is None
    if public_bucket or any(uri.startswith(("hf://", "s3://")) for uri in downloads):
        rules.append({"ports": [_tcp(443)]})
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]


def _endpoints(ctx: Context) -> list[str]:
    """Addresses in the engines' environment, as far as they are literal and understood."""
    variables = [*ctx.spec.engine.env, *(variable for role in ctx.roles for variable in ctx.role(role).env)]
    values = [variable.value for variable in variables if variable.name in _ENDPOINTS and variable.value]
    return [value for value in values if addresses.parse(value).problem is None]


def _ways_to(url: str, usual: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """A rule to an address. Policies know no names: a Service's namespace, an address, or a port.

    ``usual`` has, by scheme, the port of an address that names none.
    None for a name without a port that is known: a rule with neither would open every way.
    """
    address = addresses.parse(url)
    port = address.port or usual.get(address.scheme)
    parts = address.host.split(".")
    if len(parts) >= 3 and parts[2] == "svc":
        # The pods' port may differ from the Service's, so the namespace is opened, not one port.
        to = {"namespaceSelector": {"matchLabels": {_NAMESPACE: parts[1]}}}
        return [{"to": [to], "ports": [{"protocol": "TCP"}]}]
    rule: dict[str, Any] = {}
    if (ip := addresses.ip(address.host)) is not None:
        rule["to"] = [{"ipBlock": {"cidr": f"{ip}/{ip.max_prefixlen}"}}]
    if port is not None:
        rule["ports"] = [_tcp(port)]
    return [rule] if rule else []


def _router(ctx: Context) -> dict[str, Any]:
    spec = {
        "podSelector": {"matchLabels": labels.selector(ctx.name, "router")},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [_tcp(ports.ROUTER_HTTP)]},
            {"from": [_operator(ctx), _monitoring(ctx)], "ports": [_tcp(ports.ROUTER_METRICS)]},
        ],
    }
    return _policy(ctx, ctx.names.router_account, spec)


def _store(ctx: Context) -> dict[str, Any]:
    spec = {
        "podSelector": {"matchLabels": labels.selector(ctx.name, "store")},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [_engine_pods(ctx, None)], "ports": [_tcp(ports.STORE)]}],
        "egress": [],
    }
    return _policy(ctx, ctx.names.store, spec)


def _policy(ctx: Context, name: str, spec: dict[str, Any], revision: str | None = None) -> dict[str, Any]:
    return manifest(ctx, "networking.k8s.io/v1", "NetworkPolicy", name, revision=revision, spec=spec)


def _engine_pods(ctx: Context, revision: str | None) -> dict[str, Any]:
    workers = [labels.worker(role) for role in ctx.roles if ctx.role(role).nodes > 1]
    roles = {"key": labels.ROLE, "operator": "In", "values": [*ctx.roles, *workers]}
    matched = labels.selector(ctx.name, revision=revision)
    return {"podSelector": {"matchLabels": matched, "matchExpressions": [roles]}}


def _pods(matched: dict[str, str]) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": matched}}


def _operator(ctx: Context) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: ctx.site.operator_namespace}},
        "podSelector": {"matchLabels": _OPERATOR},
    }


def _monitoring(ctx: Context) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: ctx.site.monitoring_namespace}}}


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}

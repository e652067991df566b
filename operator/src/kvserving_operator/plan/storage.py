"""The L2 tier: stores that the operator deploys, and how engines find any store."""

from __future__ import annotations

import json
from typing import Any

from ..api.v1alpha1 import L2, RoleName
from ..connectors import STORE_TIER_MODULE, l2_type, roles_with_l2
from . import addresses, labels, ports
from .context import Context
from .objects import claim, manifest, secret_env
from .security import pod_context, sealed_container
from .types import GeneratedSecret

VALKEY_IMAGE = "valkey/valkey:8.1"
_VALKEY_USER_ID = 999
L2_PATH = "/var/lib/kvserving/l2"
MOONCAKE_PATH = "/etc/kvserving/mooncake"
PASSWORD_KEY = "password"  # noqa: S105 - the name of a key, not a password

# The password comes on standard input: in arguments it would show in a process list. Engines leave out its line end
# as well, and the quotes of the configuration want quotes and backslashes escaped. A store without a password would
# serve anybody: it does not start.
_START = (
    r"""password="$(sed 's/\r*$//; s/[\\"]/\\&/g' "$KVSERVING_STORE_PASSWORD_FILE")" && [ -n "$password" ] || """
    """{ echo "no password in $KVSERVING_STORE_PASSWORD_FILE" >&2; exit 1; }; """
    r"""printf 'requirepass "%s"\n' "$password" | """
    'exec valkey-server - "$@"'
)
_ASK = (
    r"""REDISCLI_AUTH="$(sed 's/\r*$//' "$KVSERVING_STORE_PASSWORD_FILE")" """
    f'valkey-cli -h "$KVSERVING_BIND_ADDRESS" -p {ports.STORE} ping | grep -q PONG'
)
_AUTH = "/etc/valkey/auth"


def active(ctx: Context) -> L2 | None:
    """The L2 section where a store is used."""
    l2 = ctx.spec.cache.l2
    return None if l2 is None or l2_type(l2) == "none" else l2


def tier_config(ctx: Context) -> dict[str, Any] | None:
    """The entry of ``secondary_tiers`` for the store; None where there is none or Mooncake is the store."""
    l2 = active(ctx)
    if l2 is None or l2_type(l2) == "mooncake":
        return None
    if l2_type(l2) == "s3":
        return _object_tier(ctx, l2)
    tier: dict[str, Any] = {
        "type": "SharedStoreTier",
        "module_path": STORE_TIER_MODULE,
        "locality": "REMOTE",
        "urls": list(_urls(ctx, l2)),
        "load_timeout_s": l2.load_timeout.seconds,
        "share_across_versions": l2.share_across_versions,
    }
    if l2.tenant is not None:
        tier["tenant"] = l2.tenant
    if l2_type(l2) == "filesystem" and l2.size is not None:
        tier["max_bytes"] = l2.size.bytes * l2.max_usage.percent // 100
    return tier


def _object_tier(ctx: Context, l2: L2) -> dict[str, Any]:
    address = addresses.parse(l2.url or "")
    endpoint = addresses.parse(l2.endpoint or f"https://{_public_host(l2.region)}")
    store = {
        "bucket": address.netloc,
        "endpoint_override": endpoint.netloc,
        "scheme": endpoint.scheme,
        "region": l2.region,
    }
    prefix = "/".join(part for part in (address.path.strip("/"), l2.tenant or "") if part)
    return {
        "type": "obj",
        "store_config": {key: value for key, value in store.items() if value is not None},
        "prefix": prefix,
    }


def _public_host(region: str | None) -> str:
    return f"s3.{region}.amazonaws.com" if region else "s3.amazonaws.com"


def _urls(ctx: Context, l2: L2) -> tuple[str, ...]:
    kind = l2_type(l2)
    if kind == "filesystem":
        return (f"file://{L2_PATH}",)
    if kind == "external":
        return (l2.url or "",)
    store = ctx.names.store
    return tuple(f"redis://{store}-{shard}.{store}.{ctx.namespace}.svc:{ports.STORE}" for shard in range(l2.replicas))


def engine_env(ctx: Context, role: RoleName) -> list[dict[str, Any]]:
    """Credentials of the store, by reference only, for a role that uses it."""
    l2 = active(ctx)
    if l2 is None or role not in roles_with_l2(ctx.spec):
        return []
    kind = l2_type(l2)
    if kind == "mooncake":
        return [{"name": "MOONCAKE_CONFIG_PATH", "value": f"{MOONCAKE_PATH}/mooncake.json"}]
    if kind == "s3":
        keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] if l2.secret_ref else []
        return [secret_env(key, l2.secret_ref or "", key) for key in keys]
    if kind == "valkey":
        return [secret_env("KVSERVING_STORE_PASSWORD", l2.secret_ref or ctx.names.store, PASSWORD_KEY)]
    if kind == "external" and l2.secret_ref is not None:
        user = secret_env("KVSERVING_STORE_USERNAME", l2.secret_ref, "username", optional=True)
        authority = secret_env("KVSERVING_STORE_CA", l2.secret_ref, "ca.crt", optional=True)
        return [user, secret_env("KVSERVING_STORE_PASSWORD", l2.secret_ref, PASSWORD_KEY), authority]
    return []


def engine_volumes(ctx: Context, role: RoleName) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(volume, mount) pairs of a role that uses a filesystem store or Mooncake."""
    l2 = active(ctx)
    if l2 is None or role not in roles_with_l2(ctx.spec):
        return []
    if l2_type(l2) == "filesystem":
        volume = {"name": "l2", "persistentVolumeClaim": {"claimName": ctx.names.l2_claim}}
        return [(volume, {"name": "l2", "mountPath": L2_PATH})]
    if l2_type(l2) == "mooncake":
        volume = {"name": "mooncake", "configMap": {"name": ctx.names.mooncake}}
        return [(volume, {"name": "mooncake", "mountPath": MOONCAKE_PATH, "readOnly": True})]
    return []


def objects(ctx: Context) -> list[dict[str, Any]]:
    """What the operator creates for the store. Stores outlive revisions: they carry no revision label."""
    l2 = active(ctx)
    if l2 is None:
        return []
    kind = l2_type(l2)
    if kind == "filesystem" and l2.size is not None:
        return [claim(ctx, ctx.names.l2_claim, str(l2.size), l2.storage_class)]
    if kind == "valkey" and l2.size is not None:
        return [_service(ctx), _stateful_set(ctx, l2, l2.size.bytes)]
    if kind == "mooncake":
        return [_mooncake(ctx, l2)]
    return []


def generated_secrets(ctx: Context) -> list[GeneratedSecret]:
    """The store's password where the user names no Secret."""
    l2 = active(ctx)
    if l2 is None or l2_type(l2) != "valkey" or l2.secret_ref is not None:
        return []
    return [GeneratedSecret(ctx.names.store, {PASSWORD_KEY: 32})]


def _mooncake(ctx: Context, l2: L2) -> dict[str, Any]:
    settings = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": addresses.parse(l2.url or "").netloc,
        "protocol": "tcp" if ctx.spec.transfer.rdma.mode == "disabled" or ctx.cpu else "rdma",
        **({"tenant_id": l2.tenant} if l2.tenant else {}),
    }
    data = {"mooncake.json": json.dumps(settings, indent=2)}
    return manifest(ctx, "v1", "ConfigMap", ctx.names.mooncake, data=data)


def _service(ctx: Context) -> dict[str, Any]:
    spec = {
        "clusterIP": "None",
        "selector": labels.selector(ctx.name, "store"),
        "ports": [{"name": "store", "port": ports.STORE, "targetPort": "store"}],
    }
    return manifest(ctx, "v1", "Service", ctx.names.store, role="store", spec=spec)


def _stateful_set(ctx: Context, l2: L2, total: int) -> dict[str, Any]:
    shard = total // l2.replicas
    maxmemory = shard * l2.max_usage.percent // 100
    args = [
        "--bind $(KVSERVING_BIND_ADDRESS)",
        f"--port {ports.STORE}",
        f"--maxmemory {maxmemory}",
        "--maxmemory-policy allkeys-lru",
        "--save ''",
        "--appendonly no",
        "--protected-mode no",
    ]
    container = {
        "name": "store",
        "image": VALKEY_IMAGE,
        "command": ["sh", "-c", _START, "valkey"],
        "args": [word.strip("'") for arg in args for word in arg.split(" ")],
        "ports": [{"name": "store", "containerPort": ports.STORE}],
        "env": [
            # The executor gives each pod a loopback address of its own.
            {"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"},  # noqa: S104 - engines come from other nodes
            {"name": "KVSERVING_STORE_PASSWORD_FILE", "value": f"{_AUTH}/{PASSWORD_KEY}"},
        ],
        "resources": {"limits": {"memory": str(shard)}, "requests": {"memory": str(shard), "cpu": "500m"}},
        "readinessProbe": _probe(5, 3),
        "livenessProbe": _probe(10, 6),
        "securityContext": sealed_container(),
        "volumeMounts": [{"name": "auth", "mountPath": _AUTH, "readOnly": True}],
    }
    auth = {
        "secretName": l2.secret_ref or ctx.names.store,
        "items": [{"key": PASSWORD_KEY, "path": PASSWORD_KEY}],
        "defaultMode": 0o400,
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": pod_context(_VALKEY_USER_ID),
        "containers": [container],
        "volumes": [{"name": "auth", "secret": auth}],
    }
    spec = {
        "serviceName": ctx.names.store,
        "replicas": l2.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels.selector(ctx.name, "store")},
        "template": {"metadata": {"labels": labels.child_labels(ctx.name, "store")}, "spec": pod},
    }
    return manifest(ctx, "apps/v1", "StatefulSet", ctx.names.store, role="store", spec=spec)


def _probe(period: int, failures: int) -> dict[str, Any]:
    command = ["sh", "-c", _ASK]
    return {
        "exec": {"command": command},
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }

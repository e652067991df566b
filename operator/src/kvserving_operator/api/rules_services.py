"""Rules about transfer, tiers, router, rollout and scheduling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..routers import OF_OTHERS, ROUTERS
from .rule import Rule
from .stores import EXTERNAL


def _at(path: str, *rules: tuple[str, str, str, str | None]) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            name=name,
            at=path,
            cel=cel,
            message=text,
            message_cel=f"{_shown(field)} + '{text}'" if name in _REPEATED and field else None,
            field=field,
        )
        for name, cel, text, field in rules
    )


# Rules about the form of an address: what was written begins their message, unless it may hold a secret.
_REPEATED = ("s3 url names a bucket", "external url is an address", "endpoint without credentials")


def _shown(field: str) -> str:
    return f"(self.{field}.matches('[@?#;&]') ? '' : self.{field} + ' ')"


def _one_of(schemes: Sequence[str]) -> str:
    *first, last = [f"{scheme}://" for scheme in schemes]
    return f"{', '.join(first)} or {last}" if first else last


def form_of(schemes: Iterable[str]) -> str:
    """The form of an address with one of ``schemes``, for CEL and Python alike: + and . stand for themselves."""
    literal = [re.sub(r"([+.])", r"[\1]", scheme) for scheme in schemes]
    return f"^({'|'.join(literal)})://[^ ]+$"


_SCHEMES = tuple(EXTERNAL)
_EXAMPLE = EXTERNAL[_SCHEMES[0]].example
# What begins as no rule allows is refused by that rule alone: plan/check_cache.py leaves it out.
URL_FORMS = {"s3": "^s3://[a-z0-9][-a-z0-9.]*(/[^ ]*)?$", "external": form_of(EXTERNAL)}
ENDPOINT_FORM = "^https?://[^@ ?#]+$"
_TYPE = "(has(self.type) ? self.type : (has(self.size) ? 'valkey' : 'none'))"
# Names of parameters in an address whose values are not for everyone; plan/check_cache.py leaves such an address out.
SECRETS = (
    "(?i)[?&;#]([-a-z0-9_.]*(passw|pwd|secret|token|credential|signature|(api|access|private)[-_]?key)[-a-z0-9_.]*"
    "|auth|pass|pw|key|sig|user|username)="
)
_MANAGED = f"{_TYPE} in ['valkey', 'filesystem', 'none']"

TRANSFER = _at(
    "spec.transfer.rdma",
    (
        "required has a device",
        "!(has(self.mode) && self.mode == 'required') || has(self.resource) || has(self.claimTemplate)",
        "required needs resource (such as rdma/hca) or claimTemplate: without one no pod gets a device "
        "and transfers fall back to TCP",
        "mode",
    ),
    (
        "disabled has no device",
        "!(has(self.mode) && self.mode == 'disabled') || !(has(self.resource) || has(self.claimTemplate))",
        "disabled contradicts resource and claimTemplate: remove them, or set mode to auto or required",
        "mode",
    ),
    (
        "one kind of device",
        "!(has(self.resource) && has(self.claimTemplate))",
        "resource and claimTemplate exclude each other: keep the way in which the cluster hands out the device",
        "claimTemplate",
    ),
)

L2 = _at(
    "spec.cache.l2",
    (
        "url names its type",
        "!has(self.url) || has(self.type)",
        "is given without spec.cache.l2.type: set that to s3 (s3://bucket/prefix), mooncake (mooncake://host:50051) "
        f"or external ({_EXAMPLE}, or with {_one_of(_SCHEMES[1:])})",
        "url",
    ),
    (
        "managed store has a size",
        "!(has(self.type) && self.type in ['valkey', 'filesystem']) || has(self.size)",
        "valkey and filesystem need spec.cache.l2.size: the operator deploys a store of that size",
        "type",
    ),
    (
        "unmanaged store has a url",
        "!(has(self.type) && self.type in ['s3', 'mooncake', 'external']) || has(self.url)",
        "s3, mooncake and external need spec.cache.l2.url, as the operator does not deploy these stores: set it to "
        f"s3://bucket/prefix, mooncake://host:50051 or {_EXAMPLE}, or to one with {_one_of(_SCHEMES[1:])}",
        "type",
    ),
    (
        "url only for unmanaged stores",
        f"!has(self.url) || !has(self.type) || !({_MANAGED}) || self.type == 'none'",
        "cannot be used with valkey or filesystem, which the operator deploys: remove it, or set type to external",
        "url",
    ),
    (
        "size only for managed stores",
        f"!has(self.size) || {_MANAGED}",
        "is only used for valkey and filesystem: the size of other stores is set where they run; remove it",
        "size",
    ),
    (
        "usage only for managed stores",
        f"!has(self.maxUsage) || {_MANAGED}",
        "is only used for valkey and filesystem: other stores evict by their own settings; remove it",
        "maxUsage",
    ),
    (
        "shards only for valkey",
        f"!has(self.replicas) || self.replicas == 1 || {_TYPE} in ['valkey', 'none']",
        "is the number of valkey's shards: remove it or set type to valkey",
        "replicas",
    ),
    (
        "storage class only for filesystem",
        f"!has(self.storageClass) || {_TYPE} in ['filesystem', 'none']",
        "is only used for the volume of type filesystem: remove it or set type to filesystem",
        "storageClass",
    ),
    (
        "secret only for stores that ask for it",
        f"!has(self.secretRef) || !({_TYPE} in ['filesystem', 'mooncake'])",
        "is only used for valkey, s3 and external: filesystem and mooncake take no credentials; remove it",
        "secretRef",
    ),
    *(
        (
            f"{field} only for s3",
            f"!has(self.{field}) || {_TYPE} in ['s3', 'none']",
            "is only used for type s3: remove it or set type to s3",
            field,
        )
        for field in ("endpoint", "region")
    ),
    (
        "s3 url names a bucket",
        f"!(has(self.type) && self.type == 's3' && has(self.url)) || self.url.matches('{URL_FORMS['s3']}')",
        "must be s3://bucket/prefix for type s3: the address of an S3-compatible service belongs to endpoint",
        "url",
    ),
    (
        "external url is an address",
        f"!(has(self.type) && self.type == 'external' && has(self.url)) || self.url.matches('{URL_FORMS['external']}')",
        f"must start with {_one_of(_SCHEMES)}, such as {_EXAMPLE}",
        "url",
    ),
    (
        "no credentials in url",
        "!has(self.url) || (!self.url.matches('^([A-Za-z0-9+.-]*://)?[^/]*@') "
        "&& !(has(self.type) && self.type in ['mooncake', 'external'] && self.url.contains('@')) "
        f"&& !self.url.matches('{SECRETS}'))",
        "holds credentials, which would be visible to everyone: put them into a Secret "
        "and name it in spec.cache.l2.secretRef",
        "url",
    ),
    (
        "endpoint without credentials",
        f"!has(self.endpoint) || self.endpoint.matches('{ENDPOINT_FORM}')",
        "must be http:// or https:// and an address, without credentials or a query: put keys into a Secret "
        "and name it in spec.cache.l2.secretRef",
        "endpoint",
    ),
)

CACHE = (
    Rule(
        name="names unique",
        at="spec.cache.connectors",
        cel="self.all(c, self.exists_one(d, d.name == c.name))",
        message="a connector is given twice: keep one entry",
        message_cel="self.filter(c, !self.exists_one(d, d.name == c.name))[0].name + ' is given twice: keep one entry'",
    ),
)

ROUTER = (
    *_at(
        "spec.router",
        *(
            (
                f"{field} needs a router",
                f"!has(self.{field}) || !has(self.type) || !(self.type in {list(OF_OTHERS)})",
                f"has no effect with router.type {' or '.join(OF_OTHERS)}, where the operator deploys no router: "
                f"remove it, or set spec.router.type to {' or '.join(ROUTERS)}",
                field,
            )
            for field in ("image", "apiKeySecretRef", "gateway")
        ),
    ),
    *_at(
        "spec.router.gateway",
        (
            "route has a parent",
            "has(self.parentRefs) && size(self.parentRefs) > 0 || has(self.inferencePool) && self.inferencePool",
            "needs parentRefs (Gateways that carry the route) or inferencePool: true",
            "parentRefs",
        ),
    ),
)

ROLLOUT = _at(
    "spec.rollout",
    (
        "room to move",
        "!(has(self.maxSurge) && self.maxSurge == 0) || (has(self.maxUnavailable) && self.maxUnavailable > 0) "
        "|| (has(self.strategy) && self.strategy == 'Recreate')",
        "0 together with maxUnavailable 0 leaves a rollout no room: raise one of them, or set strategy to Recreate",
        "maxSurge",
    ),
)

SCHEDULING = _at(
    "spec.scheduling",
    (
        "queue needs a gang",
        "!has(self.queue) || (has(self.gang) && self.gang != 'none')",
        "is a queue of the gang scheduler, but spec.scheduling.gang is none: set gang or remove queue",
        "queue",
    ),
)

RULES: tuple[Rule, ...] = (*TRANSFER, *L2, *CACHE, *ROUTER, *ROLLOUT, *SCHEDULING)

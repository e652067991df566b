"""Sections about KV on the move and at rest: transfer, tiers, kvcached."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import LINE_PATTERN, ClassName, Flag, Int, Name, ResourceName, Roles, Section, keyed_list
from .types import Duration, Percentage, Quantity, QuantityOrZero

Url = Annotated[str, Field(min_length=1, max_length=512, pattern=LINE_PATTERN)]


class Rdma(Section):
    """RDMA devices for the transfer."""

    mode: Literal["auto", "required", "disabled"] = Field(
        default="auto", description="required refuses to run without RDMA; disabled never uses it."
    )
    resource: ResourceName | None = Field(
        default=None, description="Extended resource of the device plugin, such as rdma/hca."
    )
    claim_template: Name | None = Field(default=None, description="ResourceClaimTemplate that brings the device.")


class Verify(Section):
    """Re-checking that KV really moves."""

    interval: Duration = Field(default=Duration("5m"), description="Time between checks.")


class Transfer(Section):
    """Movement of KV from prefill to decode."""

    on_failure: Literal["fail", "recompute"] = Field(
        default="fail",
        description="fail lets the router retry; recompute lets decode prefill, "
        "and is refused for models with several cache groups.",
    )
    lease: Duration = Field(
        default=Duration("30s"), description="How long prefill keeps KV that decode has not fetched."
    )
    staging_memory: QuantityOrZero = Field(
        default=QuantityOrZero("0"),
        description="Device memory of each rank for staging transfers, such as 512Mi; 0 switches staging off.",
    )
    rdma: Rdma = Field(default=Rdma(), description="RDMA devices for the transfer.")
    verify: Verify = Field(default=Verify(), description="Re-checking that KV really moves.")


class L1(Section):
    """Tier in the host memory of one engine."""

    size: Quantity = Field(description="Size per pod.")
    policy: Literal["lru", "arc"] = Field(
        default="lru", description="Eviction policy. Workers that own the tier have lru only."
    )
    roles: Roles = Field(
        default=("prefill",), description="Roles that have the tier; unset without a prefill section means decode."
    )
    owner: Literal["auto", "scheduler", "worker"] = Field(
        default="auto",
        description="Who owns the tier: the engine's scheduler, for one host, or the workers, each a part of its own. "
        "auto: the workers for roles with nodes above 1 and under kvcached, else the scheduler.",
    )


class L2(Section):
    """Tier shared by all engines."""

    type: Literal["none", "valkey", "filesystem", "s3", "mooncake", "external"] | None = Field(
        default=None, description="Kind of store. Default: valkey if size is set, otherwise none."
    )
    size: Quantity | None = Field(default=None, description="Size in total, of a store that the operator deploys.")
    max_usage: Percentage = Field(
        default=Percentage("85%"), description="Share of size that is used before objects are evicted."
    )
    replicas: Annotated[Int, Field(ge=1, le=100)] = Field(default=1, description="Shards of valkey.")
    roles: Roles = Field(
        default=("prefill",), description="Roles that use the tier; unset without a prefill section means decode."
    )
    storage_class: Name | None = Field(
        default=None,
        description="Storage class of the volume that filesystem claims; unset takes the cluster's default class.",
    )
    url: Url | None = Field(default=None, description="Address of a store that the operator does not manage.")
    endpoint: Url | None = Field(
        default=None, description="Endpoint of an S3-compatible service. Default: that of Amazon S3 in region."
    )
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=LINE_PATTERN)] | None = Field(
        default=None, description="Region of the bucket."
    )
    secret_ref: Name | None = Field(
        default=None,
        description="Secret with the credentials of the store: password, in place of one of the operator's (valkey); "
        "password, optionally username and ca.crt (external); AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3).",
    )
    tenant: Annotated[str, Field(min_length=1, max_length=128, pattern=LINE_PATTERN)] | None = Field(
        default=None, description="Keeps the objects of tenants apart in one store."
    )
    load_timeout: Duration = Field(default=Duration("30s"), description="A load that takes longer counts as a miss.")
    loads: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="auto loads only what is faster than computing it, always every hit; never reads nothing from L2.",
    )
    share_across_versions: Flag = Field(
        default=False, description="Let engines of different vLLM versions share objects."
    )


class ConnectorWeight(Section):
    """Weight of one connector in the choice where to load from."""

    name: ClassName = Field(
        description="Class name of the connector; a name that is not derived from the object adds a child."
    )
    weight: Annotated[Int, Field(gt=0, le=1_000_000_000)] = Field(
        description="Factor on the hit tokens; must be greater than 0."
    )


class Cache(Section):
    """Tiers behind the engines' own cache."""

    l1: L1 | None = Field(default=None, description="Tier in host memory. Unset: off.")
    l2: L2 | None = Field(default=None, description="Tier shared by all engines. Unset: off.")
    connectors: Annotated[tuple[ConnectorWeight, ...], Field(max_length=16, json_schema_extra=keyed_list("name"))] = (
        Field(
            default=(),
            description="Weights of the derived connectors, and further connectors. "
            "Default: 1000000 for NixlConnector, 1 for every other one.",
        )
    )


class Kvcached(Section):
    """Elastic GPU memory by kvcached."""

    enabled: Flag = Field(default=False, description="Run the engines under kvcached.")
    max_cached_tokens: Annotated[Int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="Most tokens kept for prefix caching; unset leaves it to kvcached."
    )

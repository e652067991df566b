"""The ``KVServing`` object, ``kvserving.dev/v1alpha1``.

Frozen models: attributes in snake_case, fields of the object in camelCase. Parsing
ignores unknown fields, so that an object stored by another version still reconciles;
``api.load`` reports them where a person typed them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import (
    NAMESPACE_PATTERN,
    OBJECT_NAME_PATTERN,
    Args,
    Env,
    EnvVar,
    Name,
    PositiveInt,
    RoleName,
    Roles,
    Section,
    Text,
)
from .data_spec import L1, L2, Cache, ConnectorWeight, Kvcached, Rdma, Transfer, Verify
from .delivery_spec import (
    Colocate,
    Gateway,
    Monitoring,
    NetworkPolicySettings,
    Rollout,
    Router,
    RouterService,
    Scheduling,
)
from .engines_spec import (
    Autoscaling,
    Engine,
    KVSettings,
    LoraAdapter,
    Model,
    ModelCache,
    Parallelism,
    RatioBounds,
    Resources,
    Role,
    StatedFacts,
)
from .identity import API_VERSION, GROUP, KIND, VERSION
from .status import KVServingStatus

NAME_LENGTH = 40

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "L1",
    "L2",
    "NAME_LENGTH",
    "VERSION",
    "Args",
    "Autoscaling",
    "Cache",
    "Colocate",
    "ConnectorWeight",
    "Engine",
    "Env",
    "EnvVar",
    "Gateway",
    "KVServing",
    "KVServingSpec",
    "KVServingStatus",
    "KVSettings",
    "Kvcached",
    "LoraAdapter",
    "Metadata",
    "Model",
    "ModelCache",
    "Monitoring",
    "Name",
    "NetworkPolicySettings",
    "Parallelism",
    "PositiveInt",
    "RatioBounds",
    "Rdma",
    "Resources",
    "Role",
    "RoleName",
    "Roles",
    "Rollout",
    "Router",
    "RouterService",
    "Scheduling",
    "Section",
    "StatedFacts",
    "Text",
    "Transfer",
    "Verify",
]


class KVServingSpec(Section):
    """What the user asks for."""

    model: Model = Field(description="The model that both roles serve.")
    engine: Engine = Field(default=Engine(), description="The vLLM engine of both roles.")
    prefill: Role | None = Field(
        default=None, description="Engines that prefill. Unset: aggregated mode, decode does both."
    )
    decode: Role = Field(default=Role(), description="Engines that decode.")
    ratio: RatioBounds | None = Field(
        default=None, description="Bounds of prefill to decode replicas. Unset: no bounds."
    )
    transfer: Transfer = Field(default=Transfer(), description="Movement of KV from prefill to decode.")
    cache: Cache = Field(default=Cache(), description="Tiers behind the engines' own cache.")
    kvcached: Kvcached = Field(default=Kvcached(), description="Elastic GPU memory by kvcached.")
    router: Router = Field(default=Router(), description="The router in front of both roles.")
    rollout: Rollout = Field(default=Rollout(), description="How a new revision replaces the running one.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Placement of the engines.")
    network_policy: NetworkPolicySettings = Field(
        default=NetworkPolicySettings(), description="Network policies of the object."
    )
    monitoring: Monitoring = Field(default=Monitoring(), description="Monitors of the object.")
    suspend: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="Stop all engines and routers, keep stores and claims."
    )


class Metadata(Section):
    """The part of an object's metadata that the plan uses."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=OBJECT_NAME_PATTERN)]
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=NAMESPACE_PATTERN)] = "default"
    uid: str | None = None
    generation: int | None = None


class KVServing(Section):
    """One prefill/decode-disaggregated, tiered-KV vLLM service."""

    api_version: Literal["kvserving.dev/v1alpha1"] = "kvserving.dev/v1alpha1"
    kind: Literal["KVServing"] = "KVServing"
    metadata: Metadata
    spec: KVServingSpec

"""Sections about what surrounds the engines: router, rollout, placement, policies, monitors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import ATOMIC, FREE_FORM, Flag, Image, Int, LabelKey, Name, Section
from .types import Duration


class RouterService(Section):
    """Service in front of the router."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="Type of the Service."
    )
    port: Annotated[Int, Field(ge=1, le=65535)] = Field(default=80, description="Port of the Service.")


ParentRef = Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=FREE_FORM)]


class Gateway(Section):
    """Gateway API route to the router."""

    parent_refs: Annotated[tuple[ParentRef, ...], Field(max_length=16, json_schema_extra=ATOMIC)] = Field(
        default=(), description="Gateways, as in an HTTPRoute."
    )
    inference_pool: Flag = Field(default=False, description="Create an InferencePool; without effect in this release.")


class Router(Section):
    """The router in front of both roles."""

    type: Literal["smg", "vllm-router", "external", "none"] = Field(default="smg", description="Which router.")
    image: Image | None = Field(default=None, description="Router image. Default: the tested image of the type.")
    replicas: Annotated[Int, Field(ge=1, le=100)] = Field(default=2, description="Router pods.")
    policy: Literal["cacheAware", "powerOfTwo", "roundRobin"] = Field(
        default="cacheAware",
        description="How a prefill engine is chosen; a decode engine likewise, with cacheAware by powerOfTwo.",
    )
    request_timeout: Duration = Field(
        default=Duration("30m"), description="Longest time of one leg; must exceed the longest generation."
    )
    api_key_secret_ref: Name | None = Field(
        default=None, description="Secret with the key that clients must send, key api-key."
    )
    service: RouterService = Field(default=RouterService(), description="Service in front of the router.")
    gateway: Gateway | None = Field(default=None, description="Gateway API route to the router.")


class Rollout(Section):
    """How a new revision replaces the running one."""

    strategy: Literal["Paired", "Recreate"] = Field(
        default="Paired",
        description="Paired brings up and verifies the new revision first; Recreate stops the old one first.",
    )
    max_surge: Annotated[Int, Field(ge=0, le=1000)] = Field(
        default=1, description="Pairs of engines above the wanted number."
    )
    max_unavailable: Annotated[Int, Field(ge=0, le=1000)] = Field(
        default=0, description="Pairs of engines that may be missing."
    )
    progress_deadline: Duration = Field(
        default=Duration("1h"), description="Time without progress after which a rollout has failed."
    )
    paused: Flag = Field(default=False, description="Hold the rollout.")


class Colocate(Section):
    """Keep engines that transfer close to each other."""

    topology_key: LabelKey = Field(description="Node label that names the domain.")
    mode: Literal["preferred", "required"] = Field(default="preferred", description="Whether pods may run elsewhere.")


class Scheduling(Section):
    """Placement of the engines."""

    gang: Literal["none", "auto", "volcano", "coscheduling"] = Field(
        default="none",
        description="Gang scheduler: its name is set on the engines' pods, and Volcano's queue; auto chooses none yet.",
    )
    queue: Name | None = Field(default=None, description="Queue of the gang scheduler.")
    colocate: Colocate | None = Field(default=None, description="Keep engines that transfer close to each other.")


class NetworkPolicySettings(Section):
    """Network policies of the object."""

    enabled: Flag = Field(default=True, description="Create network policies.")


class Monitoring(Section):
    """Monitors of the object."""

    enabled: Literal["auto", "enabled", "disabled"] = Field(
        default="auto", description="auto creates monitors where their kind is installed."
    )

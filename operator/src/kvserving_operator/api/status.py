"""Status of a ``KVServing``: what the operator reports. Which of it kubectl shows in columns is in ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import ATOMIC, EngineCount, Int, Section, keyed_list

Line = Annotated[str, Field(max_length=1024)]
Revision = Annotated[str, Field(max_length=64)]
Reason = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")]
Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class Condition(Section):
    """One aspect of the object's state, in the form of every Kubernetes condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="Name of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    observed_generation: Annotated[Int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the object that the condition describes."
    )
    last_transition_time: Timestamp = Field(description="When status last changed.")
    reason: Reason = Field(description="Machine-readable reason in CamelCase.")
    message: Annotated[str, Field(max_length=32768)] = Field(description="What happened and the way out.")


class RoleStatus(Section):
    """Engines of one role."""

    replicas: EngineCount = Field(description="Engines wanted, of all revisions.")
    ready: EngineCount = Field(description="Engines that are ready, of all revisions.")
    summary: Annotated[str, Field(max_length=32)] = Field(description="Ready and wanted engines, such as 2/2.")


class RolesStatus(Section):
    """Engines of both roles."""

    prefill: RoleStatus | None = Field(default=None, description="Prefill engines; absent in aggregated mode.")
    decode: RoleStatus | None = Field(default=None, description="Decode engines.")


class EngineStatus(Section):
    """Engine that was chosen for the object."""

    version: Annotated[str, Field(max_length=32)] = Field(description="vLLM version.")
    image: Line = Field(description="Engine image.")


class TierStatus(Section):
    """State of the tiers in one line each."""

    l1: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="Size of L1, with its owner where that is the workers; or off."
    )
    l2: Annotated[str, Field(max_length=128)] | None = Field(default=None, description="Kind and size of L2, or off.")


class FieldError(Section):
    """One fault of the object."""

    path: Line = Field(description="Path of the field.")
    message: Annotated[str, Field(max_length=4096)] = Field(description="What is wrong and the way out.")


Ratio = Annotated[str, Field(max_length=32)]


class SetStatus(Section):
    """Prefill, decode and router of one revision, during a rollout. Numbers of pods are ready and wanted, as 1/2."""

    revision: Revision = Field(description="Revision of the set.")
    traffic: bool = Field(description="Whether its routers are behind the Service.")
    verification: Annotated[str, Field(max_length=32)] = Field(
        description="What is known of its transfer: verified, failed or unknown."
    )
    prefill: Ratio | None = Field(default=None, description="Prefill engines.")
    decode: Ratio | None = Field(default=None, description="Decode engines.")
    router: Ratio | None = Field(default=None, description="Routers.")


class FailedRollout(Section):
    """A rollout that failed. A change of the spec, or undo, starts anew."""

    revision: Revision = Field(description="Revision that was rolled out.")
    generation: Annotated[Int, Field(ge=0)] = Field(description="Generation of the object for which it failed.")
    message: Annotated[str, Field(max_length=4096)] = Field(description="Why.")


class RolloutStatus(Section):
    """How far one revision has replaced another."""

    phase: Annotated[str, Field(max_length=32)] = Field(
        description="Progressing, Paused, Stopped (it has failed) or Complete (the last step is being taken)."
    )
    message: Line = Field(description="What it waits for.")
    progressed_at: Timestamp | None = Field(default=None, description="When it last got further.")
    sets: Annotated[tuple[SetStatus, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = Field(
        default=(), description="The revisions that are there, newest first."
    )
    failed: FailedRollout | None = Field(default=None, description="The rollout that failed, if one did.")


class KVServingStatus(Section):
    """What the operator observed and decided."""

    observed_generation: Annotated[Int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the object that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32, json_schema_extra=keyed_list("type"))] = Field(
        default=(), description="Conditions; Ready sums them up."
    )
    roles: RolesStatus | None = Field(default=None, description="Engines of both roles.")
    transfer: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Result of the last check that KV moves, such as Verified or RecomputingKV."
    )
    url: Line | None = Field(default=None, description="Address of the service inside the cluster.")
    model: Line | None = Field(default=None, description="Served model name.")
    engine: EngineStatus | None = Field(default=None, description="Engine that was chosen for the object.")
    tiers: TierStatus | None = Field(default=None, description="State of the tiers.")
    revision: Revision | None = Field(default=None, description="Revision that serves traffic.")
    updating_revision: Revision | None = Field(
        default=None, description="Revision that is coming up, during a rollout."
    )
    rollout: RolloutStatus | None = Field(
        default=None, description="The rollout from one revision to another, while there is one."
    )
    errors: Annotated[tuple[FieldError, ...], Field(max_length=64, json_schema_extra=ATOMIC)] = Field(
        default=(), description="Faults of the object; while there are any, nothing is changed."
    )

"""The ``KVServingRole`` object, ``kvserving.dev/v1alpha1``: one role's number of engines, as scalers see it.

The operator makes one for each role that is scaled. HPA, KEDA and people write its ``replicas``, best through
``/scale``; the operator writes everything else, and starts the engines.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import OBJECT_NAME_PATTERN, EngineCount, Int, ReplicaBound, Replicas, RoleName, Section
from .rule import Rule

KIND = "KVServingRole"
PLURAL = "kvservingroles"

Selector = Annotated[str, Field(min_length=1, max_length=512)]


class Bounds(Section):
    """Within which a role is scaled."""

    min: ReplicaBound = Field(description="Fewest replicas, 0 apart.")
    max: ReplicaBound = Field(description="Most replicas.")


class KVServingRoleSpec(Section):
    """How many engines of one role are asked for. All but replicas is the operator's."""

    serving_name: Annotated[str, Field(min_length=1, max_length=40, pattern=OBJECT_NAME_PATTERN)] = Field(
        description="Name of the KVServing that the role belongs to."
    )
    role: RoleName = Field(description="The role.")
    bounds: Bounds = Field(description="Bounds of replicas: spec.prefill.autoscaling or spec.decode.autoscaling.")
    selector: Selector = Field(description="Labels of the role's engine pods, those of every revision.")
    replicas: Replicas | None = Field(
        default=None,
        description="Engines asked for: a number within bounds, or 0 to switch the role off. The operator sets it "
        "once, when it makes the object, and never again.",
    )


class KVServingRoleStatus(Section):
    """The role's engines as the operator saw them last."""

    observed_generation: Annotated[Int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the object that this status describes."
    )
    replicas: EngineCount | None = Field(default=None, description="Engine pods that exist, those of every revision.")
    selector: Selector | None = Field(default=None, description="Labels of these pods, as /scale shows them.")


RULES: tuple[Rule, ...] = (
    Rule(
        "name stays",
        "spec.servingName",
        "self == oldSelf",
        "is the operator's and never changes: scale another role by its own object",
    ),
    Rule(
        "role stays",
        "spec.role",
        "self == oldSelf",
        "is the operator's and never changes: scale another role by its own object",
    ),
    Rule(
        "bounds in order",
        "spec.bounds",
        "self.min <= self.max",
        "is above max: lower it, or raise max, in the KVServing",
        field="min",
    ),
    Rule(
        # Bounds that the KVServing narrows later must not make the object one that cannot be written any more.
        "replicas within bounds",
        "spec",
        "!has(self.replicas) || (has(oldSelf.replicas) && self.replicas == oldSelf.replicas) || self.replicas == 0 "
        "|| (self.replicas >= self.bounds.min && self.replicas <= self.bounds.max)",
        "is outside spec.bounds: ask for a number within them, or 0 to switch the role off, or change autoscaling in "
        "the KVServing",
        field="replicas",
    ),
)
"""Rules of the apiserver. Each compares with the object as it was, so that none is evaluated in this process."""

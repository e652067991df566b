"""The Secrets of the user's that the pods of a plan need, and which of them the pods wait for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ..api.v1alpha1 import KVServing
from ..plan.secret_refs import SecretNeed, needed
from ..plan.types import Plan
from .pods import NOT_PULLED, PodState


def of_users(plan: Plan) -> dict[str, SecretNeed]:
    """Return the Secrets that the pods of ``plan`` need and that the operator does not make, with what they need."""
    made = {secret.name for secret in plan.generated_secrets}
    return {name: need for name, need in needed(plan.objects).items() if name not in made}


def awaited(plan: Plan, pods: Collection[PodState]) -> dict[str, SecretNeed]:
    """Return those of ``of_users`` that may keep ``pods`` from starting, or their images from being pulled."""
    starts, pulls = any(map(_waits, pods)), any(map(_pulls, pods))
    if not starts and not pulls:
        return {}
    return {name: need for name, need in of_users(plan).items() if (need.starts and starts) or (need.pulls and pulls)}


def field_of(serving: KVServing, name: str, need: SecretNeed) -> str:
    """Return the field of the spec that names the Secret ``name``, or where else the name comes from."""
    spec = serving.spec
    l2 = spec.cache.l2 if spec.cache is not None else None
    for path, value in (
        ("spec.router.apiKeySecretRef", spec.router.api_key_secret_ref),
        ("spec.model.secretRef", spec.model.secret_ref),
        ("spec.cache.l2.secretRef", l2.secret_ref if l2 is not None else None),
    ):
        if value == name:
            return path
    return "named by a pod's environment or volumes" if need.starts else "named by a pod's imagePullSecrets"


def _waits(pod: PodState) -> bool:
    """Whether a Secret that is missing may keep its containers from being made."""
    held = pod.failing == "CreateContainerConfigError" or pod.waiting == "ContainerCreating"
    return held and not pod.deleting


def _pulls(pod: PodState) -> bool:
    """Whether the registry gave it no image, as it does where the Secret to pull with is missing."""
    return pod.failing == NOT_PULLED and not pod.deleting

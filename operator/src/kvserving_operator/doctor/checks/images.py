"""Where the image of each container of a pod is written: a field of the object, a value of the chart, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plan import labels, template
from ...plan.image_sources import CONNECTOR, image_source
from ..explain import role_of
from ..facts import ObjectFacts
from ..findings import shown
from . import operators

_ENGINES = ("prefill", "decode")


def pull(facts: ObjectFacts, role: str, container: str) -> str:
    """What to check where the image of a container cannot be pulled."""
    of_engine = role.removesuffix(labels.worker(""))
    if of_engine in _ENGINES:
        pulled = f"the pull secret (spec.{of_engine}.template.spec.imagePullSecrets)"
    else:
        pulled = "the nodes' way to its registry, as such pods have no pull secret"
    return f"check {source(facts, role, container)}, and {pulled}"


def source(facts: ObjectFacts, role: str, container: str) -> str:
    """Where the image of a container is written, and how it is changed there."""
    of_engine = role.removesuffix(labels.worker(""))
    if planned := image_source(of_engine, container):
        return f"{planned}: {_connector(facts)}" if container == CONNECTOR else planned
    kind = _in_template(facts, of_engine, container)
    if kind:
        return f"spec.{of_engine}.template.spec.{kind} (image of {shown(container)})"
    return f"what added the container {shown(container)} to the pod, which is not planned, such as a webhook"


def _connector(facts: ObjectFacts) -> str:
    known = facts.live.operators if facts.live is not None else None
    ours = [body for body in known.deployments if operators.serves(body, facts.namespace)] if known is not None else []
    values = "--set connector.image.repository=REPOSITORY,connector.image.tag=TAG"
    if len(ours) == 1:
        return operators.change(ours[0], values, "--connector-image=IMAGE in its args")
    return f"`helm upgrade kvserving-operator charts/kvserving-operator -n kvserving-system --reuse-values {values}`"


def _in_template(facts: ObjectFacts, role: str, container: str) -> str:
    pod: Mapping[str, Any] = {}
    if facts.serving is not None and role in _ENGINES:
        part = facts.serving.spec.prefill if role == "prefill" else facts.serving.spec.decode
        pod = template.section((part.template if part is not None else None) or {}, "spec")
    kinds = ("containers", "initContainers")
    return next((kind for kind in kinds if any(c.get("name") == container for c in template.listed(pod, kind))), "")


def role_of_pod(facts: ObjectFacts, name: str) -> str:
    """The role of the object's pod of that name; empty where it is not known."""
    pods = facts.live.pods if facts.live is not None else ()
    return next((role_of(pod) for pod in pods if (pod.get("metadata") or {}).get("name") == name), "")

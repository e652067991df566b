"""Labels of child objects and the selectors made of them."""

from __future__ import annotations

NAME = "kvserving.dev/name"
ROLE = "kvserving.dev/role"
REVISION = "kvserving.dev/revision"
PREFIX = "kvserving.dev/"
TRAFFIC = "kvserving.dev/traffic"
"""Label of router pods: ``ON`` behind the Service, ``OFF`` while their set waits for its proof."""
ON, OFF = "on", "off"
ENGINE_VERSION = "kvserving.dev/engine-version"
ENGINE_IMAGE = "kvserving.dev/engine-image"
"""Annotations of the roles' workloads: vLLM version and image that were chosen, which stay until the spec names
others. Images in the pods are not read back: policies of a cluster rewrite them."""
SERVED_MODEL = "kvserving.dev/served-model"
"""Annotation of the roles' workloads: the name by which requests of their revision ask for the model."""

_COMPONENTS = {
    "prefill": "engine",
    "decode": "engine",
    "prefill-worker": "engine",
    "decode-worker": "engine",
    "router": "router",
    "store": "store",
}


def object_labels(name: str) -> dict[str, str]:
    """Labels that every child of the object carries."""
    return {
        NAME: name,
        "app.kubernetes.io/name": "kvserving",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "kvserving-operator",
    }


def child_labels(name: str, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels of a child that belongs to a role, and to a revision where it has one."""
    labels = {**object_labels(name), ROLE: role, "app.kubernetes.io/component": _COMPONENTS[role]}
    return {**labels, REVISION: revision} if revision is not None else labels


def worker(role: str) -> str:
    """The role label of the further pods of an engine that spans nodes.

    It is not the role's own: whoever selects the pods of a role means those that take requests.
    """
    return f"{role}-worker"


def selector(name: str, role: str | None = None, revision: str | None = None) -> dict[str, str]:
    """The labels that select the pods of an object, of one role, of one revision."""
    chosen = {NAME: name}
    if role is not None:
        chosen[ROLE] = role
    if revision is not None:
        chosen[REVISION] = revision
    return chosen


def terms(labels: dict[str, str]) -> tuple[str, ...]:
    """A selector as routers take it on their command line."""
    return tuple(f"{key}={value}" for key, value in labels.items())

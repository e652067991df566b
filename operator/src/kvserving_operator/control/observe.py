"""What is known of the cluster: objects and children as watched, trimmed to what decisions need.

The store is fed by the watches and by every answer to a write of our own, so that a decision
never lags behind what the operator itself did. It tells of changes by calling back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..api import serving_role
from ..api.v1alpha1 import KIND
from ..plan import labels, workloads
from . import claims, drift
from .claims import Claim
from .config import ROLLOUT_MANAGER
from .drift import Fields
from .owners import Owner, controller_of
from .pods import PodState
from .scalers import Failing, Scale, failing_of, scale_of
from .workloads import Workload, workload_of

_MOST_GONE = 8192


class Key(NamedTuple):
    """Namespace and name of one ``KVServing``."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Serving:
    """One ``KVServing`` as it was last seen. ``spec`` and ``status`` are as stored, not validated."""

    key: Key
    uid: str
    version: str
    generation: int
    deleting: bool
    spec: Mapping[str, Any] = field(repr=False)
    status: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Child:
    """One child, or an object that has a child's name. ``owner`` is its controller, ``serving`` the name in its label,
    ``digest`` that of the manifest it was applied from, ``fields`` those that the operator manages. ``scale`` is what a
    scale target shows, ``failing`` why a scaler cannot scale.

    ``role`` and ``revision`` are those of the pods that it selects, where it selects any: labels can be edited."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    owner: Owner | None
    deleting: bool
    serving: str
    role: str
    revision: str
    digest: str
    fields: Fields = field(repr=False)
    adjusted: Fields = field(repr=False)
    """Fields that the operator itself took from its own, for a rollout."""
    scale: Scale | None = None
    failing: Failing = ()
    replicas: int | None = None
    workload: Workload | None = None
    claim: Claim | None = None
    created: str = ""
    """When it was made, RFC 3339."""
    edited: tuple[tuple[str, str], ...] = ()
    """Its own labels that say something else than its selector, as they should be."""

    @property
    def identity(self) -> tuple[str, str]:
        """Kind and name: unique among the children of one object."""
        return self.kind, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class View:
    """Everything that is known about one object at one moment."""

    serving: Serving
    children: Mapping[tuple[str, str], Child]
    pods: tuple[PodState, ...]

    def owned(self) -> Iterator[Child]:
        """Yield the children whose controller is this very object."""
        return (child for child in self.children.values() if child.owner and child.owner.uid == self.serving.uid)


def key_of(body: Mapping[str, Any]) -> Key | None:
    """Return the object that ``body`` belongs to by its controller, else by its label; ``None`` without either."""
    metadata = body.get("metadata") or {}
    owner = controller_of(metadata)
    name = (metadata.get("labels") or {}).get(labels.NAME)
    if owner is not None and owner.kind == KIND:
        name = owner.name
    return Key(metadata.get("namespace") or "", name) if name else None


def serving_of(body: Mapping[str, Any]) -> Serving:
    """Return a ``KVServing`` trimmed from what the apiserver sent."""
    metadata = body["metadata"]
    return Serving(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        generation=int(metadata.get("generation", 0)),
        deleting="deletionTimestamp" in metadata,
        spec=body.get("spec") or {},
        status=body.get("status") or {},
    )


def child_of(body: Mapping[str, Any], api_version: str, kind: str) -> Child:
    """Return a child trimmed from what the apiserver sent (items of lists carry no kind)."""
    metadata = body["metadata"]
    marks = metadata.get("labels") or {}
    spec = body.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, Mapping) else None
    managed = metadata.get("managedFields") or ()
    fields = drift.own_fields(managed)
    selected = _selected(spec, kind) if isinstance(spec, Mapping) else {}
    return Child(
        api_version=api_version,
        kind=kind,
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        owner=controller_of(metadata),
        deleting="deletionTimestamp" in metadata,
        serving=marks.get(labels.NAME, ""),
        role=selected.get(labels.ROLE, marks.get(labels.ROLE, "")),
        revision=selected.get(labels.REVISION, marks.get(labels.REVISION, "")),
        digest=(metadata.get("annotations") or {}).get(drift.DIGEST, ""),
        fields=fields,
        adjusted=drift.own_fields(managed, ROLLOUT_MANAGER),
        scale=scale_of(body, kind),
        failing=failing_of(body, kind),
        replicas=replicas if isinstance(replicas, int) else None,
        workload=workload_of(body, kind, fields),
        claim=claims.of_body(body, kind),
        created=metadata.get("creationTimestamp") or "",
        edited=tuple(sorted((label, value) for label, value in selected.items() if marks.get(label) != value)),
    )


def _selected(spec: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """The labels by which a child finds its pods, which are its own too: selectors never change, labels may be edited.

    A LeaderWorkerSet has no selector: those of its leaders are as good, since to edit them replaces its pods.
    """
    if kind == serving_role.KIND:
        return {labels.ROLE: spec["role"]} if "role" in spec else {}
    if kind not in (*workloads.KINDS, "NetworkPolicy"):
        return {}
    selector = spec.get("podSelector" if kind == "NetworkPolicy" else "selector") or {}
    found = (
        selector.get("matchLabels") or workloads.pod_template({"spec": spec}).get("metadata", {}).get("labels") or {}
    )
    names = (labels.REVISION,) if kind == "NetworkPolicy" else (labels.NAME, labels.ROLE, labels.REVISION)
    return {name: found[name] for name in names if name in found}


def newer(version: str, than: str) -> bool:
    """Whether resource version ``version`` is not older than ``than``; versions that are no numbers count as newer."""
    return not (version.isdecimal() and than.isdecimal()) or int(version) >= int(than)


class Store:
    """All objects and children. Calls ``changed`` with the key of every object whose view changed."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._servings: dict[Key, Serving] = {}
        self._children: dict[Key, dict[tuple[str, str], Child]] = {}
        self._pods: dict[Key, dict[str, PodState]] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._homes: dict[str, Key] = {}

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of all objects."""
        return tuple(self._servings)

    def view(self, key: Key) -> View | None:
        """Return what is known about one object; ``None`` when there is none."""
        serving = self._servings.get(key)
        if serving is None:
            return None
        pods = tuple(sorted(self._pods.get(key, {}).values(), key=lambda pod: pod.name))
        return View(serving, dict(self._children.get(key, {})), pods)

    def put_serving(self, serving: Serving) -> None:
        """Take note of an object, unless a newer state of it is known."""
        known = self._servings.get(serving.key)
        if self._is_gone(serving.uid, serving.version):
            return
        if known is None or newer(serving.version, known.version):
            self._servings[serving.key] = serving
            if known != serving:
                self._changed(serving.key)

    def remove_serving(self, key: Key, uid: str, version: str) -> None:
        """Forget an object of this ``uid``, and every state of it that is not newer than ``version``."""
        self._bury(uid, version)
        known = self._servings.get(key)
        if known is not None and known.uid == uid:
            del self._servings[key]
            self._changed(key)

    def put_child(self, key: Key, child: Child) -> None:
        """Take note of a child of ``key``, unless a newer state of it is known."""
        if self._is_gone(child.uid, child.version):
            return
        self.leave(child.kind, child.name, child.uid, key)
        self._homes[child.uid] = key
        children = self._children.setdefault(key, {})
        known = children.get(child.identity)
        if known is None or newer(child.version, known.version):
            children[child.identity] = child
            if known is None or _differs(known, child):
                self._changed(key)

    def leave(self, kind: str, name: str, uid: str, key: Key | None) -> None:
        """Forget a child or pod under the object it was known under, unless that is ``key``: its label changed."""
        home = self._homes.get(uid)
        if home is None or home == key:
            return
        if kind == "Pod":
            self.doubt_pod(home, name, uid)
        else:
            self.doubt_child(home, kind, name, uid)

    def has_child(self, key: Key, kind: str, metadata: Mapping[str, Any]) -> bool:
        """Whether this very state of a child is known: the echo of a write of our own, most often. Safe in threads."""
        known = self._children.get(key, {}).get((kind, metadata["name"]))
        return known is not None and (known.uid, known.version) == (metadata["uid"], metadata.get("resourceVersion"))

    def remove_child(self, key: Key, kind: str, name: str, uid: str, version: str) -> None:
        """Forget a child of this ``uid``, and every state of it that is not newer than ``version``.

        A watch with a selector says DELETED as well of an object that only lost our label; it has newer states.
        """
        self._bury(uid, version)
        self.doubt_child(key, kind, name, uid)

    def doubt_child(self, key: Key, kind: str, name: str, uid: str) -> None:
        """Forget a child of this ``uid`` until it is seen again."""
        children = self._children.get(key, {})
        known = children.get((kind, name))
        if known is not None and known.uid == uid:
            self._homes.pop(uid, None)
            del children[kind, name]
            if not children:
                del self._children[key]
            self._changed(key)

    def put_pod(self, key: Key, pod: PodState) -> None:
        """Take note of a pod of ``key``, unless a newer state of it is known."""
        if self._is_gone(pod.uid, pod.version):
            return
        self.leave("Pod", pod.name, pod.uid, key)
        self._homes[pod.uid] = key
        pods = self._pods.setdefault(key, {})
        known = pods.get(pod.name)
        if known is None or newer(pod.version, known.version):
            pods[pod.name] = pod = pod if known is None or known.uid != pod.uid else pod.after(known)
            if known is None or known.without_version() != pod.without_version():
                self._changed(key)

    def remove_pod(self, key: Key, name: str, uid: str, version: str) -> None:
        """Forget a pod of this ``uid``, and every state of it that is not newer than ``version``."""
        self._bury(uid, version)
        self.doubt_pod(key, name, uid)

    def doubt_pod(self, key: Key, name: str, uid: str) -> None:
        """Forget a pod of this ``uid`` until it is seen again."""
        pods = self._pods.get(key, {})
        if name in pods and pods[name].uid == uid:
            self._homes.pop(uid, None)
            del pods[name]
            if not pods:
                del self._pods[key]
            self._changed(key)

    def retain(
        self, kind: str, listed: Iterable[tuple[Key, str, str]], known: Iterable[tuple[Key, str, str]], version: str
    ) -> int:
        """Forget what ``known`` (taken before a live list) names and the list no longer has; return how many.

        Entries are (key, name, uid). A watch that lost a deletion is healed by this. What was seen in a state newer
        than ``version``, that of the list, stays: an apiserver that lags does not know it yet.
        """
        missing = [(entry, self._version(kind, *entry)) for entry in set(known) - set(listed)]
        # Without a version it went, or was replaced, while the list was read: the watch has told.
        gone = [entry for entry, seen in missing if seen and newer(version, seen)]
        for key, name, uid in gone:
            if kind == "KVServing":
                self.remove_serving(key, uid, version)
            elif kind == "Pod":
                self.remove_pod(key, name, uid, version)
            else:
                self.remove_child(key, kind, name, uid, version)
        return len(gone)

    def _version(self, kind: str, key: Key, name: str, uid: str) -> str:
        """Return the resource version in which one object was seen last; empty where it is not known."""
        found: Serving | PodState | Child | None
        if kind == "KVServing":
            found = self._servings.get(key)
        elif kind == "Pod":
            found = self._pods.get(key, {}).get(name)
        else:
            found = self._children.get(key, {}).get((kind, name))
        return found.version if found is not None and found.uid == uid else ""

    def known(self, kind: str) -> list[tuple[Key, str, str]]:
        """Return (key, name, uid) of everything of one kind."""
        if kind == "KVServing":
            return [(key, key.name, serving.uid) for key, serving in self._servings.items()]
        if kind == "Pod":
            return [(key, pod.name, pod.uid) for key, pods in self._pods.items() for pod in pods.values()]
        return [
            (key, child.name, child.uid)
            for key, children in self._children.items()
            for child in children.values()
            if child.kind == kind
        ]

    def _bury(self, uid: str, version: str) -> None:
        # The answer to a write of ours, and a list, can arrive after the watch told that the object is gone.
        self._gone[uid] = version
        if len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)

    def _is_gone(self, uid: str, version: str) -> bool:
        """Whether this state is from before the object went."""
        last = self._gone.get(uid)
        return last is not None and newer(last, version)

    def sizes(self) -> tuple[int, int, int]:
        """Return the numbers of objects, children and pods."""
        children = sum(len(found) for found in self._children.values())
        return len(self._servings), children, sum(len(found) for found in self._pods.values())


def _differs(known: Child, child: Child) -> bool:
    """Whether a decision could depend on the difference; the resource version alone is none."""
    return (
        (known.uid, known.owner, known.deleting, known.digest, known.replicas, known.workload)
        != (
            child.uid,
            child.owner,
            child.deleting,
            child.digest,
            child.replicas,
            child.workload,
        )
        or (known.scale, known.failing, known.edited, known.claim)
        != (child.scale, child.failing, child.edited, child.claim)
        or (known.fields is not child.fields and known.fields != child.fields)
    )

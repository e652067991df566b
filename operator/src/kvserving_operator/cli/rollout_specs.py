"""The kept specs of an object: which one ``rollout undo`` returns to, and what that changes. Pure."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ..api.faults import Fault
from ..api.load import inspect
from ..api.v1alpha1 import API_VERSION, KIND, KVServingSpec
from ..local.errors import LocalError
from ..plan import labels
from ..plan.context import make_context
from ..plan.history import SPEC_KEY
from ..plan.planning import check
from ..plan.types import CLUSTER, Observed
from ..reasons import ENGINE_CONDITIONS, MENDS_ITSELF, Reason
from ..redaction import redact
from .rollout_progress import IN_PLACE

Body = Mapping[str, Any]
SHORT = 8
"""Digits of a revision that tables show, and that names of children carry."""
_ROLES = ("prefill", "decode")
_SECTIONS = ("model", "engine", "router", *_ROLES)
"""Parts of a kept spec that are looked into before it is checked: whoever may write ConfigMaps may have changed it."""
_NUMBERS = ("replicas", "autoscaling")
_COMING = MENDS_ITSELF | {Reason.SUSPENDED}
"""Reasons of engines that are not ready and do not fail."""
_DEPTH = 64
"""Levels of a kept spec: what a spec holds of pod templates has some twenty."""
_APPLIERS = {
    "argocd": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "helm": "Helm",
    "kubectl-client-side-apply": "kubectl apply",
}
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Kept:
    """The spec of one revision as the operator kept it; ``spec`` is ``None`` where it cannot be read.

    ``first_seen`` is when the revision was made, ``written`` when its spec was last changed within it (RFC 3339).
    ``engine`` is the vLLM version and image that it ran.
    """

    revision: str
    first_seen: str
    written: str
    spec: Mapping[str, Any] | None = field(repr=False)
    engine: tuple[str | None, str | None] = (None, None)

    @property
    def short(self) -> str:
        """The revision as it is shown."""
        return self.revision[:SHORT]


@dataclass(frozen=True)
class Present:
    """The object as it is.

    ``revision`` is that of its spec, empty where the operator has not planned this spec (yet). ``serving`` are the
    revisions that serve, ``failed`` the one whose rollout failed. ``engine`` is the vLLM version and image that the
    operator goes on with where a spec names neither. ``fails`` says which engines of a spec fail while no other
    revision comes up, and is empty otherwise.
    """

    name: str
    namespace: str
    spec: Mapping[str, Any] = field(repr=False)
    revision: str
    updating: str
    serving: tuple[str, ...]
    failed: str
    engine: tuple[str | None, str | None]
    fails: str = ""


def present_of(body: Body) -> Present:
    """The present state of an object, by its status."""
    metadata, status = body["metadata"], body.get("status") or {}
    rollout, engine = status.get("rollout") or {}, status.get("engine") or {}
    seen = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    told_of = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    conditions = {kind: condition.get("status") for kind, condition in told_of.items()}
    told, updating = str(status.get("revision") or ""), str(status.get("updatingRevision") or "")
    serving = [str(known["revision"]) for known in rollout.get("sets") or () if known.get("traffic")]
    if told and conditions.get("Available") == "True":
        serving.append(told)
    return Present(
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        spec=body.get("spec") or {},
        revision=(updating or told) if seen and conditions.get("ConfigValid") == "True" else "",
        updating=updating,
        serving=tuple(dict.fromkeys(serving)),
        failed=str((rollout.get("failed") or {}).get("revision") or ""),
        engine=(engine.get("version"), engine.get("image")),
        fails="" if updating or not seen else _failing(told_of),
    )


def _failing(conditions: Mapping[Any, Body]) -> str:
    found = ((kind, conditions[kind]) for kind in ENGINE_CONDITIONS if kind in conditions)
    fails = ((k, c.get("reason")) for k, c in found if c.get("status") == "False" and c.get("reason") not in _COMING)
    return ", ".join(f"{kind}: {reason}" for kind, reason in fails)


def kept_of(body: Body, config_maps: Sequence[Body]) -> tuple[Kept, ...]:
    """The kept specs of the object ``body`` among ``config_maps``, the newest revision first."""
    found = [
        _kept(config_map)
        for config_map in config_maps
        if SPEC_KEY in (config_map.get("data") or {})
        and (config_map["metadata"].get("labels") or {}).get(labels.REVISION)
        and any(o.get("uid") == body["metadata"]["uid"] for o in config_map["metadata"].get("ownerReferences") or ())
    ]
    return tuple(sorted(found, key=lambda kept: (kept.first_seen, kept.revision), reverse=True))


def _kept(config_map: Body) -> Kept:
    metadata = config_map["metadata"]
    made = str(metadata.get("creationTimestamp") or "")
    times = (str(entry.get("time") or "") for entry in metadata.get("managedFields") or ())
    try:
        spec = json.loads(config_map["data"][SPEC_KEY])
    except (ValueError, RecursionError):
        spec = None
    if not isinstance(spec, dict) or not all(_is_section(spec.get(name)) for name in _SECTIONS) or _deep(spec):
        spec = None
    notes = metadata.get("annotations") or {}
    engine = notes.get(labels.ENGINE_VERSION), notes.get(labels.ENGINE_IMAGE)
    return Kept(str(metadata["labels"][labels.REVISION]), made, max(times, default=made), spec, engine)


def _deep(value: Any) -> bool:
    """Whether a value is nested too deeply for what copies, compares and prints it."""
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _is_section(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def state(kept: Kept, present: Present) -> str:
    """What became of a revision, in a word or two."""
    if kept.revision == present.failed:
        return "failed"
    if kept.revision in present.serving:
        return "serving"
    return "coming up" if kept.revision == (present.updating or present.revision) else "kept"


def chosen(kept: Sequence[Kept], present: Present, wanted: str | None) -> Kept:
    """The kept spec to return to: ``wanted``, a revision or the digits it begins with, or the last that was good.

    That is one that serves beside the present spec's, else the newest that is neither the present spec's nor failed.
    Raises ``LocalError`` with those that are kept where there is none, or several, and where engines fail without a
    rollout: a change in place is not kept, and which former revision has served is not known.
    """
    if wanted is not None:
        found = [entry for entry in kept if entry.revision.startswith(wanted.lower())]
        if len(found) != 1:
            what = "several kept revisions begin" if found else "no kept revision begins"
            raise LocalError(f"{what} with {wanted}; {_listed(kept, present)}")
        return found[0]
    able = [entry for entry in kept if entry.revision not in (present.revision, present.failed)]
    serves = next((entry for name in present.serving for entry in able if entry.revision == name), None)
    if serves is not None and (present.revision or changes(present, returned(serves, present))):
        return serves
    known = {entry.revision for entry in kept}
    if lost := next((name for name in present.serving if name not in (*known, present.revision)), None):
        raise LocalError(
            f"revision {lost[:SHORT]} of {present.name} serves, and its spec is not kept: apply the file that it was"
            f" made of, or name another with --to-revision; {_listed(kept, present)}"
        )
    if not present.revision:
        raise LocalError(
            f"the operator has not planned the present spec of {present.name}, so that it cannot be told which revision"
            f" was before it: name one with --to-revision; {_listed(kept, present)}"
        )
    if not able:
        raise LocalError(
            f"no former spec of {present.name} is kept; {_listed(kept, present)}. What was changed since was changed in"
            f" place, as flags, numbers and resources are, and undo does not take it back. {IN_PLACE}"
        )
    if present.fails:
        raise LocalError(
            f"engines of {present.name} fail ({present.fails}), and no other revision is coming up: where they served"
            f" before, the failure is of a change in place, which undo does not take back. {IN_PLACE}. Which of the"
            f" former revisions have served is not recorded: name one with --to-revision; {_listed(kept, present)}"
        )
    return able[0]


def _listed(kept: Sequence[Kept], present: Present) -> str:
    told = ", ".join(f"{entry.short} ({state(entry, present)})" for entry in kept)
    return f"there are: {told or 'none'}"


def returned(target: Kept, present: Present) -> dict[str, Any]:
    """The spec that returns the object to ``target``.

    Numbers of engines and routers, ``ratio``, ``suspend`` and ``rollout`` stay those of the present spec; where the
    prefill role appears or goes, the numbers and the ratio are those of ``target``. A kept spec that left the choice of
    the engine to the operator gets the version, and where that is not enough the image, that it ran with: the operator
    would go on with what runs now.

    Raises ``LocalError`` where the spec was not kept readably.
    """
    if target.spec is None:
        raise LocalError(f"the kept spec of revision {target.short} cannot be read: choose another one")
    spec: dict[str, Any] = copy.deepcopy(dict(target.spec))
    same_roles = (spec.get("prefill") is None) == (present.spec.get("prefill") is None)
    _take(spec, present.spec, ("ratio", "suspend", "rollout") if same_roles else ("suspend", "rollout"))
    if same_roles:
        for role in _ROLES:
            _take_within(spec, present.spec, role, _NUMBERS)
    now, then = present.spec.get("router") or {}, spec.get("router") or {}
    if now.get("type") == then.get("type"):
        _take_within(spec, present.spec, "router", ("replicas",))
    return _with_engine(spec, target, present)


def _take(into: dict[str, Any], source: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        into.pop(name, None)
        if name in source:
            into[name] = copy.deepcopy(source[name])


def _take_within(spec: dict[str, Any], source: Mapping[str, Any], section: str, names: Sequence[str]) -> None:
    written, made = spec.get(section), dict(spec.get(section) or {})
    _take(made, source.get(section) or {}, names)
    if made or written is not None:
        spec[section] = made


def _with_engine(spec: dict[str, Any], target: Kept, present: Present) -> dict[str, Any]:
    """``spec`` with the engine that it ran with in ``target``, where the operator would take another."""
    engine, (version, image) = spec.get("engine") or {}, target.engine
    if engine.get("version") or engine.get("image") or version is None:
        return spec
    tried = [
        spec,
        *(
            {**spec, "engine": {**engine, **named}}
            for named in ({"version": version}, {"version": version, "image": image})
        ),
    ]
    return next((made for made in tried if revision_of(made, present, present.engine) == target.revision), tried[1])


def revision_of(spec: Mapping[str, Any], present: Present, engine: tuple[str | None, str | None]) -> str:
    """The revision of ``spec`` where ``engine`` is what runs; empty where it cannot be planned."""
    serving = inspect(_object(spec, present), strict=True).serving
    if serving is None:
        return ""
    return make_context(serving, CLUSTER, Observed(engine_version=engine[0], engine_image=engine[1])).revision


def faults(spec: Mapping[str, Any], present: Present) -> tuple[Fault, ...]:
    """What this version finds wrong with a spec that an earlier one may have kept."""
    reading = inspect(_object(spec, present), strict=True)
    if reading.serving is None:
        return reading.faults
    observed = Observed(engine_version=present.engine[0], engine_image=present.engine[1])
    known = {(fault.path, fault.message) for fault in reading.faults}
    more = check(reading.serving, site=CLUSTER, observed=observed)
    return reading.faults + tuple(fault for fault in more if (fault.path, fault.message) not in known)


def _object(spec: Mapping[str, Any], present: Present) -> dict[str, Any]:
    metadata = {"name": present.name, "namespace": present.namespace}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def changes(present: Present, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the fields in which ``spec`` differs from the present one. Lists count as one field."""
    return tuple(differing(_normal(present.spec), _normal(spec), "spec"))


def _normal(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """``spec`` as the operator keeps it, so that two ways to write a value are no difference."""
    try:
        return KVServingSpec.model_validate(spec).model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValidationError:
        return spec


def differing(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yield the path of every field in which two values differ. No value of a field is part of it."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            name = f".{key}" if _PLAIN.fullmatch(key) else f"[{json.dumps(key)}]"
            yield from differing(old.get(key), new.get(key), path + name)
    elif old != new:
        yield path


def model(kept: Kept) -> str:
    """Where the model comes from: revisions that differ by it may serve it by one name."""
    section = (kept.spec or {}).get("model") or {}
    return redact(str(section.get("uri") or "-"))


def engine(kept: Kept) -> str:
    """The vLLM version or image that the spec names."""
    section = (kept.spec or {}).get("engine") or {}
    return redact(str(section.get("image") or section.get("version") or "the operator's choice"))


def appliers(body: Body) -> tuple[str, ...]:
    """Who applies the spec of an object from elsewhere, as its managed fields tell, such as ``Helm (helm)``."""
    found = []
    for entry in body["metadata"].get("managedFields") or ():
        manager = str(entry.get("manager") or "")
        if entry.get("subresource") or "f:spec" not in (entry.get("fieldsV1") or {}):
            continue
        known = next((name for begin, name in _APPLIERS.items() if manager.startswith(begin)), None)
        found += [f"{known} ({manager})"] if known is not None else []
    return tuple(dict.fromkeys(found))

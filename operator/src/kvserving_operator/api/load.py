"""Reading a ``KVServing`` that a person wrote or that the cluster stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import ValidationError

from . import metadata, rules
from .fault_words import suggestion, translate
from .faults import Fault, InvalidSpec, printable
from .fields import unknown, without_value
from .parse import MAX_BYTES, TOO_LARGE, parse, plain
from .v1alpha1 import API_VERSION, GROUP, KIND, KVServing

# The object can be read whatever these hold.
_LOOSE = ("metadata.labels", "metadata.annotations")


@dataclass(frozen=True)
class Reading:
    """What was read: the object where its fields have the right types, and every fault."""

    serving: KVServing | None
    faults: tuple[Fault, ...]
    resolved: tuple[str, ...] = ()
    """Fields whose file URIs were made absolute: a cluster would refuse them as they are."""
    empty: tuple[str, ...] = ()
    """Fields of the spec that are given without a value. They count as left out, as they do in a cluster."""


def load(source: str | Mapping[str, Any], *, strict: bool, base_dir: Path | None = None) -> KVServing:
    """Return the object in ``source`` (YAML or JSON text, or a mapping).

    ``strict`` refuses unknown fields; without it they are ignored, so that an object stored
    by another version still reconciles. With ``base_dir``, ``file:`` URIs of the model and its
    adapters are made absolute: relative paths against ``base_dir``, ``~`` against the home folder.

    Raises ``InvalidSpec`` with every fault; no other exception, whatever ``source`` holds.
    """
    reading = inspect(source, strict=strict, base_dir=base_dir)
    if reading.faults or reading.serving is None:
        raise InvalidSpec(reading.faults, reading.serving)
    return reading.serving


def inspect_file(path: Path, *, strict: bool = True) -> Reading:
    """Return object and faults of the file at ``path``; never raises."""
    try:
        with path.open("rb") as file:
            return inspect_stream(file, printable(str(path)), strict=strict, base_dir=path.absolute().parent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Reading(None, (Fault("", f"{printable(str(path))}: cannot be read: {reason or 'not a usable path'}"),))


def inspect_stream(stream: IO[bytes], name: str, *, strict: bool, base_dir: Path | None = None) -> Reading:
    """Return object and faults of the text in ``stream``, which faults call ``name``.

    Reads no more than shows that there is too much. Raises ``OSError`` or ``ValueError`` where
    ``stream`` cannot be read, nothing else.
    """
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return Reading(None, (Fault("", TOO_LARGE),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Reading(None, (Fault("", f"{name}: line {line}: not UTF-8 text"),))
    return inspect(text, strict=strict, base_dir=base_dir)


def inspect(source: str | Mapping[str, Any], *, strict: bool, base_dir: Path | None = None) -> Reading:
    """Return object and faults of ``source``; arguments as for ``load``; never raises.

    ``serving`` is set although there are faults where only rules or unknown fields are
    violated, so that the plan's checks can add their faults to the same report.
    """
    faults: tuple[Fault, ...] = ()
    try:
        value, faults, nulls = plain(parse(source) if isinstance(source, str) else source)
        _refuse_other_kinds(value)
    except InvalidSpec as error:
        return Reading(None, faults + error.faults)
    resolved = _resolve_files(value, base_dir) if base_dir is not None else ()
    faults += _version_faults(value)
    surplus, known = unknown(KVServing, {key: value[key] for key in value if key != "status"})
    without, empty = without_value(KVServing, nulls)
    surplus += without
    if strict:
        faults += (*surplus, *metadata.faults(value.get("metadata")))
    serving: KVServing | None = None
    if not any(fault.path in ("apiVersion", "kind") for fault in faults):
        try:
            serving = KVServing.model_validate(known)
        except ValidationError as error:
            seen = {fault.path for fault in faults}
            faults += tuple(fault for fault in translate(error) if fault.path not in seen)
    broken = [fault.path for fault in faults if fault not in surplus and not fault.path.startswith(_LOOSE)]
    if broken:
        serving = None
    return Reading(serving, faults + rules.violations(known, broken=broken), resolved, empty)


def _refuse_other_kinds(value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidSpec([Fault("", f"the file must hold a KVServing object, not {_kind_of(value)}")])
    kind = value.get("kind")
    if kind is None and not any(field in value for field in ("apiVersion", "metadata", "spec")):
        message = f"is missing, and the fields are not those of a KVServing: write kind: {KIND}"
        raise InvalidSpec([Fault("kind", message)])
    if kind is not None and kind != KIND:
        hint = suggestion(kind, (KIND,)) if isinstance(kind, str) else ""
        fault = Fault("kind", f"{str(kind)[:60]!r} is not {KIND}{hint}", str(kind)[:60])
        raise InvalidSpec([fault, *(_group_faults(value) or _version_faults(value))])
    if other := _group_faults(value):
        raise InvalidSpec(other)


def _group_faults(value: Mapping[str, Any]) -> tuple[Fault, ...]:
    api = value.get("apiVersion")
    if not isinstance(api, str) or api.split("/")[0] == GROUP:
        return ()
    return (Fault("apiVersion", f"{api[:60]!r} is not {API_VERSION}: another product's object", api[:60]),)


def _version_faults(value: Mapping[str, Any]) -> tuple[Fault, ...]:
    faults = []
    if "kind" not in value:
        faults.append(Fault("kind", f"is missing: write kind: {KIND}"))
    api = value.get("apiVersion")
    if api is None:
        faults.append(Fault("apiVersion", f"is missing: write apiVersion: {API_VERSION}"))
    elif api != API_VERSION:
        faults.append(Fault("apiVersion", f"{str(api)[:60]!r} is not {API_VERSION}", str(api)[:60]))
    return tuple(faults)


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a single value" if value is not None else "nothing"


def _resolve_files(value: dict[str, Any], base_dir: Path) -> tuple[str, ...]:
    """Make ``file:`` URIs absolute; return the paths of the fields that were not."""
    spec = value.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        return ()
    loras = model.get("loras")
    sections = {"spec.model": model}
    sections |= {f"spec.model.loras[{i}]": lora for i, lora in enumerate(loras if isinstance(loras, list) else ())}
    changed = []
    for path, section in sections.items():
        uri = section.get("uri") if isinstance(section, dict) else None
        if isinstance(uri, str) and uri.startswith("file:"):
            section["uri"] = resolve_file_uri(uri, base_dir)
            changed += [f"{path}.uri"] if section["uri"] != uri else []
    return tuple(changed)


def resolve_file_uri(uri: str, base_dir: Path) -> str:
    """Return the ``file:`` URI with an absolute path: ``file:///path``.

    ``file:relative``, ``file://relative`` and ``file://~/path`` are resolved against ``base_dir``
    and the home folder; ``..`` is folded without looking at the disk. A URI without a path is
    returned unchanged, and refused by the rules.
    """
    path = uri.removeprefix("file:").removeprefix("//")
    if not path or "\0" in path:
        return uri
    if path == "~" or path.startswith("~/"):
        path = str(Path.home()) + path[1:]
    parts: list[str] = []
    for part in PurePosixPath(base_dir.absolute(), path).parts[1:]:
        if part == "..":
            parts[-1:] = []
        else:
            parts.append(part)
    return "file:///" + "/".join(parts)

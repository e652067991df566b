"""What an artefact contains or needs, as CycloneDX: one file beside each, the same bytes for the same artefact."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.release import requirements
from scripts.release.archives import sha256
from scripts.release.source import Source

SUFFIX = ".cdx.json"
_LICENCE = "Apache-2.0"
_IMAGE = re.compile(r"(?:image: |--connector-image=)(?P<name>[^\s:]+):(?P<tag>\S+)$", re.MULTILINE)


class Invalid(ValueError):
    """A list of contents is missing, or not what CycloneDX's schema wants; the message names it."""


def of_wheel(wheel: Path, pins: Path, source: Source) -> Path:
    """Describe a wheel by its metadata; ``pins`` is the requirement file with the versions that it is tested with."""
    with zipfile.ZipFile(wheel) as opened:
        [name] = [member for member in opened.namelist() if member.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(opened.read(name).decode())
    asked = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = [canonicalize_name(one.name) for one in asked if one.marker is None]
    wished = [canonicalize_name(one.name) for one in asked if one.marker is not None]
    pinned = requirements.read(pins)
    if missing := [one for one in (*always, *wished) if one not in pinned]:
        raise requirements.Unpinned(
            f"the wheel needs {', '.join(missing)}, and {pins.name} has it not: run `make requirements`"
        )
    required = requirements.needed(pinned, always)
    used = {name: pinned[name] for name in sorted(required | requirements.needed(pinned, wished))}
    parts = {}
    for name, pin in used.items():
        optional = pin.conditional or name not in required
        scope = ComponentScope.OPTIONAL if optional else ComponentScope.REQUIRED
        parts[name] = _component(ComponentType.LIBRARY, "pypi", name, pin.version, scope=scope)
    subject = _subject(ComponentType.LIBRARY, "pypi", str(metadata["Name"]), wheel, source)
    bom = _bom(subject, parts.values(), source)
    bom.register_dependency(subject, [parts[name] for name in (*always, *wished)])
    for name in parts:
        bom.register_dependency(parts[name], [parts[pin.name] for pin in used.values() if name in pin.asked_by])
    return _write(bom, wheel)


def of_manifests(file: Path, name: str, rendered: str, source: Source) -> Path:
    """Describe a chart or manifests by the images that ``rendered``, the manifests, name."""
    parts = [
        _component(ComponentType.CONTAINER, "docker", match["name"], match["tag"])
        for match in sorted(_IMAGE.finditer(rendered), key=lambda match: match[0])
    ]
    subject = _subject(ComponentType.APPLICATION, "generic", name, file, source)
    # One component for each image, however often it is named.
    by_reference = {str(part.bom_ref): part for part in parts}
    bom = _bom(subject, by_reference.values(), source)
    bom.register_dependency(subject, by_reference.values())
    return _write(bom, file)


def check(text: str, what: str) -> None:
    """Raise ``Invalid`` unless ``text`` is a CycloneDX document as its schema wants it."""
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise Invalid(f"{what} is no CycloneDX 1.6: {error}")


def _subject(kind: ComponentType, system: str, name: str, file: Path, source: Source) -> Component:
    made = _component(kind, system, name, source.version)
    made.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=sha256(file)))
    made.licenses.add(LicenseExpression(_LICENCE))
    made.properties.update(
        (Property(name="kvserving:file", value=file.name), Property(name="kvserving:commit", value=source.commit))
    )
    return made


def _component(
    kind: ComponentType, system: str, name: str, version: str, scope: ComponentScope | None = None
) -> Component:
    namespace, _, short = name.rpartition("/")
    address = PackageURL(system, namespace or None, short, version)
    return Component(type=kind, name=name, version=version, purl=address, bom_ref=str(address), scope=scope)


def _bom(subject: Component, parts: Iterable[Component], source: Source) -> Bom:
    [digest] = subject.hashes
    made = datetime.fromtimestamp(source.epoch, UTC)
    # A number of its own for each content, and no other: by default it is random.
    number = uuid5(NAMESPACE_URL, f"{subject.purl}#{digest.content}")
    return Bom(serial_number=number, metadata=BomMetaData(component=subject, timestamp=made), components=parts)


def _write(bom: Bom, artefact: Path) -> Path:
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"
    output = artefact.with_name(artefact.name + SUFFIX)
    check(text, output.name)
    output.write_text(text, encoding="utf-8")
    return output

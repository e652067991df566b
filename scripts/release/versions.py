"""The version: written once, in the operator's package, and repeated where a reader or a tool wants it in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

TRUTH = "operator/src/kvserving_operator/__init__.py"
_NUMBER = r"(?P<version>\d+\.\d+\.\d+)"
_DUNDER = f'^__version__ = "{_NUMBER}"$'
_LABEL = f'image\\.version="{_NUMBER}"'
_SBOM = f"sbom\\.py --name \\S+ --version {_NUMBER} "
_OPERATOR = f"kvserving/operator:{_NUMBER}"
_CONNECTOR = f"kvserving/connector:{_NUMBER}"
PLACES: Mapping[str, tuple[str, ...]] = {
    TRUTH: (_DUNDER,),
    "connector/src/kvserving_connector/__init__.py": (_DUNDER,),
    "charts/kvserving-operator/Chart.yaml": (f"^version: {_NUMBER}$", f"^appVersion: {_NUMBER}$"),
    "deploy/install.yaml": (f"app\\.kubernetes\\.io/version: {_NUMBER}$", _OPERATOR, _CONNECTOR),
    "docs/helm.md": (f"\\?ref=v{_NUMBER}", f"newTag: {_NUMBER}"),
    "docs/images.md": (_OPERATOR, _CONNECTOR),
    "docs/quickstart-cluster.md": (_OPERATOR, _CONNECTOR),
    "examples/gitops/kustomize/kustomization.yaml": (f"newTag: {_NUMBER}", _CONNECTOR),
    "images/connector/Dockerfile": (_LABEL, _SBOM),
    "images/engine/Dockerfile": (_CONNECTOR, _SBOM),
    "images/operator/Dockerfile": (_LABEL, _SBOM),
}
"""Files that repeat the version, with the patterns that find it there; each pattern occurs at least once."""


class BadVersion(ValueError):
    """What was given is no version of ours; the message says what one looks like."""


def current(root: Path) -> str:
    """Return the version of the checkout."""
    found = [version for _, version in _found(root, TRUTH)] if (root / TRUTH).is_file() else []
    if len(found) != 1:
        raise BadVersion(f'{TRUTH} says `__version__ = "X.Y.Z"` {len(found)} times, and once is wanted')
    return found[0]


def faults(root: Path) -> list[str]:
    """Return a line for each place that says another version than ``TRUTH``, or none."""
    wanted = current(root)
    told = []
    for name, patterns in PLACES.items():
        if not (root / name).is_file():
            told.append(f"{name}: is not there, and the version is expected in it")
            continue
        for pattern in patterns:
            versions = [version for found, version in _found(root, name) if found == pattern]
            told += [f"{name}: says {version}, and {TRUTH} says {wanted}" for version in versions if version != wanted]
            if not versions:
                told.append(f"{name}: nothing in it matches {pattern}, where the version is expected")
    return told


def write(root: Path, version: str) -> list[str]:
    """Write ``version`` into every place; return the files that changed. Raises ``BadVersion``."""
    parsed(version)
    changed = []
    for name, patterns in PLACES.items():
        file = root / name
        before = text = file.read_text(encoding="utf-8")
        for pattern in patterns:
            text = re.sub(pattern, lambda match: _replaced(match, version), text, flags=re.MULTILINE)
        if text != before:
            file.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def parsed(version: str) -> tuple[int, int, int]:
    """Return the three numbers. Raises ``BadVersion``."""
    match = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version)
    if match is None:
        raise BadVersion(
            f"{version!r} is no version: give three numbers, as 0.2.0. Pre-releases, which Python and Helm spell "
            "differently, are not made"
        )
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def next_minor(version: str) -> str:
    """Return the first version of the next minor release."""
    major, minor, _ = parsed(version)
    return f"{major}.{minor + 1}.0"


def _found(root: Path, name: str) -> Iterator[tuple[str, str]]:
    text = (root / name).read_text(encoding="utf-8")
    for pattern in PLACES[name]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield pattern, match["version"]


def _replaced(match: re.Match[str], version: str) -> str:
    start, end = (at - match.start() for at in match.span("version"))
    return match[0][:start] + version + match[0][end:]

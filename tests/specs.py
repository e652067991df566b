"""The example objects under ``tests/cases/specs``: where they are and what their headers say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SPECS = Path(__file__).parent / "cases" / "specs"


@dataclass(frozen=True)
class Refused:
    """An object with one fault, and what the report about it must say.

    ``latest`` is the last place that may refuse it: ``apiserver`` (schema and rules) or
    ``plan`` (the checks that need more than the object's form).
    """

    path: Path
    must_contain: tuple[str, ...]
    one_of: tuple[str, ...]
    latest: Literal["apiserver", "plan"]

    @property
    def text(self) -> str:
        """The file's text."""
        return self.path.read_text(encoding="utf-8")

    def missing_from(self, report: str) -> tuple[str, ...]:
        """Return the words that ``report`` lacks; none when it says all it must. Case is ignored."""
        said = report.casefold()
        missing = [word for word in self.must_contain if word.casefold() not in said]
        if self.one_of and not any(word.casefold() in said for word in self.one_of):
            missing.append(" or ".join(self.one_of))
        return tuple(missing)


def accepted() -> tuple[Path, ...]:
    """Return the files with objects that must be accepted."""
    return tuple(sorted((SPECS / "valid").glob("*.yaml")))


def refused(latest: Literal["apiserver", "plan"] | None = None) -> tuple[Refused, ...]:
    """Return the objects that must be refused, all or those with the given ``latest``."""
    cases = (_read(path) for path in sorted((SPECS / "invalid").glob("*.yaml")))
    return tuple(case for case in cases if latest is None or case.latest == latest)


def _read(path: Path) -> Refused:
    header: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        key, _, value = line.removeprefix("# ").partition(": ")
        header.setdefault(key, value)
    latest = header["Latest"].strip()
    if latest not in ("apiserver", "plan"):
        raise ValueError(f"{path.name}: Latest must be apiserver or plan, not {latest!r}")
    return Refused(
        path=path,
        must_contain=tuple(json.loads(header["Error must contain"])),
        one_of=tuple(json.loads(header.get("and one of", "[]"))),
        latest="apiserver" if latest == "apiserver" else "plan",
    )

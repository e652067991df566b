"""The version: every place that repeats it says the same, and one command changes them all."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from scripts.release import source, versions
from scripts.release.versions import PLACES, TRUTH, BadVersion
from tests.release.copies import ROOT, places

from kvserving_operator import __version__
from kvserving_operator.plan.types import CONNECTOR_IMAGE

# 9.9.9 is what tests make up.
_OURS = re.compile(r"kvserving/(?:operator|connector|engine):(?!9\.9\.9\b)\d+\.\d+\.\d+")
EACH = [
    pytest.param(name, pattern, id=f"{name}-{number}") for name in PLACES for number, pattern in enumerate(PLACES[name])
]


def test_all_places_say_the_one_version() -> None:
    assert versions.faults(ROOT) == []
    assert versions.current(ROOT) == __version__
    assert f"kvserving/connector:{__version__}" == CONNECTOR_IMAGE


@pytest.mark.parametrize("name", ["operator", "connector"])
def test_a_wheel_takes_its_version_from_its_package(name: str) -> None:
    told = tomllib.loads((ROOT / name / "pyproject.toml").read_text())
    assert "version" in told["project"]["dynamic"]
    assert f"{name}/{told['tool']['hatch']['version']['path']}" in PLACES


def test_no_other_file_names_an_image_of_ours_by_its_version() -> None:
    tracked = source.git(ROOT, "ls-files", "-z").split("\0")
    # Expected plans are written again by their own test.
    kept = [
        n for n in tracked if n and n not in PLACES and not n.startswith("tests/plan/golden/") and (ROOT / n).is_file()
    ]
    assert len(kept) > 500
    found = {name for name in kept if _OURS.search((ROOT / name).read_bytes().decode(errors="replace"))}
    assert found == set()


@pytest.mark.parametrize(("name", "pattern"), EACH)
def test_a_place_that_says_another_version_or_none_is_named(name: str, pattern: str, tmp_path: Path) -> None:
    root = places(tmp_path)
    text = (root / name).read_text()
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None
    start, end = match.span("version")
    (root / name).write_text(f"{text[:start]}9.9.9{text[end:]}")
    told = versions.faults(root)
    assert all("9.9.9" in line for line in told)
    assert any(line.startswith(f"{name}: says ") for line in told) or name == TRUTH
    assert told
    (root / name).write_text(re.sub(pattern, "", text, flags=re.MULTILINE))
    if name == TRUTH:
        with pytest.raises(BadVersion, match=re.escape(TRUTH)):
            versions.faults(root)
    else:
        assert any(line.startswith(f"{name}: nothing in it matches") for line in versions.faults(root))


def test_another_version_is_written_into_every_place(tmp_path: Path) -> None:
    root = places(tmp_path)
    assert versions.write(root, "12.0.3") == list(PLACES)
    assert (versions.current(root), versions.faults(root)) == ("12.0.3", [])
    for name in PLACES:
        assert (root / name).read_text() == (ROOT / name).read_text().replace(__version__, "12.0.3")
    assert versions.write(root, "12.0.3") == []


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1", "1.2.3-rc.1", "01.2.3", "1.2.3\n"])
def test_what_is_no_version_is_refused_and_nothing_written(version: str, tmp_path: Path) -> None:
    root = places(tmp_path)
    with pytest.raises(BadVersion, match="give three numbers"):
        versions.write(root, version)
    assert versions.current(root) == __version__


def test_the_next_minor_version_starts_at_zero() -> None:
    assert versions.next_minor("1.9.3") == "1.10.0"

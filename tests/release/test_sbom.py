"""SBOMs: what a wheel needs in the versions that it is tested with, and the images that manifests name."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from scripts.release import requirements, sbom
from scripts.release.archives import sha256
from scripts.release.source import Source
from tests.release.copies import ROOT

SOURCE = Source(Path(), "1.2.3", "c" * 40, 1_700_000_000)
PINS = """\
always==1.0 \\
    --hash=sha256:00 \\
    --hash=sha256:11
    # via -r it.in
below==2.0+local \\
    --hash=sha256:00
    # via
    #   -c other.txt
    #   always
    #   Wished.Thing
never==3.0
    # via -r it.in
old==4.0 ; python_full_version < '3.11.3' \\
    --hash=sha256:00
    # via below
wished-thing==5.0
    # via -r it.in
"""


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    file = tmp_path / "it.txt"
    file.write_text(PINS)
    return file


def wheel(folder: Path, *asked: str) -> Path:
    file = folder / "it-1.2.3-py3-none-any.whl"
    metadata = ["Metadata-Version: 2.4", "Name: It", "Version: 1.2.3", *(f"Requires-Dist: {one}" for one in asked)]
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("it-1.2.3.dist-info/METADATA", "\n".join(metadata) + "\n\nWords.\n")
    return file


def read(file: Path) -> dict[str, Any]:
    text = file.read_text()
    sbom.check(text, file.name)
    found: dict[str, Any] = json.loads(text)
    return found


def needs(document: dict[str, Any]) -> dict[str, list[str]]:
    return {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}


def test_a_wheel_is_told_with_all_that_it_needs_and_who_needs_it(tmp_path: Path, pins: Path) -> None:
    file = wheel(tmp_path, "always<2,>=1", "wished.thing; extra == 'local'")
    made = sbom.of_wheel(file, pins, SOURCE)
    assert made.name == "it-1.2.3-py3-none-any.whl.cdx.json"
    found = read(made)
    subject = found["metadata"]["component"]
    assert (subject["purl"], subject["version"]) == ("pkg:pypi/it@1.2.3", "1.2.3")
    assert subject["hashes"] == [{"alg": "SHA-256", "content": sha256(file)}]
    assert subject["licenses"] == [{"expression": "Apache-2.0"}]
    told = {one["name"]: one["value"] for one in subject["properties"]}
    assert told == {"kvserving:file": file.name, "kvserving:commit": "c" * 40}
    assert {(one["name"], one["version"], one["scope"]) for one in found["components"]} == {
        ("always", "1.0", "required"),
        ("below", "2.0+local", "required"),
        ("old", "4.0", "optional"),
        ("wished-thing", "5.0", "optional"),
    }
    below = "pkg:pypi/below@2.0%2Blocal"
    assert needs(found) == {
        "pkg:pypi/it@1.2.3": ["pkg:pypi/always@1.0", "pkg:pypi/wished-thing@5.0"],
        "pkg:pypi/always@1.0": [below],
        "pkg:pypi/wished-thing@5.0": [below],
        below: ["pkg:pypi/old@4.0"],
        "pkg:pypi/old@4.0": [],
    }


def test_a_wheel_that_needs_nothing_has_no_components(tmp_path: Path, pins: Path) -> None:
    found = read(sbom.of_wheel(wheel(tmp_path), pins, SOURCE))
    assert "components" not in found
    assert needs(found) == {"pkg:pypi/it@1.2.3": []}


def test_a_requirement_that_is_not_pinned_is_refused(tmp_path: Path, pins: Path) -> None:
    with pytest.raises(ValueError, match=r"wheel needs gone, and it\.txt has it not: run `make requirements`"):
        sbom.of_wheel(wheel(tmp_path, "gone>=1"), pins, SOURCE)
    pins.write_text("always>=1\n")
    with pytest.raises(ValueError, match=r"it\.txt:1: 'always>=1' pins no version"):
        requirements.read(pins)


def test_the_same_artefact_gives_the_same_bytes_and_another_one_another_number(tmp_path: Path, pins: Path) -> None:
    file = wheel(tmp_path, "always")
    one = sbom.of_wheel(file, pins, SOURCE).read_bytes()
    assert sbom.of_wheel(file, pins, SOURCE).read_bytes() == one
    assert json.loads(one)["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    other = sbom.of_wheel(wheel(tmp_path, "never"), pins, SOURCE).read_bytes()
    assert json.loads(one)["serialNumber"] != json.loads(other)["serialNumber"]
    moved = sbom.of_wheel(file, pins, replace(SOURCE, commit="d" * 40)).read_bytes()
    assert moved != other


def test_manifests_are_told_with_the_images_that_they_name(tmp_path: Path) -> None:
    file = tmp_path / "kvserving-install-1.2.3.yaml"
    file.write_text((ROOT / "deploy/install.yaml").read_text())
    found = read(sbom.of_manifests(file, "kvserving-install", file.read_text(), SOURCE))
    assert found["metadata"]["component"]["purl"] == "pkg:generic/kvserving-install@1.2.3"
    assert [(one["type"], one["name"]) for one in found["components"]] == [
        ("container", "kvserving/connector"),
        ("container", "kvserving/operator"),
    ]
    assert needs(found)["pkg:generic/kvserving-install@1.2.3"] == [one["bom-ref"] for one in found["components"]]


@pytest.mark.parametrize("further", ['"typo": []', '"metadata": {"timestamp": "yesterday"}'])
def test_a_document_that_the_schema_does_not_know_is_refused(further: str) -> None:
    with pytest.raises(ValueError, match=r"this is no CycloneDX 1\.6"):
        sbom.check(f'{{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, {further}}}', "this")


def test_no_grammar_is_compiled_by_every_process_of_the_tests() -> None:
    pinned = requirements.read(ROOT / "requirements/dev.txt")
    assert "jsonschema" in pinned
    assert "rfc3987-syntax" not in pinned


def test_the_pins_of_the_operator_reach_every_requirement_of_its_package() -> None:
    pinned = requirements.read(ROOT / "requirements/operator.txt")
    assert pinned["aiohttp"].asked_by == ["aiohttp-retry", "kopf", "kubernetes", "vllm-router"]
    assert pinned["async-timeout"].conditional
    assert {"aiohttp", "idna"} <= requirements.needed(pinned, ["kopf"])
    assert "smg" not in requirements.needed(pinned, ["kopf"])


def test_what_the_package_asks_for_is_pinned_as_it_asks() -> None:
    """Else somebody changed the one file and did not run `make requirements`."""
    project = tomllib.loads((ROOT / "operator/pyproject.toml").read_text())["project"]
    asked = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["local"])]
    text = (ROOT / "requirements/operator.txt").read_text()
    blocks = re.split(r"\n(?=\S)", text)
    assert {one.name for one in asked} == {
        block.partition("==")[0] for block in blocks if "kvserving-operator (../operator/pyproject.toml)" in block
    }
    pinned = requirements.read(ROOT / "requirements/operator.txt")
    assert [str(one) for one in asked if pinned[one.name].version not in one.specifier] == []

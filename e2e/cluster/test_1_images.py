"""Our images as they were built: who runs in them, what is inside, and that it is listed."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.images import CONNECTOR, OPERATOR, ROOT, Image
from e2e.cluster.lane import Built

OURS = (OPERATOR, CONNECTOR)
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))


@dataclass(frozen=True)
class Unpacked:
    """An image's settings, and its layers in their order."""

    config: dict[str, Any]
    layers: list[bytes]

    @property
    def names(self) -> set[str]:
        """The paths that any layer has, those included that a later one removes."""
        found: set[str] = set()
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                found |= set(tar.getnames())
        return found

    def extract(self, folder: Path, below: str = "") -> Path:
        """Write the last layer's files to a folder, those below a path; return it."""
        with tarfile.open(fileobj=io.BytesIO(self.layers[-1])) as tar:
            files = [entry for entry in tar if entry.isreg() and entry.name.startswith(below)]
            tar.extractall(folder, members=files, filter="data")
        return folder


@pytest.fixture(params=OURS, ids=lambda image: image.name)
def image(request: pytest.FixtureRequest) -> Image:
    found: Image = request.param
    return found


def unpacked(built: Built, image: Image) -> Unpacked:
    with tarfile.open(built.archives[image.name]) as archive:

        def blob(digest: str) -> bytes:
            found = archive.extractfile(f"blobs/sha256/{digest.partition(':')[2]}")
            assert found is not None
            return found.read()

        index = archive.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))["config"]
        return Unpacked(config, [blob(layer["digest"]) for layer in manifest["layers"]])


def test_they_run_as_a_user_without_rights(built: Built, image: Image) -> None:
    assert unpacked(built, image).config["User"] == "65532:65532"


def test_what_is_inside_is_listed(built: Built, image: Image, tmp_path: Path) -> None:
    made = unpacked(built, image)
    file = made.extract(tmp_path, "sbom.cdx.json") / "sbom.cdx.json"
    listed = {component["name"] for component in json.loads(file.read_text())["components"]}
    folders = [Path(name).name for name in made.names if name.endswith(".dist-info")]
    found = {re.sub("[-_.]+", "-", folder.removesuffix(".dist-info").rpartition("-")[0]).lower() for folder in folders}
    assert found <= listed
    assert ("kopf" in found) == (image is OPERATOR)
    assert "pip" not in found


def test_the_connector_is_found_with_its_entry_point_by_any_python_that_has_its_folder(
    built: Built, tmp_path: Path
) -> None:
    root = unpacked(built, CONNECTOR).extract(tmp_path)
    code = (
        "import importlib.metadata as m, kvserving_connector as c; print(c.__file__);"
        "print([e.value for e in m.entry_points(group='vllm.general_plugins') if e.name == 'kvserving'])"
    )
    environ = {"PYTHONPATH": str(root / "connector")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == [
        str(root / "connector/kvserving_connector/__init__.py"),
        "['kvserving_connector.plugin:register']",
    ]
    assert {path.name for path in (root / "bin").iterdir()} == {"cp"}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_what_a_dockerfile_starts_from_is_an_argument_a_stage_or_nothing(file: Path) -> None:
    text = file.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    given = {f"${{{name}}}" for name in re.findall(r"^ARG (\w+)=", text, re.MULTILINE)}
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    assert bases
    assert bases <= given | stages | {"scratch"}

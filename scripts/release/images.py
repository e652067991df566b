"""Our images as OCI archives: built anew as the cluster lane builds them, with every time set to the commit's."""

from __future__ import annotations

import json
import os
import platform
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from e2e.cluster.images import CONNECTOR, OPERATOR, Builder, Image
from e2e.cluster.oci import MACHINES
from e2e.cluster.packages import program
from scripts.release import archives, sbom
from scripts.release.source import Refused, Source

_LISTED = "sbom.cdx.json"
_LEFT_OUT = "`make release IMAGES=no` makes the rest"


def require(
    find: Callable[[str], str | None] = program, user: Callable[[], int] = os.geteuid, base: str | None = None
) -> None:
    """Return when images can be built here. Raises ``Refused`` with the way out."""
    needed = ["buildah"] if base else ["buildah", "debootstrap"]
    told = [f"images need {name}: `apt-get install {name}`" for name in needed if find(name) is None]
    if user() != 0:
        told.append("images are built as root, and this is another user: `sudo make release`")
    if told:
        raise Refused("\n".join([*told, _LEFT_OUT]))


def build(source: Source, tree: Path, output: Path, builder: Builder, base: str | None = None) -> None:
    """Write both images of ``tree`` into ``output``, with their SBOMs; ``base`` replaces the lane's Debian."""
    machine = MACHINES.get(platform.machine(), platform.machine())
    for image in (OPERATOR, CONNECTOR):
        short = image.name.rpartition("/")[2].partition(":")[0]
        archive = output / f"kvserving-{short}-image-{source.version}-{machine}.tar"
        builder.rebuild(_of(source, image, base), tree, source.epoch, archive)
        archives.settle_tar(archive, source.epoch)
        text = listed(archive)
        sbom.check(text, f"/{_LISTED} of {image.name}")
        archive.with_name(archive.name + sbom.SUFFIX).write_text(text, encoding="utf-8")


def listed(archive: Path) -> str:
    """Return the SBOM that an image carries. Raises ``sbom.Invalid`` where it has none."""
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> IO[bytes]:
            opened = tar.extractfile(f"blobs/sha256/{digest.partition(':')[2]}")
            assert opened is not None
            return opened

        index = tar.extractfile("index.json")
        assert index is not None
        manifest: dict[str, Any] = json.load(blob(json.load(index)["manifests"][0]["digest"]))
        for layer in reversed(manifest["layers"]):
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                for entry in files:
                    if entry.name.removeprefix("./") == _LISTED and (content := files.extractfile(entry)):
                        return content.read().decode()
    raise sbom.Invalid(f"{archive.name}: no layer has /{_LISTED}: the Dockerfile is to run images/sbom.py")


def _of(source: Source, image: Image, base: str | None) -> Image:
    name = f"{image.name.rpartition(':')[0]}:{source.version}"
    return replace(image, name=name, arguments={**image.arguments, **({"BASE": base} if base else {})})

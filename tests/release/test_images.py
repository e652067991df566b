"""Images of a release: where none can be built that is said, and each carries the SBOM that lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from e2e.cluster import oci
from e2e.cluster.images import ROOT, Builder, Image
from scripts.release import images
from scripts.release.source import Refused, Source

SOURCE = Source(ROOT, "1.2.3", "c" * 40, 1_700_000_000)
LIST = '{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}'


@pytest.mark.parametrize(
    ("found", "user", "base", "words"),
    [
        ({"debootstrap"}, 0, None, "images need buildah: `apt-get install buildah`"),
        ({"buildah"}, 0, None, "images need debootstrap"),
        ({"buildah"}, 7, "debian@sha256:0", "images are built as root, and this is another user"),
    ],
)
def test_a_machine_that_cannot_build_images_is_told_how_to_do_without(
    found: set[str], user: int, base: str | None, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        images.require(lambda name: name if name in found else None, lambda: user, base)
    assert str(refused.value).startswith(words)
    assert str(refused.value).splitlines()[1:] == ["`make release IMAGES=no` makes the rest"]


def test_a_base_that_is_given_needs_no_debootstrap() -> None:
    images.require(lambda name: name if name == "buildah" else None, lambda: 0, "debian@sha256:0")


class Recorder:
    """Stands for the builder, which e2e/cluster tries for real: writes what it is told to, and notes it."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files
        self.built: list[tuple[Image, Path, int]] = []

    def rebuild(self, image: Image, context: Path, epoch: int, archive: Path) -> None:
        self.built.append((image, context, epoch))
        oci.write(archive, image.name, oci.Content(files=self.files), {})


def test_each_image_lies_beside_the_list_that_it_carries(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(LIST)
    output = tmp_path / "out"
    output.mkdir()
    recorder = Recorder({"/sbom.cdx.json": tmp_path / "list"})
    images.build(SOURCE, ROOT, output, cast(Builder, recorder), base="debian@sha256:0")
    assert [(image.name, context, epoch) for image, context, epoch in recorder.built] == [
        (f"docker.io/kvserving/operator:{SOURCE.version}", ROOT, SOURCE.epoch),
        (f"docker.io/kvserving/connector:{SOURCE.version}", ROOT, SOURCE.epoch),
    ]
    assert {image.arguments["BASE"] for image, _, _ in recorder.built} == {"debian@sha256:0"}
    archives = sorted(output.glob("*.tar"))
    assert [path.name.rpartition("-")[0] for path in archives] == [
        "kvserving-connector-image-1.2.3",
        "kvserving-operator-image-1.2.3",
    ]
    assert [path.with_name(f"{path.name}.cdx.json").read_text() for path in archives] == [LIST, LIST]
    assert len(list(output.iterdir())) == 4


def test_an_image_without_a_list_or_with_a_wrong_one_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (tmp_path / "list").write_text(LIST)
    with pytest.raises(ValueError, match=r"no layer has /sbom\.cdx\.json: the Dockerfile is to run images/sbom\.py"):
        images.build(SOURCE, ROOT, output, cast(Builder, Recorder({"/other": tmp_path / "list"})))
    (tmp_path / "list").write_text("{}")
    with pytest.raises(ValueError, match=r"of docker\.io/kvserving/operator:\S+ is no CycloneDX"):
        images.build(SOURCE, ROOT, output, cast(Builder, Recorder({"/sbom.cdx.json": tmp_path / "list"})))

"""The lane's own parts, without a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import build, cgroups, images, lane, objects, oci, packages
from e2e.cluster.images import ROOT
from e2e.cluster.lane import exports
from e2e.cluster.packages import PackagesMissing
from e2e.controlplane import build as plane_build
from e2e.controlplane.api import Api, Json
from e2e.controlplane.build import ProgramsMissing, go_version
from tests.chart import programs

SBOM = ROOT / "images" / "sbom.py"


def test_what_lacks_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    lacking = packages.missing(lambda name: None if name in ("runc", "ctr") else f"/usr/bin/{name}", tmp_path)
    assert lacking == ["containerd", "containernetworking-plugins", "runc"]
    with pytest.raises(PackagesMissing, match="apt-get install --no-install-recommends containerd runc`"):
        packages.require({}, find=lambda: ["containerd", "runc"])


@pytest.mark.parametrize("wish", [{packages.INSTALL: "1"}, {"CI": "true"}], ids=["asked for", "in CI"])
def test_packages_are_installed_where_that_is_wished(wish: dict[str, str]) -> None:
    lacking = ["runc"]
    said: list[str] = []
    packages.require(wish, find=lambda: list(lacking), install=lambda names: lacking.clear(), say=said.append)
    assert said == ["cluster: apt-get install --no-install-recommends runc"]
    with pytest.raises(PackagesMissing, match="still these lack: runc"):
        packages.require(wish, find=lambda: ["runc"], install=lambda names: None, say=said.append)


def test_without_go_the_node_is_not_built_and_the_version_to_install_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramsMissing, match=rf"install Go {re.escape(go_version())} or newer"):
        build.programs({"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)})


def test_the_page_names_the_version_of_go_that_is_needed() -> None:
    wanted = go_version().removesuffix(".0")
    assert f"Go {wanted} " in (ROOT / "docs" / "cluster-lane.md").read_text()
    for module in build.SOURCES.glob("*/go.mod"):
        assert f"\ngo {wanted}" in module.read_text(), module


def test_a_cluster_is_made_with_the_images_of_this_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[images.Image] = []

    def archive(self: images.Builder, image: images.Image) -> Path:
        asked.append(image)
        return Path(image.name)

    monkeypatch.setattr(images.Builder, "archive", archive)
    for module, name in (
        (packages, "require"), (build, "programs"), (plane_build, "programs"), (plane_build, "kubectl"),
        (programs, "program"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *_, **__: Path())
    made = lane.make()
    assert made.archives == {image.name: Path(image.name) for image in asked}
    assert asked == [images.OPERATOR, images.CONNECTOR, images.ROUTER, images.STORE]


def test_a_shell_that_reads_the_exports_uses_the_cluster_and_keeps_its_programs(tmp_path: Path) -> None:
    folders = [tmp_path / "with a space", tmp_path / "helm's"]
    for name, folder in zip(("kubectl", "helm"), folders, strict=True):
        folder.mkdir()
        (folder / name).write_text('#!/bin/sh\necho "$KUBECONFIG"\n')
        (folder / name).chmod(0o755)
    file = tmp_path / "env"
    file.write_text(exports(tmp_path / "kube config", folders))
    command = ["sh", "-c", '. "$0" && kubectl && helm && cat "$0"', str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[:2] == [str(tmp_path / "kube config")] * 2
    assert done.stdout.endswith(file.read_text())


class Volumes(Api):
    """Answers as the controller of volumes that has not seen a volume yet, then has."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def apply(self, obj: Mapping[str, Any], *, manager: str = "tests", force: bool = True, **query: object) -> Json:
        self.done.append(obj["kind"])
        return dict(obj)

    def wait(
        self, path: str, condition: Callable[[Json | None], bool], *, what: str, timeout: float = 30
    ) -> Json | None:
        states: list[Json | None] = [None, {}, *({"status": {"phase": name}} for name in ("Pending", "Available"))]
        self.done += [path, *(str(state) for state in states if condition(state))]
        assert condition({"status": {"phase": "Bound"}})
        return None


def test_a_claim_is_made_when_its_volume_is_available_and_is_waited_for_until_it_is_bound(tmp_path: Path) -> None:
    api = Volumes()
    objects.bind(api, "default", "models", tmp_path)
    assert api.done == [
        "PersistentVolume",
        "/api/v1/persistentvolumes/default-models",
        "{'status': {'phase': 'Available'}}",
        "PersistentVolumeClaim",
        "/api/v1/namespaces/default/persistentvolumeclaims/models",
    ]


def test_hierarchies_are_those_of_both_versions() -> None:
    first = "30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
    second = "31 23 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    other = "32 23 0:28 / /tmp rw - tmpfs tmpfs rw"
    assert cgroups.hierarchies(f"{first}\n{second}\n{other}\n") == [
        Path("/sys/fs/cgroup/cpu"),
        Path("/sys/fs/cgroup/unified"),
    ]
    assert cgroups.hierarchies(f"{second}\n{other}\n") == [Path("/sys/fs/cgroup/unified")]


def test_an_image_holds_what_is_named_and_is_the_same_each_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"text")
    content = oci.Content(files={"/bin/program": program}, folders=["/a/b", "/tmp"], links={"/lib": "usr/lib"})
    made = [tmp_path / "one.tar", tmp_path / "two.tar"]
    for archive in made:
        oci.write(archive, "localhost/it:1", content, {"Entrypoint": ["/bin/program"]})
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as image:

        def blob(digest: str) -> bytes:
            found = image.extractfile(f"blobs/sha256/{digest.partition(':')[2]}")
            assert found is not None
            return found.read()

        index = image.extractfile("index.json")
        assert index is not None
        [listed] = json.load(index)["manifests"]
        assert listed["annotations"]["io.containerd.image.name"] == "localhost/it:1"
        manifest = json.loads(blob(listed["digest"]))
        assert json.loads(blob(manifest["config"]["digest"]))["config"] == {"Entrypoint": ["/bin/program"]}
        layer = tmp_path / "layer.tar"
        layer.write_bytes(blob(manifest["layers"][0]["digest"]))
    with tarfile.open(layer) as tar:
        modes = {entry.name: entry.mode for entry in tar}
        assert set(modes) == {"a", "a/b", "bin", "tmp", "lib", "bin/program"}
        assert (modes["tmp"], modes["bin/program"]) == (0o1777, 0o755)
        assert tar.getmember("lib").linkname == "usr/lib"


def test_the_list_of_contents_names_every_python_distribution_and_the_debian_packages_asked_for(tmp_path: Path) -> None:
    for name, licence in (("One_Two", "License-Expression: MIT\n"), ("other", "")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{licence}")
    status = tmp_path / "status"
    status.write_text(
        "Package: cp\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.0+b1\n"
        "Description: copies\n more: words\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
        "Package: sh\nStatus: install ok installed\nArchitecture: all\nVersion: 3\n"
    )
    output = tmp_path / "sbom.json"
    release = tmp_path / "os-release"
    release.write_text('NAME="Ubuntu"\nID=ubuntu\n')
    command = [
        sys.executable,
        str(SBOM),
        "--name=it",
        "--version=1",
        f"--path={tmp_path}",
        f"--output={output}",
        f"--release={release}",
    ]
    subprocess.run([*command, "--package=cp", f"--status={status}"], check=True, timeout=60)
    found = json.loads(output.read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert [component["purl"] for component in found["components"]] == [
        "pkg:deb/ubuntu/cp@1%3A2.0%2Bb1?arch=amd64",
        "pkg:pypi/one-two@1.0",
        "pkg:pypi/other@1.0",
    ]
    assert [component.get("licenses") for component in found["components"]][1] == [{"license": {"name": "MIT"}}]
    subprocess.run([*command, "--packages", f"--status={status}"], check=True, timeout=60)
    names = [component["name"] for component in json.loads(output.read_text())["components"]]
    assert names == ["cp", "sh", "one-two", "other"]
    missing = subprocess.run(
        [*command, "--package=gone", f"--status={status}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert missing.returncode == 1
    assert "--package gone is not installed" in missing.stderr

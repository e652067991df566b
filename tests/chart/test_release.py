"""A release's chart: what helm would pack, what the manifests were rendered from, made of a tagged commit alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from scripts.release import __main__ as program
from scripts.release import archives, charts, versions
from tests.chart.charts import CHART, NAME, ROOT, Helm
from tests.release.copies import commit, git, released_changelog, whole

VERSION = versions.current(ROOT)
INSTALL = ROOT / "deploy/install.yaml"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    file = tmp_path / "chart.tgz"
    archives.write_tgz(file, CHART, NAME, 1)
    return file


def test_the_packed_chart_is_what_helm_packs(helm: Helm, packed: Path, tmp_path: Path) -> None:
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    ours, helms = archives.members(packed), archives.members(tmp_path / f"{NAME}-{VERSION}.tgz")
    assert ours.keys() == helms.keys()
    # Helm writes this one anew, with its keys in another order.
    told = f"{NAME}/Chart.yaml"
    assert {name for name in ours if ours[name] != helms[name]} <= {told}
    assert yaml.safe_load(ours[told]) == yaml.safe_load(helms[told])


def test_a_chart_that_renders_other_manifests_or_that_helm_refuses_is_refused(
    helm: Helm, packed: Path, tmp_path: Path
) -> None:
    charts.check(packed, INSTALL)
    other = tmp_path / "install.yaml"
    other.write_text(INSTALL.read_text().replace("replicas: 2", "replicas: 3"))
    with pytest.raises(charts.Unlike, match=r"install\.yaml is not what chart\.tgz renders: run `make bundle`"):
        charts.check(packed, other)
    packed.write_bytes(b"")
    with pytest.raises(charts.Unlike, match=r"helm refuses chart\.tgz: "):
        charts.check(packed, INSTALL)


def test_a_tagged_commit_is_released_and_released_again_with_the_same_bytes(
    helm: Helm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = whole(tmp_path / "repository")
    released_changelog(root)
    commit(root)
    git(root, "tag", f"v{VERSION}")
    assert program.main(["build", "--no-images"], root) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("release: images are left out; build them where root and buildah are")
    assert "nothing is published" in printed
    folder = root / "build/release" / VERSION
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    shown = helm.run("show", "chart", str(folder / f"{NAME}-{VERSION}.tgz")).splitlines()
    assert f"version: {VERSION}" in shown
    first = folder.rename(tmp_path / "first")
    assert program.main(["build", "--no-images"], root) == 0
    assert archives.differing(first, folder) == []

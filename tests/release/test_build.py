"""A release of this checkout, without its images: the same bytes twice, and in them what they are named for."""

from __future__ import annotations

import hashlib
import re
import subprocess
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml
from scripts.release import __main__ as program
from scripts.release import archives, charts, check, images, parts, source, versions
from tests.release.copies import ROOT, commit, git, released_changelog, whole

VERSION = versions.current(ROOT)
CHART = f"kvserving-operator-{VERSION}.tgz"
MADE = {
    CHART,
    f"kvserving-crds-{VERSION}.yaml",
    f"kvserving-install-{VERSION}.yaml",
    f"kvserving_connector-{VERSION}-py3-none-any.whl",
    f"kvserving_operator-{VERSION}-py3-none-any.whl",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("release")
    assert program.main(["build", "--trial", "--no-images", f"--output={output}"]) == 0
    return output / VERSION


def test_two_builds_of_this_checkout_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["check", "--no-images"]) == 0
    printed = capsys.readouterr()
    count = len(MADE) * 2 + 1
    assert f"release: {count} of {count} files are the same in two builds" in printed.out
    assert "images are left out" in printed.out
    assert printed.err == ""


def test_a_wheel_with_the_times_of_its_files_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = whole(tmp_path)
    with (root / "connector/pyproject.toml").open("a") as file:
        file.write("\n[tool.hatch.build]\nreproducible = false\n")
    commit(root)
    assert program.main(["check", "--no-images"], root) == 1
    told = capsys.readouterr().err.splitlines()
    wheel = f"kvserving_connector-{VERSION}-py3-none-any.whl"
    assert [line.split(":")[1].strip() for line in told] == [parts.SUMS, wheel, f"{wheel}.cdx.json"]


def test_each_artefact_has_its_list_and_all_have_checksums(made: Path) -> None:
    names = {path.name for path in made.iterdir()}
    assert names == MADE | {f"{name}.cdx.json" for name in MADE} | {parts.SUMS}
    lines = (made / parts.SUMS).read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == names - {parts.SUMS}
    assert lines == sorted(lines, key=lambda line: line.split("  ")[1])
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest
    subprocess.run(["sha256sum", "--check", "--strict", parts.SUMS], cwd=made, check=True, capture_output=True)
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {0o644}


@pytest.mark.parametrize("name", ["operator", "connector"])
def test_a_wheel_has_its_whole_package_its_licence_and_no_other_file(made: Path, name: str) -> None:
    [file] = made.glob(f"kvserving_{name}-*.whl")
    found = archives.members(file)
    info = f"kvserving_{name}-{VERSION}.dist-info"
    source = ROOT / name / "src"
    package = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not re.search(r"\.egg-info/", str(path))
    }
    rest = found.keys() - package
    assert package <= found.keys()
    assert rest == {f"{info}/{one}" for one in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert found[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    metadata = HeaderParser().parsestr(found[f"{info}/METADATA"].decode())
    assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "Apache-2.0")
    with zipfile.ZipFile(file) as opened:
        assert len({entry.date_time for entry in opened.infolist()}) == 1


def test_the_manifests_are_those_of_the_checkout(made: Path) -> None:
    assert (made / f"kvserving-install-{VERSION}.yaml").read_text() == (ROOT / "deploy/install.yaml").read_text()
    written = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert list(yaml.safe_load_all((made / f"kvserving-crds-{VERSION}.yaml").read_text())) == written


def test_a_wheel_that_does_not_build_is_told_with_its_builders_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = whole(tmp_path)
    file = root / "connector/pyproject.toml"
    file.write_text(file.read_text().replace('name = "kvserving-connector"', "name = 7"))
    commit(root)
    assert program.main(["build", "--trial", "--no-images"], root) == 1
    told = capsys.readouterr().err
    assert told.startswith("release: the wheel of connector/ was not built (")
    assert "name" in told.splitlines()[-1]
    assert not (root / "build").exists()


def test_what_may_not_be_released_is_refused_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = whole(tmp_path)
    commit(root)
    monkeypatch.setattr(parts, "build", lambda *_: pytest.fail("it was built"))
    assert program.main(["build", "--no-images"], root) == 1
    told = capsys.readouterr().err
    assert f"release: this commit has no tag: `git tag --annotate v{VERSION}`" in told


def test_the_version_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = whole(tmp_path)
    assert program.main(["version"], root) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    assert program.main(["version", "12.0.0"], root) == 0
    assert f"release: 12.0.0 in {versions.TRUTH}" in capsys.readouterr().out
    assert versions.current(root) == "12.0.0"
    assert program.main(["version", "12"], root) == 1
    assert capsys.readouterr().err.startswith("release: '12' is no version")


def test_two_builds_are_in_other_surroundings() -> None:
    one, other = check.PAIR
    assert one.environ.keys() == other.environ.keys() == {"TZ", "LC_ALL", "PYTHONHASHSEED"}
    assert all(one.environ[name] != other.environ[name] for name in one.environ)
    assert one.folder != other.folder
    assert one.umask != other.umask
    assert one.files_from != other.files_from


def test_another_tree_than_the_commits_is_no_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["build", "--no-images", f"--tree={tmp_path}"]) == 1
    assert "--tree is for a trial alone" in capsys.readouterr().err
    assert program.main(["build", "--no-images", "--commit=HEAD~1"]) == 1
    assert "--commit is for a trial alone" in capsys.readouterr().err


def test_a_release_holds_what_its_commit_holds_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = whole(tmp_path)
    released_changelog(root)
    commit(root)
    git(root, "tag", f"v{VERSION}")
    package = root / "operator/src/kvserving_operator"
    before = (package / "reasons.py").read_bytes()
    git(root, "update-index", "--assume-unchanged", str(package / "reasons.py"))
    (package / "reasons.py").write_bytes(before + b"changed = True\n")
    # Ignored by this checkout alone, so that its status names it nowhere.
    (root / ".git/info/exclude").write_text("stray.py\n")
    (package / "stray.py").touch()
    built: list[tuple[bool, bytes]] = []

    def build(found: source.Source, tree: Path, *_: object) -> None:
        inside = tree / "operator/src/kvserving_operator"
        built.append(((inside / "stray.py").exists(), (inside / "reasons.py").read_bytes()))

    # Helm is not everywhere; that what it renders is compared is tried with the chart.
    monkeypatch.setattr(charts, "check", lambda *_: None)
    monkeypatch.setattr(images, "require", lambda base: None)
    monkeypatch.setattr(images, "build", build)
    assert program.main(["build"], root) == 0
    assert built == [(False, before)]
    [wheel] = (root / "build/release" / VERSION).glob("kvserving_operator-*.whl")
    found = archives.members(wheel)
    assert found["kvserving_operator/reasons.py"] == before
    assert "kvserving_operator/stray.py" not in found

"""Finding and building the control plane's programs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from e2e.controlplane import build
from e2e.controlplane.build import BuildFailed, Programs, ProgramsMissing

ROOT = Path(__file__).parents[3]


def fake_compile(name: str, package: str, output: Path, flags: str) -> None:
    output.write_text(f"{name} {package} {flags}")
    output.chmod(0o755)


def test_builds_into_the_cache_folder_outside_the_repository(tmp_path: Path) -> None:
    said: list[str] = []
    found = build.programs({"XDG_CACHE_HOME": str(tmp_path)}, say=said.append, compile_one=fake_compile)
    folder = build.cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "kvserving" / "controlplane"
    assert found == Programs(folder / "etcd", folder / "kube-apiserver", folder / "kube-controller-manager")
    assert "k8s.io/kubernetes/cmd/kube-apiserver" in found.apiserver.read_text()
    assert "version.gitVersion=v1." in found.apiserver.read_text()
    assert sum("built in" in line for line in said) == 3


def test_the_default_cache_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_folder({}).is_relative_to(tmp_path / ".cache" / "kvserving" / "controlplane")


def test_a_second_call_builds_nothing(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    build.programs(environ, say=lambda _: None, compile_one=fake_compile)

    def never(name: str, package: str, output: Path, flags: str) -> None:
        raise AssertionError(f"{name} was built again")

    build.programs(environ, say=lambda _: None, compile_one=never)


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_a_change_of_the_module_builds_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    before = build.cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    for name in ("go.mod", "go.sum"):
        text = (build.MODULE / name).read_text()
        (tmp_path / name).write_text(text + ("// changed\n" if name == file else ""))
    monkeypatch.setattr(build, "MODULE", tmp_path)
    assert build.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) != before


def test_kubectl_is_built_once_for_who_asks_and_the_control_plane_does_not_wait_for_it(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    said: list[str] = []
    found = build.kubectl(environ, say=said.append, compile_one=fake_compile)
    assert "k8s.io/kubernetes/cmd/kubectl" in found.read_text()
    assert not build.cache_folder(environ).exists()
    programs = build.programs(environ, say=said.append, compile_one=fake_compile)
    assert not programs.etcd.with_name("kubectl").exists()
    assert build.kubectl(environ, say=said.append, compile_one=fake_compile) == found
    assert sum("built in" in line for line in said) == 4


def test_without_go_the_kubectl_of_the_path_is_taken_and_without_both_the_way_out_is_named(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    with pytest.raises(ProgramsMissing, match=r"no kubectl: install Go 1\.\d+"):
        build.kubectl(environ)
    there = tmp_path / "kubectl"
    there.touch(mode=0o755)
    assert build.kubectl(environ) == there


def test_an_interrupted_build_is_not_taken_for_complete(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}

    def interrupted(name: str, package: str, output: Path, flags: str) -> None:
        if name == "kube-controller-manager":
            raise BuildFailed("out of memory")
        fake_compile(name, package, output, flags)

    with pytest.raises(BuildFailed, match="out of memory"):
        build.programs(environ, say=lambda _: None, compile_one=interrupted)
    assert not build.cache_folder(environ).exists()
    found = build.programs(environ, say=lambda _: None, compile_one=fake_compile)
    assert found.controller_manager is not None
    assert found.controller_manager.exists()
    assert [p.name for p in found.etcd.parent.parent.glob("*.building")] == []


def test_a_build_that_goes_on_says_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TELL_SECONDS", 0.01)
    said: list[str] = []
    told = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if re.fullmatch(r"control plane: kubectl: \d+ s so far", line):
            told.set()

    def slow(name: str, package: str, output: Path, flags: str) -> None:
        assert told.wait(10), said
        fake_compile(name, package, output, flags)

    build.kubectl({"XDG_CACHE_HOME": str(tmp_path)}, say=say, compile_one=slow)
    assert "built in" in said[-1]


def test_a_build_that_fails_ends_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TELL_SECONDS", 0.01)
    before = threading.active_count()
    with pytest.raises(BuildFailed, match="no space"), build.telling(lambda _: None, "it"):
        raise BuildFailed("no space")
    assert threading.active_count() == before


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    built: list[str] = []
    said: list[str] = []
    first_is_in, second_waits = threading.Event(), threading.Event()

    def slow(name: str, package: str, output: Path, flags: str) -> None:
        built.append(name)
        first_is_in.set()
        assert second_waits.wait(10), "the second builder did not wait"
        fake_compile(name, package, output, flags)

    def say(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            second_waits.set()

    first = threading.Thread(target=build.programs, args=(environ,), kwargs={"say": say, "compile_one": slow})
    first.start()
    assert first_is_in.wait(10)
    build.programs(environ, say=say, compile_one=slow)
    first.join()
    assert built == list(build.PACKAGES)


def test_given_programs_are_used_as_they_are(tmp_path: Path) -> None:
    for name in ("etcd", "kube-apiserver"):
        fake_compile(name, "", tmp_path / name, "")
    found = build.programs({"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert found == Programs(tmp_path / "etcd", tmp_path / "kube-apiserver", None)


def test_a_given_folder_without_a_program_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ProgramsMissing, match=r"KUBEBUILDER_ASSETS.*no program etcd"):
        build.programs({"KUBEBUILDER_ASSETS": str(tmp_path)})


def test_without_go_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ProgramsMissing) as error:
        build.programs({"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert "install Go 1." in str(error.value)
    assert "KUBEBUILDER_ASSETS" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ci", [False, True], ids=["laptop", "ci"])
def test_without_go_the_lane_is_skipped_but_never_in_ci(tmp_path: Path, ci: bool, workers: int) -> None:
    test = Path(__file__).with_name("test_controlplane.py")
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path), **({"CI": "true"} if ci else {})}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-n",
            str(workers),
            "-k",
            "starts_within",
            str(test),
        ],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    line = "the control plane needs Go to build it once"
    if ci:
        assert done.returncode == 1, done.stdout
        assert f"CI never skips the control-plane tests: {line}" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout
        assert f"control-plane tests are skipped: {line}" in done.stdout
        assert "1 skipped" in done.stdout.splitlines()[-1]


def test_a_failed_compiler_is_reported_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'cannot find module' >&2\nexit 3\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BuildFailed, match=r"(?s)go build of etcd ended with 3.*cannot find module"):
        build.programs({"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path)}, say=lambda _: None)

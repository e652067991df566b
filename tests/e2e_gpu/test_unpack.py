"""``e2e/gpu/unpack.sh`` with archives that hold next to nothing, and what it and ``pack.sh`` say of what they lack."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "e2e" / "gpu" / "unpack.sh"
PACK = SCRIPT.with_name("pack.sh")


def archive(folder: Path, name: str, files: dict[str, str]) -> None:
    with tarfile.open(folder / name, "w:xz") as packed:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{digest}  {name}\n")


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    about = {"nixl.py": "", "smg.py": "", "smg-1.dist-info/METADATA": "Name: smg\nVersion: 1\n"}
    archive(folder, "common.tar.xz", about)
    for version, more in (("1.0", {"vllm/same.py": "SAME = 1\n"}), ("0.9", {".same": "vllm/same.py\n"})):
        own = {
            "vllm/__init__.py": f"V = {version!r}\n",
            f"vllm-{version}.dist-info/METADATA": f"Name: vllm\nVersion: {version}\n",
        }
        archive(folder, f"vllm-{version}.tar.xz", own | more)
    return folder


def unpack(parts: Path, version: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, **more}
    words = ["bash", str(SCRIPT), str(parts), str(parts.parent / "out"), version]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)


def said(python: str, program: str) -> str:
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout


def test_two_versions_share_what_is_the_same_and_each_environment_has_its_own(parts: Path) -> None:
    whole = (parts / "vllm-1.0.tar.xz").read_bytes()
    (parts / "vllm-1.0.tar.xz").unlink()
    for number in range(3):
        (parts / f"vllm-1.0.tar.xz.0{number}").write_bytes(
            whole[number * 100 : (number + 1) * 100 if number < 2 else None]
        )
    first = unpack(parts, "1.0")
    assert first.returncode == 0, first.stderr
    second = unpack(parts, "0.9", BASE="1.0")
    assert second.returncode == 0, second.stderr
    for done, version in ((first, "1.0"), (second, "0.9")):
        python = done.stdout.splitlines()[-1]
        assert said(python, "import vllm, vllm.same; print(vllm.V, vllm.same.SAME)") == f"{version} 1\n"
        assert "'kvserving'" in said(
            python,
            "import importlib.metadata as m; print([e.name for e in m.entry_points(group='vllm.general_plugins')])",
        )


def test_a_damaged_archive_is_refused(parts: Path) -> None:
    with (parts / "common.tar.xz").open("ab") as packed:
        packed.write(b"more")
    done = unpack(parts, "1.0")
    assert done.returncode != 0
    assert "common.tar.xz: FAILED" in done.stdout + done.stderr


def test_a_piece_that_was_damaged_can_come_again(parts: Path) -> None:
    whole = (parts / "common.tar.xz").read_bytes()
    (parts / "common.tar.xz").unlink()
    (parts / "common.tar.xz.00").write_bytes(whole[:50])
    (parts / "common.tar.xz.01").write_bytes(whole[50:-1])
    assert unpack(parts, "1.0").returncode != 0
    (parts / "common.tar.xz.01").write_bytes(whole[50:])
    done = unpack(parts, "1.0")
    assert done.returncode == 0, done.stderr


def test_a_version_that_needs_another_one_says_so(parts: Path) -> None:
    done = unpack(parts, "0.9")
    assert done.returncode != 0
    assert "vllm-0.9.tar.xz has files from another version: name it by BASE" in done.stderr


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("common.tar.xz", "no common.tar.xz in {parts}: pack.sh FOLDER 1.0 makes it"),
        ("vllm-1.0.tar.xz", "no vllm-1.0.tar.xz in {parts}: pack.sh FOLDER 1.0 makes it"),
        (
            "SHA256SUMS",
            "no line for common.tar.xz in {parts}/SHA256SUMS: pack.sh FOLDER 1.0 makes it beside the archives",
        ),
    ],
)
def test_what_the_folder_lacks_is_named_and_how_it_is_made(parts: Path, lost: str, said: str) -> None:
    (parts / lost).unlink()
    done = unpack(parts, "1.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"unpack.sh: {said.format(parts=parts)}\n"


def test_what_was_unpacked_needs_no_archive_again(parts: Path) -> None:
    assert unpack(parts, "1.0").returncode == 0
    (parts / "common.tar.xz").unlink()
    done = unpack(parts, "1.0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("1", "KVCACHED=1: no kvcached-*.tar.gz in "),
        (
            "/usr/bin/python3",
            "KVCACHED=/usr/bin/python3: takes 0 or 1; the interpreter of the sources is KVCACHED_PYTHON",
        ),
    ],
)
def test_kvcached_is_not_built_of_nothing(parts: Path, given: str, said: str) -> None:
    done = unpack(parts, "1.0", KVCACHED=given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"unpack.sh: {said}")


def pack(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script where there is no program but those that it needs before it says what it lacks."""
    bash, programs = shutil.which("bash"), folder / "programs"
    assert bash is not None
    programs.mkdir()
    return subprocess.run(
        [bash, str(PACK), *words],
        env={"PATH": str(programs), **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_packing_says_what_it_takes(tmp_path: Path) -> None:
    done = pack(tmp_path, str(tmp_path / "parts"))
    assert done.returncode == 2
    assert done.stderr == (
        "pack.sh: takes a folder and one or two versions of vLLM: pack.sh FOLDER VERSION [VERSION], "
        "such as pack.sh parts 0.33.0\n"
    )


def test_packing_says_which_program_is_missing(tmp_path: Path) -> None:
    done = pack(tmp_path, str(tmp_path / "parts"), "0.33.0")
    assert done.returncode == 2
    assert done.stderr.startswith("pack.sh: no program uv on PATH: install it")
    assert not (tmp_path / "parts").exists()


def test_packing_refuses_the_variable_of_unpacking(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = pack(tmp_path, str(tmp_path / "parts"), "0.33.0", KVCACHED="1", PATH=path)
    assert done.returncode == 2
    assert "name an interpreter that has torch and setuptools as KVCACHED_PYTHON" in done.stderr
    assert not (tmp_path / "parts").exists()

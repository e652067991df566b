"""``e2e/gpu/one_gpu.py`` on a library that is nothing but sections."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "e2e" / "gpu" / "one_gpu.py"
HEADER = 64


def code(kind: int, architecture: int, payload: bytes) -> bytes:
    """One piece of a container: its header, in which the architecture is at byte 28, and what the driver loads."""
    return struct.pack("<HHIQ", kind, 0x101, HEADER, len(payload)).ljust(28, b"\0") + (
        struct.pack("<I", architecture).ljust(HEADER - 28, b"\0") + payload
    )


def container(*pieces: bytes) -> bytes:
    whole = b"".join(pieces)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(whole)) + whole


def library(sections: dict[str, bytes]) -> bytes:
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    body, rows = b"", []
    for name, content in {**sections, ".shstrtab": names}.items():
        rows.append(
            struct.pack("<IIQQQQ", names.index(name.encode()), 1, 0, 0, 64 + len(body), len(content)) + bytes(24)
        )
        body += content + bytes(-len(content) % 8)
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(rows), len(rows) - 1)
    return head + body + b"".join(rows)


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, "90", path], capture_output=True, text=True, check=False, timeout=60)


def test_code_for_one_architecture_stays_and_all_else_is_as_it_was(tmp_path: Path) -> None:
    def made(keep: bytes, other: bytes, text: bytes) -> bytes:
        first = container(code(2, 80, other), code(2, 90, keep), code(1, 90, text))
        second = container(code(2, 90, keep), code(2, 120, other))
        return library({".text": other, ".nv_fatbin": first + bytes(24) + second, ".nvFatBinSegment": other})

    path = tmp_path / "lib.so"
    path.write_bytes(made(b"K" * 40, b"O" * 24, b"P" * 16))
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert "80 bytes of code for 90 kept, 64 for others zeroed" in done.stdout
    found = path.read_bytes()
    assert found.count(b"K" * 40) == 2
    assert found.count(b"O" * 24) == 2, "sections of another name are touched, or code for others is left"
    assert b"P" * 16 not in found
    assert len(found) == len(made(b"K" * 40, b"O" * 24, b"P" * 16))


def test_what_is_no_library_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_bytes(b"INPUT(libother.so)" * 10)
    done = run(path)
    assert done.returncode != 0
    assert "no ELF library" in done.stderr
    assert path.read_bytes() == b"INPUT(libother.so)" * 10

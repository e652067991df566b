"""Zero the code for other GPUs in CUDA libraries, which pack to a fourth then: ``one_gpu.py ARCHITECTURE LIBRARY...``.

A library's ``.nv_fatbin`` sections hold containers of code for several architectures, each behind a header that says
which. The headers stay, and the driver takes the code of its own GPU as before; a kernel without any fails when it is
first launched. PTX is zeroed, too. The form is that of ``fatbinary`` of CUDA 13, read from what it makes.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterator

CONTAINER = 0xBA55ED50
MACHINE_CODE = 2
_KINDS = (1, MACHINE_CODE, 4, 8, 16, 64)


def main() -> int:
    """Zero in every library; return the exit status."""
    architecture = int(sys.argv[1])
    for path in sys.argv[2:]:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as library:
            kept = zeroed = 0
            for kind, made_for, at, size in entries(library):
                if kind == MACHINE_CODE and made_for == architecture:
                    kept += size
                else:
                    library[at : at + size] = bytes(size)
                    zeroed += size
        if kept + zeroed:
            print(f"{path}: {kept:,} bytes of code for {architecture} kept, {zeroed:,} for others zeroed")
    return 0


def entries(library: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, architecture, place and size of every piece of code. Raises ValueError for another form."""
    if library[:4] != b"\x7fELF":
        raise ValueError("no ELF library")
    for start, size in _sections(library, b".nv_fatbin"):
        at = start
        while at < start + size:
            magic, _, header, length = struct.unpack_from("<IHHQ", library, at)
            if magic != CONTAINER:
                at += 8
                continue
            piece, at = at + header, at + header + length
            while piece < at:
                kind, _, header, length = struct.unpack_from("<HHIQ", library, piece)
                if kind not in _KINDS:
                    raise ValueError(f"code of the unknown kind {kind} at {piece:#x}")
                (made_for,) = struct.unpack_from("<I", library, piece + 28)
                yield kind, made_for, piece + header, length
                piece += header + length


def _sections(library: mmap.mmap, prefix: bytes) -> Iterator[tuple[int, int]]:
    (table,) = struct.unpack_from("<Q", library, 0x28)
    each, count, names = struct.unpack_from("<HHH", library, 0x3A)
    found = [struct.unpack_from("<IIQQQQ", library, table + number * each) for number in range(count)]
    for name, _, _, _, offset, size in found:
        label = found[names][4] + name
        if library[label : label + len(prefix)] == prefix:
            yield offset, size


if __name__ == "__main__":
    sys.exit(main())

"""Objects of a store of files with other KV in them: damaged, or wrong under a right checksum."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

_LEAST = 4096
"""Smaller files tell people what a namespace is for, or belong to the sweeper."""
_SCRIPT = """
import sys
from pathlib import Path
from blake3 import blake3
import numpy as np
from kvserving_connector.store.framing import HEADER_BYTES, _FIELDS
for path in map(Path, sys.argv[1:]):
    data = path.read_bytes()
    fields = list(_FIELDS.unpack_from(data))
    body = np.frombuffer(data[HEADER_BYTES:], np.float32)[::-1].tobytes()
    fields[-1] = blake3(body).digest()
    path.write_bytes(_FIELDS.pack(*fields) + data[_FIELDS.size:HEADER_BYTES] + body)
"""


def objects(folder: Path) -> set[Path]:
    """Return the files of the objects below ``folder``."""
    return {path for path in folder.rglob("*") if path.is_file() and path.stat().st_size >= _LEAST}


def damage(paths: Iterable[Path]) -> None:
    """Change one byte of each body."""
    for path in paths:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def exchange(paths: Iterable[Path], engine_python: str, connector: Path) -> None:
    """Put the numbers of each body in another order, under a checksum that fits: what no check can find."""
    subprocess.run(
        [engine_python, "-c", _SCRIPT, *map(str, paths)], check=True, env={"PYTHONPATH": str(connector)}, timeout=60
    )

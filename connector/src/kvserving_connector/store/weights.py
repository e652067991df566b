"""A fingerprint of model files: what a name or path alone does not say.

Two models of one shape under one path would otherwise share objects. Sizes and samples are read, not whole files:
training changes nearly every page of a tensor that it touches, and every tensor is sampled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_WHOLE_BYTES = 2**20
_LONGEST_HEADER = 2**27


def fingerprint(folder: Path) -> str:
    """Return a hex digest over names, sizes and samples of the model files in ``folder``; '' when there are none.

    Small files (configuration) are read whole. Equal on every machine for equal files. Raises OSError when a file
    cannot be read.
    """
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file())
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                digest.update(file.read())
            else:
                offsets = [(size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
                for offset in (*offsets, *_tensors(file.fileno(), size)):
                    digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest() if paths else ""


def _tensors(file: int, size: int) -> Iterator[int]:
    """Yield an offset inside each tensor of a safetensors file; none for files of other kinds.

    The file begins with the length of a JSON object (8 bytes, little endian) that has each tensor's first byte and
    the byte behind its last, counted from the end of that object.
    """
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    if not 0 < length <= min(_LONGEST_HEADER, size - 8):
        return
    try:
        header = json.loads(os.pread(file, length, 8))
        spans = sorted(tuple(tensor["data_offsets"]) for name, tensor in header.items() if name != "__metadata__")
        for first, end in spans:
            yield 8 + length + max(int(first), (int(first) + int(end) - _SAMPLE_BYTES) // 2)
    except (ValueError, TypeError, KeyError, AttributeError):
        return

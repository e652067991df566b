"""A fingerprint of model files: what a name or path alone does not say.

Two models of one shape under one path would otherwise share objects. Sizes and samples are read, not whole files:
training changes nearly every page of the weights it touches.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_KINDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_WHOLE_BYTES = 2**20


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
                for sample in range(_SAMPLES):
                    offset = (size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1)
                    digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest() if paths else ""

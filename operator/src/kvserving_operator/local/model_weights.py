"""Bytes of a model's weights as far as this machine has them: those that vLLM would load, once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import model_config

# In the order in which vLLM looks for them; beside the files, the index that tells what all of them have.
_FORMATS = (
    ("*.safetensors", "model.safetensors.index.json"),
    ("*.bin", "pytorch_model.bin.index.json"),
    ("*.gguf", ""),
)
# What trainers leave behind, as vLLM skips it.
_OTHER = ("training_args.bin", "optimizer.bin")
_SHARD = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.")
_MOST_BYTES = 10**16


def weights_bytes(folder: Path | None) -> int:
    """Size of the model's weights in bytes; 0 when they are not on this machine, or some of their files are not.

    The index counts, where there is one. Raises ``InvalidSpec`` where that is there and cannot be read.
    """
    if folder is None or not os.path.isdir(folder):
        return 0
    for pattern, index in _FORMATS:
        if index and (total := _total(model_config.read_json(folder / index))):
            return total
        files = [file for file in sorted(folder.glob(pattern)) if file.is_file() and not file.name.endswith(_OTHER)]
        if files:
            # A copy of the same weights in the form of Mistral's own tools.
            own = [file for file in files if not file.name.startswith("consolidated")] or files
            return max(map(_bytes, _sets(own)))
    return 0


def _total(index: Mapping[str, Any] | None) -> int:
    metadata = index.get("metadata") if index is not None else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    usable = isinstance(total, (int, float)) and not isinstance(total, bool) and 0 < total < _MOST_BYTES
    return int(total) if usable and total is not None else 0


def _sets(files: list[Path]) -> list[list[Path]]:
    """The files that belong together: each of GGUF holds a model, unless they are shards of one."""
    if files[0].suffix != ".gguf":
        return [files]
    sets: dict[str, list[Path]] = {}
    for file in files:
        sets.setdefault(_SHARD.sub(".", file.name), []).append(file)
    return list(sets.values())


def _bytes(files: list[Path]) -> int:
    """Bytes of the files; 0 where the names of shards tell that some are missing."""
    shards = [found for file in files if (found := _SHARD.search(file.name))]
    if len(shards) == len(files) and len(files) < max(int(found[2]) for found in shards):
        return 0
    return sum(file.stat().st_size for file in files)

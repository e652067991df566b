"""LoRA adapters in block hashes: by their weights, where vLLM takes their name and, since 0.32, their path.

An adapter can be trained anew under its old name and path. Its KV would then be found in every cache that outlives the
old one: the engine's own, L1, and a store that other engines read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kvserving_connector.settings import logger
from kvserving_connector.vllm.identity import weights_of

_Files: TypeAlias = tuple[tuple[str, int, int], ...]

_MOST = 4096
"""Adapters that are remembered; the first is forgotten beyond it, and shares nothing if it comes again changed."""


@dataclass(frozen=True)
class _Loaded:
    files: _Files
    weights: str


class Adapters:
    """What tells the weights of an engine's adapters apart, by the number that vLLM gives each loading."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._began = clock()
        self._known: dict[int, _Loaded] = {}

    def weights(self, lora_request: Any) -> str:
        """Return what identifies the weights that the engine computes this request with.

        Equal in all engines for equal files. A secret of this engine, so that nothing is shared, for files that were
        written while it ran: it may have loaded others before. A new secret each time for files that changed under a
        loaded number: which of them the engine has is not known. Raises nothing.
        """
        number, path = int(lora_request.lora_int_id), str(lora_request.lora_path)
        files = _files(path)
        known = self._known.get(number)
        # vLLM reads the files again for each request that says so.
        if known is None or (known.files != files and getattr(lora_request, "load_inplace", False)):
            known = self._known[number] = _Loaded(files, self._identify(path, files))
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        if known.files != files:
            logger.warning(
                "KVServing: the files of adapter %s changed under it: nothing of it is reused until it is loaded anew",
                lora_request.lora_name,
            )
            return secrets.token_hex(16)
        return known.weights

    def _identify(self, path: str, files: _Files) -> str:
        changed = max((modified for _, _, modified in files), default=0) / 1e9
        found = weights_of(path, None) if changed <= self._began else ""
        return found or secrets.token_hex(16)


def hash_by_weights(request: Any, adapters: Adapters) -> None:
    """Make the block hashes of a new request depend on its adapter's weights; those of requests without one stay.

    By the cache salt, which vLLM puts into the first block's hash, which all others follow from.
    """
    if request.lora_request is None:
        return
    request.cache_salt = f"{request.cache_salt or ''}\0{adapters.weights(request.lora_request)}"
    request.block_hashes.clear()
    request.update_block_hashes()


def _files(path: str) -> _Files:
    try:
        found = [(file.name, file.stat()) for file in Path(path).iterdir()]
    except OSError:
        return ()
    return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in found))

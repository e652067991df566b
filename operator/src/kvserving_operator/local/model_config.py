"""config.json of a model as far as this machine has it: a folder, or the cache of the Hugging Face hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..api.v1alpha1 import Model
    from ..model_facts import ModelFacts


def folder_of(uri: str, revision: str | None = None) -> Path | None:
    """Folder with the files of the model on this machine; None when it is not here."""
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return Path(rest)
    if scheme != "hf":
        return None
    repository = hub_cache() / f"models--{rest.strip('/').replace('/', '--')}"
    reference = repository / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = repository / "snapshots" / commit if commit else None
    return snapshot if snapshot is not None and snapshot.is_dir() else None


def read(folder: Path | None) -> Mapping[str, Any] | None:
    """The model's configuration, or None when it is not there or not a JSON object."""
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def facts(model: Model) -> ModelFacts | None:
    """Facts of the model, read from its configuration; None when that is not on this machine."""
    from ..model_facts import from_config

    config = read(folder_of(model.uri, model.revision))
    return None if config is None else from_config(config)


def weights_bytes(folder: Path | None) -> int:
    """Size of the model's weight files in bytes; 0 when they are not on this machine."""
    if folder is None or not folder.is_dir():
        return 0
    files = [p for pattern in ("*.safetensors", "*.bin", "*.gguf") for p in folder.glob(pattern)]
    return sum(p.stat().st_size for p in files if p.is_file())


def hub_cache() -> Path:
    """Folder of the hub's cache, as its own tools find it."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("HF_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache" / "huggingface") / "hub"

"""config.json of a model as far as this machine has it: a folder, or the cache of the Hugging Face hub."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import EnvironmentFault

if TYPE_CHECKING:
    from ..api.faults import InvalidSpec
    from ..api.v1alpha1 import Model
    from ..model_facts import ModelFacts

MOST_BYTES = 16 * 2**20
"""Largest file of settings that is read; those of models have some hundred kilobytes at most."""

_MOST_COMMIT = 4096
_MOST_DIGITS = 4_000
_WAY_OUT = "download the model again, or correct the file"


def folder_of(uri: str, revision: str | None = None) -> Path | None:
    """Folder with the files of the model on this machine; None when it is not here.

    Raises ``EnvironmentFault`` where the variables that tell where the hub's cache is name no usable path.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return Path(rest)
    if scheme != "hf":
        return None
    cache = hub_cache()
    try:
        if not cache.is_dir():
            return None
    except OSError as error:
        raise _unusable(error) from None
    try:
        repository = cache / f"models--{rest.strip('/').replace('/', '--')}"
        commit = _commit(repository, revision)
        snapshot = repository / "snapshots" / commit if commit else None
        return snapshot if snapshot is not None and snapshot.is_dir() else None
    except OSError as error:
        # A name that no file can have is none that the cache holds.
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise _unusable(error) from None


def _commit(repository: Path, revision: str | None) -> str | None:
    reference = repository / "refs" / (revision or "main")
    if not reference.is_file():
        return revision
    with reference.open("rb") as file:
        text = file.read(_MOST_COMMIT).decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9A-Za-z][-0-9A-Za-z._]{0,254}", text):
        raise refusal(f"{reference} is there and names no commit: download the model again")
    return text


def _unusable(error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"{_variable()}: {error.filename} cannot be looked at: {error.strerror}: correct it")


def read(folder: Path | None) -> Mapping[str, Any] | None:
    """The model's configuration, its numbers within bounds; None when there is none.

    Raises ``InvalidSpec``, which names the file and in it the key, where it is there and cannot be used.
    """
    from ..model_facts import faults_of

    path = None if folder is None else folder / "config.json"
    config = None if path is None else read_json(path)
    if config is not None and (wrong := faults_of(config)):
        raise refusal(*(f"{path}: {fault}: {_WAY_OUT}" for fault in wrong))
    return config


def read_json(path: Path) -> Mapping[str, Any] | None:
    """The JSON object in the file at ``path``; None when there is no such file.

    Raises ``InvalidSpec`` where it is there and cannot be read as one. Never waits, and reads no more than shows that
    the file is too large.
    """
    try:
        found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(found, "rb") as file:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise refusal(f"{path} is no regular file: put the model's own there")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise refusal(f"{path} is there and cannot be read: {error.strerror}: {_WAY_OUT}") from None
        if error.errno == errno.ENOENT and path.is_symlink():
            raise refusal(f"{path} is a link to a file that is not there: {_WAY_OUT}") from None
        return None
    if len(data) > MOST_BYTES:
        raise refusal(f"{path} has more than {MOST_BYTES >> 20} MiB, which no file of settings has: {_WAY_OUT}")
    try:
        content = json.loads(data.decode("utf-8"), parse_int=_int)
    except RecursionError:
        raise refusal(f"{path} is there and cannot be read: it is nested too deeply: {_WAY_OUT}") from None
    except ValueError as error:
        reason = "it is empty" if not data.strip() else f"it is no JSON in UTF-8 ({error})"
        raise refusal(f"{path} is there and cannot be read: {reason}: {_WAY_OUT}") from None
    if not isinstance(content, dict):
        raise refusal(f"{path} is there and cannot be read: it holds no JSON object: {_WAY_OUT}")
    return content


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def refusal(*messages: str) -> InvalidSpec:
    """A fault for each message, which names the file itself."""
    from ..api.faults import Fault, InvalidSpec

    return InvalidSpec(Fault("", message) for message in messages)


def facts(model: Model) -> ModelFacts | None:
    """Facts of the model, read from its configuration; None when that is not on this machine.

    Raises ``InvalidSpec`` as ``read`` does.
    """
    from ..model_facts import from_config

    config = read(folder_of(model.uri, model.revision))
    return None if config is None else from_config(config)


def hub_cache() -> Path:
    """Folder of the hub's cache, as its own tools find it."""
    chosen, base = os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(base).expanduser() if base else Path.home() / ".cache" / "huggingface") / "hub"
    except RuntimeError as error:
        message = f"{_variable()}: {chosen or base or '~'} cannot be resolved: {error}: name the folder in full"
        raise EnvironmentFault(message) from None


def _variable() -> str:
    """The variable that tells where the hub's cache is."""
    return next((name for name in ("HF_HUB_CACHE", "HF_HOME") if os.environ.get(name)), "HOME")

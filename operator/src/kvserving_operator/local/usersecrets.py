"""Secrets that a spec refers to, on a machine without a Secret store: files of the user.

The Secret ``NAME`` is the file ``NAME.env`` below ``$XDG_CONFIG_HOME/kvserving/secrets``
(``~/.config/kvserving/secrets``), one ``KEY=VALUE`` a line, readable by its owner alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import EnvironmentFault, NoSuchKey


def folder() -> Path:
    """Folder of the secret files."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "kvserving" / "secrets"


def read(name: str, wanted_keys: tuple[str, ...] = ()) -> dict[str, str]:
    """Keys and values of the Secret ``name``.

    Without the file, a Secret of which only ``HF_TOKEN`` is wanted is taken from the
    environment. Raises ``NoSuchKey`` when the file is missing or lacks a wanted key, and
    ``EnvironmentFault`` when it is open to others; no message holds a value.
    """
    path = folder() / f"{name}.env"
    if not path.is_file():
        if wanted_keys == ("HF_TOKEN",) and os.environ.get("HF_TOKEN"):
            return {"HF_TOKEN": os.environ["HF_TOKEN"]}
        keys = " and ".join(f"{key}=..." for key in wanted_keys) or "KEY=VALUE"
        raise NoSuchKey(
            f"Secret {name} is not on this machine: write {keys} into {path} and `chmod 600` it"
            + (", or set HF_TOKEN" if wanted_keys == ("HF_TOKEN",) else "")
        )
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise EnvironmentFault(f"{path} can be read by others: `chmod 600 {path}`")
    values = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.lstrip().startswith("#"):
            values[key.strip()] = value.strip()
    for key in wanted_keys:
        if key not in values:
            raise NoSuchKey(f"Secret {name}: {path} has no line {key}=...")
    return values

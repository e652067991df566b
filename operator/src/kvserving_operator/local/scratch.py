"""Temporary folder of a run's engines, gone with the run.

Engines leave sockets and locks in ``TMPDIR`` for good. The folder is not below the state directory, because the
path of a socket may have 107 bytes at most.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def make(instance: str) -> Path:
    """Make the folder of the run ``instance``, for the owner alone, and return it."""
    folder = _folder(instance)
    folder.mkdir(mode=0o700)
    return folder


def remove(instance: str) -> None:
    """Remove the folder of a run that has ended; it need not exist. Files of others in it stay."""
    shutil.rmtree(_folder(instance), ignore_errors=True)


def _folder(instance: str) -> Path:
    return Path(tempfile.gettempdir()) / f"kvserving-{instance}"

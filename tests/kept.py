"""The folder outside the repository in which tests, lanes and benchmarks keep what takes long to make."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def kept(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``${XDG_CACHE_HOME:-~/.cache}/kvserving``, which need not exist; the Makefile has the same."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvserving"

"""Starting a module of this package in a process of its own."""

from __future__ import annotations

import os
import sys

_PATH = "KVSERVING_MODULE_PATH"
# Not by PYTHONPATH: engines inherit it, and our packages would come before their own.
_RUN = f"import os, runpy, sys; sys.path[:] = os.environ.pop({_PATH!r}).split(os.pathsep); " + (
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str, *args: str) -> list[str]:
    """Command that runs ``module`` with this interpreter; it needs ``environment()``."""
    return [sys.executable, "-c", _RUN, module, *args]


def environment() -> dict[str, str]:
    """Our environment, and where the module finds what we find."""
    return {**os.environ, _PATH: os.pathsep.join(path for path in sys.path if path)}

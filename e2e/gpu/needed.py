"""What the commands of this folder import that an interpreter may not have: they end with the way out, not a traceback.

Imported before all of it. Only a command that Python runs as a program is ended, never who imports it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_SOURCES = ("kvserving_operator", "kvserving_connector")
COMMANDS = {
    "e2e.gpu.__main__": ("kvserving_operator", "aiohttp"),
    "e2e.gpu.copies": ("torch", "kvserving_connector"),
    "e2e.gpu.first_token_steps": ("kvserving_operator",),
    "e2e.gpu.first_tokens": ("kvserving_operator", "kvserving_connector"),
    "e2e.gpu.host_copies": ("torch", "kvserving_connector"),
    "e2e.gpu.reads": ("torch", "kvserving_connector"),
    "e2e.gpu.worker_cache": ("kvserving_connector",),
}
"""Modules that each imports when it is started, by its name."""
ENGINE_MODULES = ("vllm", "torch")


def lacking(modules: tuple[str, ...]) -> str:
    """Return which of the modules this interpreter does not find, and the way out; nothing where it finds all."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return ""
    ways = []
    if any(name in _SOURCES for name in missing):
        ways.append("export PYTHONPATH=operator/src:connector/src in the checkout")
    if any(name in ENGINE_MODULES for name in missing):
        ways.append("run it by the engines' interpreter, which has vLLM and torch")
    if any(name not in (*_SOURCES, *ENGINE_MODULES) for name in missing):
        ways.append("run it by the interpreter of make install, .venv/bin/python")
    return f"{sys.executable} has no {' and no '.join(missing)}: {'; '.join(ways)} (docs/gpu-lane.md)"


_command = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
if _fault := lacking(COMMANDS.get(_command, ())):
    print(f"python -m {_command.removesuffix('.__main__')}: error: {_fault}", file=sys.stderr)
    raise SystemExit(2)

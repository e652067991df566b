"""The plan depends on its arguments alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvserving_operator

ROOT = Path(kvserving_operator.__file__).parent
PURE = [
    path
    for part in (
        "plan",
        "engines",
        "connectors.py",
        "memory.py",
        "model_facts.py",
        "profile.py",
        "reasons.py",
        "redaction.py",
        "routers.py",
    )
    for path in ([ROOT / part] if part.endswith(".py") else sorted((ROOT / part).glob("*.py")))
]
FORBIDDEN = {
    "os",
    "time",
    "datetime",
    "random",
    "secrets",
    "uuid",
    "socket",
    "subprocess",
    "asyncio",
    "threading",
    "kopf",
    "kubernetes",
    "aiohttp",
    "pathlib",
    "tempfile",
}
API = sorted((ROOT / "api").glob("*.py"))
NETWORK = {"urllib.request", "http.client", "socket", "ssl", "random", "secrets"}
CALLS = {"open", "hash", "input", "print"}


@pytest.mark.parametrize("path", PURE, ids=[str(path.relative_to(ROOT)) for path in PURE])
def test_module_uses_no_client_clock_environment_or_chance(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            used |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            used.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            used.add(f"{node.func.id}()")
    assert not used & FORBIDDEN
    assert not [name for name in used if name.endswith("()")]


@pytest.mark.parametrize("path", [*API, *PURE], ids=[str(path.relative_to(ROOT)) for path in [*API, *PURE]])
def test_module_opens_no_connection_and_draws_no_number(path: Path) -> None:
    used = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            used |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    assert not used & NETWORK

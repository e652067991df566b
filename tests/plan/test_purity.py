"""The plan depends on its arguments alone."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from tests.plan.support import raw_case

import kvserving_operator
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan import plan

ROOT = Path(kvserving_operator.__file__).parent
PURE = [
    path
    for part in ("plan", "engines", "connectors.py", "memory.py", "model_facts.py", "profile.py", "reasons.py")
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


def test_a_thousand_objects_are_planned_in_seconds() -> None:
    raw = raw_case("12")
    objects = [KVServing.model_validate({**raw, "metadata": {"name": f"everything-{n}"}}) for n in range(1000)]
    started = time.process_time()
    plans = [plan(serving) for serving in objects]
    assert time.process_time() - started < 8
    assert len({made.objects[0]["metadata"]["name"] for made in plans}) == 1000

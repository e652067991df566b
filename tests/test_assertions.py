"""Each test can fail: it asserts something, expects an exception, or calls a helper of the tests that does.

Helpers are known by their names alone. What a name is bound to is not looked at: ``assert found`` says too little to
be all that a test asserts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "e2e")
MODULES = {str(path.relative_to(ROOT)): path.read_text() for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
RAISING = {
    "test_k12_a_patched_engine_starts",
    "test_k12_kvcached_is_found_in_effect",
    "test_k2_nothing_is_asked_while_kvcached_is_off",
    "test_k6_packed_kv_of_whole_blocks_is_registered_as_it_is",
}
"""Tests of code of ours that raises wherever what they say is not so."""
_EXPECTS = frozenset({"raises", "warns", "fail", "run_state_machine_as_test"})
# A call of one of these is hardly ever one of a helper that has the same name.
_COMMON = frozenset(name for kind in (dict, list, set, str, Path) for name in dir(kind))


@dataclass
class Function:
    """A function of the tests: whether it can fail by itself, what it calls, and lines that assert a constant."""

    where: str
    name: str
    fails: bool
    calls: set[str]
    constant: list[str]


def functions(modules: Mapping[str, str]) -> list[Function]:
    """The functions of all modules, methods and inner functions too."""
    return [
        _function(f"{path}:{node.lineno}", node)
        for path, text in modules.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _function(where: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    found = Function(where, function.name, fails=False, calls=set(), constant=[])
    for node in ast.walk(function):
        if isinstance(node, ast.Raise):
            found.fails = True
        elif isinstance(node, ast.Call):
            found.calls.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.Assert):
            if any(isinstance(part, ast.Name | ast.Call | ast.Attribute) for part in ast.walk(node.test)):
                found.fails |= not isinstance(node.test, ast.Name)
            else:
                found.constant.append(f"{where.partition(':')[0]}:{node.lineno}: {ast.unparse(node)}")
    found.fails |= bool(found.calls & _EXPECTS)
    return found


def idle(found: Iterable[Function]) -> list[str]:
    """The tests that cannot fail, each with its place."""
    several = list(found)
    helpers: set[str] = set()
    while more := {one.name for one in several if one.fails or one.calls & helpers} - helpers - _COMMON:
        helpers |= more
    tests = (one for one in several if one.name.startswith("test_") and one.name not in RAISING)
    return [f"{one.where}: {one.name}" for one in tests if not one.fails and not one.calls & helpers]


def test_each_test_can_fail() -> None:
    found = functions(MODULES)
    assert idle(found) == [], "these assert nothing, or no more than that a name is true: assert what it is"
    assert [line for one in found for line in one.constant] == [], "these are so whatever the code does"
    assert {one.name for one in found} >= RAISING, "these are no longer there"


@pytest.mark.parametrize(
    "body",
    ["pass", "made()", "assert True", "assert 1 + 1 == 2", "assert store", "given.get('a')", "given = made()"],
)
def test_a_test_that_cannot_fail_is_told(body: str) -> None:
    assert idle(functions({"a.py": f"def test_it(): {body}\n"})) == ["a.py:1: test_it"]


@pytest.mark.parametrize(
    "body",
    ["assert store == 1", "assert store.empty", "pytest.fail()", "agree(1)", "cluster.agree(1)", "indeed(1)"],
)
def test_a_test_that_asserts_by_itself_or_by_a_helper_is_let_be(body: str) -> None:
    helpers = "def agree(it):\n    if it: raise AssertionError(it)\ndef indeed(it): agree(it)\n"
    assert idle(functions({"a.py": helpers, "b.py": f"def test_it(): {body}\n"})) == []


def test_a_constant_that_is_asserted_is_told_beside_what_is_not() -> None:
    [found] = functions({"a.py": "def test_it():\n    assert made()\n    assert 'two'\n"})
    assert found.constant == ["a.py:3: assert 'two'"]

"""pytest plugin: run vLLM's own tests, unedited, against classes of ours, on a machine without a GPU.

Loaded with ``-p swap`` into a pytest that runs vLLM's tests; needs nothing but pytest and what the options name.

``--swap MODULE:NAME=MODULE:NAME``
    The second class stands for the first, in its module and wherever vLLM has imported it, before any test module is
    imported. Tests that import the class and vLLM's own factories then use ours. Our module must take vLLM's class
    while it is imported. What ours inherits is bound in it as well, because some tests read ``__dict__``.
``--module-path CONNECTOR=MODULE``
    Every ``KVTransferConfig`` for that connector without a module path gets this one: the class is found as in
    production, in the engine's other processes too.
``--connector-block-size N``
    Block size of the connector tests; the CPU backend refuses the 16 of most of them in a real engine.
``--unskip REASON``
    Tests that would be skipped for exactly this reason run.
``--swap-report FILE``
    JSON: how many objects of each swapped class were made, and how many configurations got a module path. 0 means
    that these tests say nothing about the class.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_COUNTS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options above."""
    group = parser.getgroup("swap")
    group.addoption("--swap", action="append", default=[], metavar="MODULE:NAME=MODULE:NAME")
    group.addoption("--module-path", action="append", default=[], metavar="CONNECTOR=MODULE")
    group.addoption("--connector-block-size", type=int, default=0, metavar="N")
    group.addoption("--unskip", action="append", default=[], metavar="REASON")
    group.addoption("--swap-report", default="", metavar="FILE")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Swap before any test module is imported."""
    counts = session.config.stash.setdefault(_COUNTS, {})
    for rule in session.config.getoption("--swap"):
        _swap(rule, counts)
    for rule in session.config.getoption("--module-path"):
        _name_module(rule, counts)
    size = session.config.getoption("--connector-block-size")
    if size:
        utils: Any = importlib.import_module("tests.v1.kv_connector.unit.utils")
        utils.maybe_update_block_size = lambda block_size: size


def pytest_collection_modifyitems(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Drop the skip marks that were named."""
    reasons = set(config.getoption("--unskip"))
    for item in items if reasons else ():
        item.own_markers = [
            mark for mark in item.own_markers if mark.name != "skipif" or mark.kwargs.get("reason") not in reasons
        ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report."""
    report = session.config.getoption("--swap-report")
    if report:
        Path(report).write_text(json.dumps(session.config.stash.get(_COUNTS, {})))


def _class(place: str) -> tuple[Any, str, Any]:
    module, _, name = place.partition(":")
    home = importlib.import_module(module)
    return home, name, getattr(home, name)


def _swap(rule: str, counts: dict[str, int]) -> None:
    left, _, right = rule.partition("=")
    _, name, theirs = _class(left)
    ours = _class(right)[2]
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm") and vars(module).get(name) is theirs:
            setattr(module, name, ours)
    if issubclass(ours, theirs):
        for member, value in list(vars(theirs).items()):
            if not member.startswith("_") and next(c for c in ours.__mro__ if member in vars(c)) is theirs:
                setattr(ours, member, value)
    _count(ours, rule, counts, lambda made, arguments: type(made) is ours)


def _name_module(rule: str, counts: dict[str, int]) -> None:
    connector, _, module = rule.partition("=")
    importlib.import_module(module)

    def named(_: Any, arguments: dict[str, Any]) -> bool:
        if arguments.get("kv_connector") != connector or arguments.get("kv_connector_module_path"):
            return False
        arguments["kv_connector_module_path"] = module
        return True

    _count(_class("vllm.config:KVTransferConfig")[2], rule, counts, named)


def _count(cls: Any, rule: str, counts: dict[str, int], counts_as: Any) -> None:
    init = cls.__init__
    counts[rule] = 0

    @functools.wraps(init)
    def counted(self: Any, *args: Any, **arguments: Any) -> None:
        if counts_as(self, arguments):
            counts[rule] += 1
        init(self, *args, **arguments)

    cls.__init__ = counted

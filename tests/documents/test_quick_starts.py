"""What README and quick starts type fits together, also where no lane can run it: objects, names, models, ways out."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.api.objects import load_file
from tests.documents.known import faults
from tests.documents.lanes import of_page
from tests.documents.marks import NotRun
from tests.documents.pages import QUICK_STARTS, README, ROOT, shown
from tests.documents.shell import calls, commands

from kvserving_operator.plan.planning import check

PAGES = (README, *QUICK_STARTS)
NOT_RUN = [(page, block, how) for page in PAGES for block, how in of_page(page) if isinstance(how, NotRun)]
_OF_ONE = frozenset({"down", "logs", "status", "verify"})
_FROM_ELSEWHERE = {"tiny": "tiny"}
"""Name and model of the object that `python -m e2e.cluster up` writes."""


def words(page: Path) -> list[list[str]]:
    """The calls in all command blocks of a page."""
    return [call for block, _ in of_page(page) for command in commands(block.text) for call in calls(command.text)]


def objects(page: Path) -> dict[str, str]:
    """The objects of a page by name, with the name under which each serves its model."""
    found = dict(_FROM_ELSEWHERE) if any("e2e.cluster" in call for call in words(page)) else {}
    for call in words(page):
        for path in (word for word in call if word.startswith("examples/") and word.endswith(".yaml")):
            serving = load_file(ROOT / path)
            assert list(check(serving)) == [], path
            found[serving.metadata.name] = serving.spec.model.served_name
    return found


def addressed(call: list[str]) -> list[str]:
    """The objects that a call names."""
    program = call[0].rpartition("/")[2]
    rest = call[2:] if call[:2] == ["kubectl", "kvserving"] else call[1:]
    if program in ("kvserving", "kubectl-kvserving") or call[:2] == ["kubectl", "kvserving"]:
        return rest[1:2] if rest[:1] and rest[0] in _OF_ONE else []
    found = [word.partition("/")[2] for word in call if re.match(r"(?:kvs|svc)/", word)]
    return found + [after for word, after in pairwise(call) if word == "kvs" and program == "kubectl"]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_names_are_those_of_the_objects_of_the_page(page: Path) -> None:
    named = [name for call in words(page) for name in addressed(call) if not name.isupper()]
    assert set(named) <= set(objects(page))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_requests_are_json_and_ask_for_a_model_that_is_served(page: Path) -> None:
    bodies = [json.loads(after) for call in words(page) for word, after in pairwise(call) if word == "-d"]
    assert bodies
    assert {body["model"] for body in bodies} - {"MODEL"} <= set(objects(page).values())


def test_names_are_found_in_a_call() -> None:
    assert addressed(["kvserving", "verify", "qwen"]) == ["qwen"]
    assert addressed([".venv/bin/kubectl-kvserving", "verify", "tiny"]) == ["tiny"]
    assert addressed(["kubectl", "wait", "--for=condition=Ready", "kvs/tiny"]) == ["tiny"]
    assert addressed(["kubectl", "delete", "kvs", "tiny"]) == ["tiny"]
    assert addressed(["kvserving", "doctor", "examples/laptop.yaml"]) == []


@pytest.mark.parametrize(
    ("page", "block", "how"), NOT_RUN, ids=lambda value: shown(value) if isinstance(value, Path) else ""
)
def test_a_reason_not_to_run_a_block_names_what_exists(page: Path, block: object, how: NotRun) -> None:
    spans = re.findall(r"`([^`]+)`", how.reason)
    paths = re.findall(r"(?<![\w/`])(?:\w+/)+\w+\.\w+", how.reason)
    assert [fault for text in (*spans, *paths) for call in calls(text) for fault in faults(call, whole=False)] == []

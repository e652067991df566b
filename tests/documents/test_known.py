"""A command on a page names subcommands, options, targets, modules and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documents.known import faults, targets
from tests.documents.marks import COMMANDS
from tests.documents.pages import OTHERS, PAGES, blocks, sections, shown
from tests.documents.shell import calls, commands

_INLINE = re.compile(r"`((?:\S+/)?(?:kvserving|kubectl kvserving|make|pytest|python3? -m) [^`]+)`")


def of(command: str, *, whole: bool = True) -> list[str]:
    return [fault for words in calls(command) for fault in faults(words, whole=whole)]


@pytest.mark.parametrize(
    "command",
    [
        "kvserving validate examples/laptop.yaml",
        ".venv/bin/kvserving doctor NAME --only findings -o json",
        "kvserving COMMAND --help",
        "kvserving up --help",
        "kvserving up FILE --detach --listen 127.0.0.1:8001",
        "kvserving rollout undo qwen -n prod",
        "kubectl kvserving verify tiny",
        "kubectl apply -f examples/cluster-without-gpu.yaml",
        "make install .venv/.dev KEEP=1",
        "python -m e2e.cluster up",
        "python3 -m venv here",
        "pytest tests/plan --update-golden",
        "docker build --file images/operator/Dockerfile .",
        "sudo env A=b make demo",
    ],
)
def test_a_command_that_is_right_has_no_fault(command: str) -> None:
    assert of(command) == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("kvserving stauts laptop", "there is no command 'stauts'|has no command 'stauts'"),
        ("kvserving status laptop --watsh", "No such option"),
        ("kvserving rollout redo qwen", "has no command 'redo'"),
        ("kvserving down laptop other", "takes no other"),
        ("kvserving validate", "needs FILE"),
        ("kvserving doctor --only finding", "'finding' is not one of"),
        ("kubectl kvserving up FILE", "kubectl kvserving has no command 'up'"),
        (".venv/bin/kubectl-kvserving up FILE", "kubectl kvserving has no command 'up'"),
        ("helm install a charts/kvserving-operator --set imagine.tag=1", "the chart has no value imagine.tag"),
        ("make dmeo", "make has no target dmeo"),
        ("true && make test lint", "make has no target lint"),
        ("python -m e2e.clutser up", "there is no module e2e.clutser to run"),
        ("kubectl apply -f examples/laptop.yml", "there is no file examples/laptop.yml"),
        ("docker build --file=images/operators/Dockerfile .", "there is no file images/operators/Dockerfile"),
        ("make demo KEPT=1", "make has no variable KEPT"),
        ("python -m benchmarks store-raeds", "benchmarks takes no 'store-raeds'"),
        ("python -m e2e.gpu.first_tokens --sidez all", "e2e.gpu.first_tokens has no option --sidez"),
        ("make e2e-gpu LANE='--variantz plain'", "e2e.gpu has no option --variantz"),
        ("pytest tests/plan/test_nothing.py::test_it", "there is no file tests/plan/test_nothing.py"),
    ],
)
def test_what_is_not_there_is_named(command: str, fault: str) -> None:
    [found] = of(command)
    assert re.search(fault, found)


def test_prose_may_leave_arguments_out_but_names_no_unknown_option() -> None:
    assert of("kvserving validate", whole=False) == []
    assert len(of("kvserving validate --quick", whole=False)) == 1


def test_targets_are_those_of_the_makefile() -> None:
    assert {"demo", "test", "e2e-local", ".venv/.dev", ".venv-engine/.installed"} <= targets()
    assert not targets() & {"VENV", "export", "install:"}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_commands_in_blocks_name_what_exists(page: Path) -> None:
    found = [block for block in blocks(page.read_text()) if block.language in COMMANDS]
    wrong = [(block.line, fault) for block in found for one in commands(block.text) for fault in of(one.text)]
    assert wrong == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=shown)
def test_commands_in_prose_name_what_exists(page: Path) -> None:
    text = "\n".join(section.text for section in sections(page.read_text()))
    found = [" ".join(code.split()) for code in _INLINE.findall(text)]
    assert [(code, fault) for code in found for fault in of(code, whole=False)] == []

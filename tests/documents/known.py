"""Whether what a command names is there: subcommands and options, targets, modules, files. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click
from benchmarks.__main__ import BENCHMARKS
from benchmarks.__main__ import PAGES as MADE
from tests.documents.names import is_value
from tests.documents.pages import ROOT

from kvserving_operator import generated
from kvserving_operator.cli import kvserving
from kvserving_operator.cli.plugin import plugin

_MODULES = {
    "benchmarks": ROOT,
    "e2e": ROOT,
    "tests": ROOT,
    "kvserving_operator": ROOT / "operator" / "src",
    "kvserving_connector": ROOT / "connector" / "src",
}
_FOLDERS = (
    "benchmarks", "charts", "connector", "crds", "deploy", "docs", "e2e", "examples", "images", "operator",
    "requirements", "scripts", "tests",
)  # fmt: skip
_TARGETS = re.compile(r"^([\w.$(){}/-]+(?: [\w./-]+)*):(?!=)", re.MULTILINE)
_PATH = re.compile(rf"(?:\./)?((?:{'|'.join(_FOLDERS)})/[\w./-]*)(?:::\S+)?")
_RUNNERS = frozenset({"env", "exec", "nohup", "sudo", "time"})
_HELP = ("-h", "--help")
_ELLIPSES = {"…", "..."}


def faults(words: Sequence[str], *, whole: bool = True) -> Iterator[str]:
    """Say what one call of a program names that is not there. Words in capitals stand for anything.

    Without ``whole`` arguments may be missing, as where prose names a command.
    """
    while words and (words[0] in _RUNNERS or re.match(r"\w+=", words[0])):
        words = words[1:]
    if not words:
        return
    program, arguments = words[0].rpartition("/")[2], list(words[1:])
    if program == "kvserving":
        yield from _unknown(kvserving, arguments, "kvserving", whole=whole)
    elif program == "kubectl" and arguments[:1] == ["kvserving"]:
        yield from _unknown(plugin, arguments[1:], "kubectl kvserving", whole=whole)
    elif program == "kubectl-kvserving":
        yield from _unknown(plugin, arguments, "kubectl kvserving", whole=whole)
    elif program == "helm":
        given = [part for word, after in pairwise([*arguments, ""]) if word == "--set" for part in after.split(",")]
        keys = [part.partition("=")[0] for part in given]
        yield from (f"the chart has no value {key}" for key in keys if not is_value(key.split(".")))
    elif program == "make":
        wanted = {word for word in arguments if not word.startswith("-") and "=" not in word}
        yield from (f"make has no target {word}" for word in sorted(wanted - targets()) if not _stands_for(word))
        yield from _variables(arguments)
    elif program.startswith(("python", "$KVSERVING_ENGINE_PYTHON")) and "-m" in arguments[:-1]:
        yield from _module(*arguments[arguments.index("-m") + 1 :])
    yield from _files(words)


def targets() -> set[str]:
    """Return the targets of the Makefile, with the names of folders filled in."""
    text = (ROOT / "Makefile").read_text()
    names = (name for found in _TARGETS.findall(text) for name in found.split())
    return {name.replace("$(VENV)", ".venv").replace("$(ENGINE_VENV)", ".venv-engine") for name in names}


def _stands_for(word: str) -> bool:
    """Whether a word is not meant literally: NAME, FILE|DIR, …, <name>, $variable."""
    return not re.search(r"[a-z0-9]", word) or word.startswith(("$", "<"))


def _variables(arguments: Sequence[str]) -> Iterator[str]:
    """Say which variables of a call of make the Makefile lacks, and which options the lane."""
    text = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, equal, value = word.partition("=")
        if equal and name.isupper() and f"$({name}" not in text and f",{name})" not in text:
            yield f"make has no variable {name}"
        elif name == "LANE":
            yield from _options("e2e.gpu", value.split())


def _module(name: str, *arguments: str) -> Iterator[str]:
    top, *_ = name.split(".")
    if top not in _MODULES:
        return
    path = _MODULES[top] / name.replace(".", "/")
    if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
        yield f"there is no module {name} to run"
    elif name == "benchmarks":
        unknown = set(arguments) - {*BENCHMARKS, *MADE, *_ELLIPSES}
        yield from (f"benchmarks takes no {word!r}" for word in sorted(unknown) if not _stands_for(word))
    else:
        yield from _options(name, arguments)


def _options(module: str, arguments: Sequence[str]) -> Iterator[str]:
    """Say which options the sources of a module, or of its folder, do not have."""
    path = _MODULES[module.split(".")[0]] / module.replace(".", "/")
    files = sorted(path.glob("*.py")) if path.is_dir() else sorted(path.parent.glob("*.py"))
    text = "\n".join(file.read_text() for file in (*files, Path(generated.__file__)))
    for word in arguments:
        option = word.partition("=")[0]
        if option.startswith("--") and option != "--help" and f'"{option}"' not in text:
            yield f"{module} has no option {option}"


def _files(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        for part in word.split("="):
            found = _PATH.fullmatch(part)
            if found and not re.search(r"\b[A-Z]{3,}\b(?!\.md)", part) and not (ROOT / found[1]).exists():
                yield f"there is no file {found[1]}"


def _unknown(command: click.Command, arguments: list[str], name: str, *, whole: bool) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    whole = whole and not _ELLIPSES & set(arguments)
    try:
        given, rest, _ = command.make_parser(context).parse_args([word for word in arguments if word not in _ELLIPSES])
    except click.UsageError as error:
        yield f"{name}: {error.format_message()}"
        return
    if any(word in _HELP for word in arguments) and not isinstance(command, click.Group):
        return
    yield from _values(command, given, context, name)
    if isinstance(command, click.Group):
        if not rest or _stands_for(rest[0]):
            return
        below = command.get_command(context, rest[0])
        if below is None:
            yield f"{name} has no command {rest[0]!r}"
        else:
            yield from _unknown(below, rest[1:], f"{name} {rest[0]}", whole=whole)
    elif rest:
        yield f"{name} takes no {' '.join(rest)}"
    elif whole:
        missing = [found for found in command.params if found.required and not _given(given, found)]
        yield from (f"{name} needs {found.human_readable_name}" for found in missing)


def _given(given: dict[str, object], parameter: click.Parameter) -> bool:
    value = given.get(parameter.name or "")
    return isinstance(value, (str, bool, int)) or (isinstance(value, (list, tuple)) and bool(value))


def _values(command: click.Command, given: dict[str, object], context: click.Context, name: str) -> Iterator[str]:
    """Say which values no choice has."""
    for parameter in command.params:
        if not isinstance(parameter.type, click.Choice):
            continue
        found = given.get(parameter.name or "")
        for value in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(value, str) and not _stands_for(value):
                try:
                    parameter.type.convert(value, parameter, context)
                except click.UsageError as error:
                    yield f"{name}: {error.format_message()}"

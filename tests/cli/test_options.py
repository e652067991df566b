"""Every option of the commands is named by a test: one that nobody runs may do something else than it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kvserving_operator import cli
from kvserving_operator.cli.plugin import PROGRAM, plugin

ROOT = Path(__file__).parents[2]
PROGRAMS: tuple[tuple[click.Command, str], ...] = ((cli.kvserving, "kvserving"), (plugin, PROGRAM))
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def named(*folders: Path) -> set[str]:
    """Options that the Python files of the folders name, but for this one."""
    files = (file for folder in folders for file in folder.rglob("*.py") if file != Path(__file__))
    return {option for file in files for option in _OPTION.findall(file.read_text())}


def options(command: click.Command, words: str) -> Iterator[tuple[str, str]]:
    """Every long name of an option, with the command that takes it, of ``command`` and those below it."""
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name=words)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from options(found, f"{words} {name}")
    for param in command.params:
        for name in (*param.opts, *param.secondary_opts):
            if name.startswith("--"):
                yield words, name


@pytest.mark.parametrize(("program", "name"), PROGRAMS, ids=[name for _, name in PROGRAMS])
def test_every_option_is_named_by_a_test(program: click.Command, name: str) -> None:
    tested = named(ROOT / "tests", ROOT / "e2e")
    unnamed = [f"{command} {option}" for command, option in options(program, name) if option not in tested]
    assert unnamed == [], "add a test of what the option does, or remove it"


def test_options_of_commands_below_commands_are_among_them() -> None:
    assert {("kvserving", "--debug"), ("kvserving rollout status", "--no-wait"), ("kvserving up", "--detach")} <= set(
        options(cli.kvserving, "kvserving")
    )


def test_an_option_that_no_file_names_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text('run("up", "--detach-all", "--set=x", "a--b")')
    assert named(tmp_path) == {"--detach-all", "--set"}

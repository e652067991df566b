"""Every command and option of both programs is on the page, as their own help tells them."""

from __future__ import annotations

import click
import pytest

from kvserving_operator.cli import kvserving
from kvserving_operator.cli.plugin import PROGRAM, plugin
from kvserving_operator.reference import commands

TEXT = commands.render()
FOUND = {
    ctx.command_path: ctx
    for name, program in (("kvserving", kvserving), (PROGRAM, plugin))
    for ctx in commands.contexts(program, name)
}


def section(path: str) -> str:
    level = "##" if path in ("kvserving", PROGRAM) else "###"
    return TEXT.partition(f"\n{level} {path}\n")[2].partition("\n##")[0]


def test_commands_below_commands_are_found() -> None:
    assert {"kvserving up", "kvserving operator run", "kvserving cache purge", "kubectl kvserving rollout undo"} <= set(
        FOUND
    )


@pytest.mark.parametrize("path", FOUND)
def test_a_command_is_told_with_its_usage_help_and_options(path: str) -> None:
    ctx = FOUND[path]
    text = section(path)
    assert f"[{path}](#" in TEXT
    assert f"```text\n{' '.join((path, *ctx.command.collect_usage_pieces(ctx)))}\n```" in text
    first = (ctx.command.help or "").partition("\n\n")[0]
    assert " ".join(first.split()) in text
    for parameter in ctx.command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            [row] = [line for line in text.splitlines() if line.startswith(f"| `{parameter.opts[0]}`")]
            assert all(f"`{name}`" in row for name in (*parameter.opts, *parameter.secondary_opts))
            assert row.split(" | ")[3].removesuffix(" |").strip(), f"{path} {parameter.opts[0]} has no help"


def row(path: str, option: str) -> list[str]:
    [found] = [line for line in section(path).splitlines() if f"`{option}`" in line.split(" | ")[0]]
    return [cell.strip() for cell in found.strip("| ").split(" | ")]


def test_defaults_values_and_variables_are_those_of_the_option() -> None:
    assert row("kvserving render", "--site")[1:3] == ["`cluster`, `local`", "`cluster`"]
    assert row("kvserving up", "--timeout")[1] == "`TIME`, at least `1s`"
    assert row("kvserving up", "--engine-python")[2:] == ["$KVSERVING_ENGINE_PYTHON, else ours", "Python with vLLM."]
    assert row("kvserving operator run", "--resync")[1:3] == ["`TIME`, at least `0.1s`", "`10m`"]
    assert row("kvserving operator run", "--elect")[2] == "`--elect`"
    assert row("kvserving operator run", "--workers")[1:3] == ["`INTEGER`, 1 to 64", "`16`"]
    assert row("kvserving operator run", "--workers")[4] == "`KVSERVING_OPERATOR_WORKERS`"
    assert row("kvserving operator run", "--identity")[4] == "`KVSERVING_OPERATOR_IDENTITY`, `POD_NAME`"
    assert row("kvserving operator run", "--namespace")[1:3] == ["`NAME`; may be repeated", "all"]
    assert row("kvserving plan", "--rate")[2] == "required"


def test_the_exit_status_of_each_program_is_a_table() -> None:
    assert "| 3 | this machine cannot run it as it is; the message says what to change |" in section("kvserving")
    assert "| 4 | the Lease was lost: another operator may write |" in section("kvserving operator run")
    assert "| 130 | interrupted |" in section(PROGRAM)


def test_angle_brackets_of_a_help_are_not_taken_for_markup() -> None:
    assert "KVSERVING_OPERATOR_&lt;OPTION>" in section("kvserving operator run")


@pytest.mark.parametrize(("name", "program"), [("kvserving", kvserving), (PROGRAM, plugin)])
def test_the_table_and_the_help_of_a_program_say_the_same_of_its_commands(name: str, program: click.Group) -> None:
    above = FOUND[name]
    shown = " ".join(program.get_help(above).split())
    for command in program.list_commands(above):
        [line] = [line for line in TEXT.splitlines() if line.startswith(f"| [{name} {command}](#")]
        said = line.split(" | ")[1].removesuffix(" |")
        assert f" {command} {said}" in shown
        assert FOUND[f"{name} {command}"].command.short_help is None, "nobody would see it"

"""The command line: every command of ``kvserving`` and of the plugin of kubectl, its options and exit status."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from ..cli import Commands, kvserving
from ..cli.bounded import Time
from ..cli.plugin import PROGRAM, plugin
from .markdown import code, codes, link, page, table

PAGE = "reference-cli.md"
_PROGRAMS = (("kvserving", kvserving), (PROGRAM, plugin))


def render() -> str:
    """Return the page."""
    found = [ctx for name, program in _PROGRAMS for ctx in contexts(program, name)]
    parts = [text for ctx in found for text in _command(ctx)]
    return page(
        "Command reference",
        "Two programs: `kvserving`, and the plugin that kubectl finds as `kubectl kvserving`. Answers go to standard "
        "output; progress, notices and errors to standard error. Every command has `--help`. A `TIME` is written as "
        "`600` or `600s`, `10m`, `1h30m`, `30ms`; `--ttft` and `--itl` want the unit.",
        table(("Command", "What it does"), ((link(ctx.command_path), _short(ctx)) for ctx in found)),
        *parts,
    )


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context of the command and of each one below it, in the order of the help."""
    ctx = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield ctx
    if isinstance(command, click.Group):
        for inner in command.list_commands(ctx):
            found = command.get_command(ctx, inner)
            assert found is not None, f"{ctx.command_path} lists {inner} and has it not"
            yield from contexts(found, inner, ctx)


def _command(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    yield f"{'##' if ctx.parent is None else '###'} {ctx.command_path}"
    yield "```text\n" + " ".join((ctx.command_path, *command.collect_usage_pieces(ctx))) + "\n```"
    yield from _paragraphs(command.help)
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        header, rows = ["Option", "Value", "Default", "Meaning"], [_option(ctx, option) for option in options]
        if any(variables := [_variables(ctx, option) for option in options]):
            header.append("Environment")
            rows = [[*row, codes(names)] for row, names in zip(rows, variables, strict=True)]
        yield table(header, rows)
    yield from _status(command.epilog)


def _short(ctx: click.Context) -> str:
    above = ctx.parent.command if ctx.parent is not None else None
    if isinstance(above, Commands):
        return above.helps[str(ctx.info_name)]
    return ctx.command.get_short_help_str(limit=200)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the help as Markdown; where click keeps lines as they are, so does this."""
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```"
        elif paragraph:
            yield paragraph.replace("\n", " ").replace("<", "&lt;")


def _option(ctx: click.Context, option: click.Option) -> list[str]:
    names = [*option.opts, *option.secondary_opts]
    meaning = option.help or ""
    default = option.get_default(ctx, call=False)
    told = ""
    if found := re.search(r"(?:(?:^| )Default: (.+?)\.?| ?\[([^\]]+)\])$", meaning):
        meaning, told = meaning[: found.start()], found[1] or found[2]
    elif option.is_flag and option.secondary_opts:
        told = "" if default is None else code((option.opts if default else option.secondary_opts)[0])
    elif option.required:
        told = "required"
    elif not option.is_flag and isinstance(default, (str, int, float)):
        told = code(default)
    repeated = "; may be repeated" if option.multiple else ""
    return [codes(names), _value(ctx, option) + repeated, told, meaning]


def _value(ctx: click.Context, option: click.Option) -> str:
    if option.is_flag:
        return ""
    kind = option.type
    if isinstance(kind, click.Choice):
        return codes(kind.choices)
    words = code(option.metavar or option.make_metavar(ctx).split(" ")[0])
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        bounds = f"{kind.min} to {kind.max}" if kind.max is not None else f"at least {kind.min}"
        return f"{words}, {bounds}"
    if isinstance(kind, Time) and kind.min:
        return f"{words}, at least {code(f'{kind.min:g}s')}"
    return words


def _variables(ctx: click.Context, option: click.Option) -> tuple[str, ...]:
    """Variables that stand for the option, the first that is set wins."""
    if isinstance(option.envvar, str):
        return (option.envvar,)
    if option.envvar:
        return tuple(option.envvar)
    prefix = ctx.auto_envvar_prefix
    return (f"{prefix}_{(option.name or '').upper()}",) if prefix is not None and option.allow_from_autoenv else ()


def _status(epilog: str | None) -> Iterator[str]:
    """Yield the exit status as a table, and the rest of the epilog as it is."""
    for paragraph in inspect.cleandoc(epilog or "").split("\n\n"):
        lines = paragraph.removeprefix("\b").strip("\n").splitlines()
        if lines and lines[0] == "Exit status:":
            rows = (re.split(r" +", line.strip(), maxsplit=1) for line in lines[1:])
            yield table(("Exit status", "Meaning"), rows)
        elif lines:
            yield from _paragraphs(paragraph)

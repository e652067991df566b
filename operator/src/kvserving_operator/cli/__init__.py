"""The ``kvserving`` command. Each command is a module of its own, imported when it is used.

Exit status:

==== ==================================================================================
0    yes: valid, up and verified, stopped
1    the answer is no: the object is invalid, the transfer is not verified, a start failed
2    the command was used wrongly
3    this machine cannot run it as it is; the message says what to change
130  interrupted
==== ==================================================================================

Answers go to standard output, progress, notices and errors to standard error.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

INTERRUPTED = 130

_COMMANDS = {
    "validate": "Check files and report every fault.",
    "render": "Print the Kubernetes objects of a file.",
    "up": "Run a file as processes on this machine, verified.",
    "down": "Stop what `up` started.",
    "status": "Show what runs.",
    "verify": "Prove again that KV moves from prefill to decode.",
    "logs": "Show the logs of engines and routers.",
    "cache": "Show what the tiers hold and hit; remove a namespace.",
    "operator": "Run the Kubernetes operator.",
    "version": "Print the version.",
}

_EPILOG = """\b
Exit status:
  0    yes: valid, up and verified, stopped
  1    the answer is no: invalid, not verified, failed
  2    wrong usage
  3    this machine cannot run it as it is; the message says what to change
  130  interrupted

\b
Completion: eval "$(_KVSERVING_COMPLETE=bash_source kvserving)"   (or zsh_source, fish_source)
"""


class _Commands(click.Group):
    """Knows the names and one-line helps of its commands; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f".{cmd_name}", __name__).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from .version import text

        click.echo(text())
        ctx.exit()


@click.command(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."
)
def kvserving(debug: bool) -> None:
    """Serve a model by vLLM with prefill and decode apart, and prove that the KV moves."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status. No error shows a traceback unless ``--debug`` is given."""
    try:
        result = kvserving.main(list(arguments), prog_name="kvserving", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; what is buffered has nowhere to go.
        sys.stdout = None
        return 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    from ..api.faults import InvalidSpec
    from ..local.errors import EnvironmentFault, LocalError
    from ..local.state import folder_fault

    if isinstance(error, OSError) and (problem := folder_fault(error)) is not None:
        error = EnvironmentFault(problem)
    if isinstance(error, InvalidSpec):
        for fault in error.faults:
            print(f"error: {fault}", file=sys.stderr)
        return 1
    if isinstance(error, EnvironmentFault):
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_status
    if isinstance(error, LocalError):
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(f"error: {type(error).__name__}: {error} (`kvserving --debug` shows where)", file=sys.stderr)
    return 1

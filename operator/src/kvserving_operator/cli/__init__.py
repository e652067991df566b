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
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

INTERRUPTED = 130

# What the help and the reference say of each command in a line; its docstring says the rest.
SUMMARIES = {
    "validate": "Check files and report every fault.",
    "render": "Print the Kubernetes objects of a file.",
    "plan": "Size a service: devices, replicas and tiers, with the arithmetic.",
    "up": "Run a file as processes on this machine, verified.",
    "down": "Stop what `up` started.",
    "status": "Show what runs.",
    "verify": "Prove again that KV moves from prefill to decode.",
    "logs": "Show the logs of engines and routers.",
    "rollout": "Wait for a rollout in a cluster, or return to a former revision.",
    "cache": "Show what the tiers hold and hit; remove a namespace.",
    "doctor": "Explain what is injected, and look for known mistakes.",
    "operator": "Run the Kubernetes operator.",
    "version": "Print the version.",
}

_ALIKE = 0.7
"""How alike a mistyped name and the one that is meant are at least: 'bogus' is not 'logs'."""
_SHOW = "`kvserving status` shows what runs"
_RUN = "`kvserving up FILE` runs a file on this machine"
# What others call a command.
_ELSEWHERE = {
    **dict.fromkeys(("apply", "create", "deploy"), f"{_RUN}, `kubectl apply -f FILE` makes an object in a cluster"),
    **dict.fromkeys(("start", "run", "serve", "launch"), _RUN),
    **dict.fromkeys(("stop", "delete", "kill", "rm", "remove"), "`kvserving down NAME` stops what `up` started"),
    **dict.fromkeys(("ps", "list", "ls", "get", "describe", "top"), _SHOW),
    "restart": "`kvserving down NAME` and `kvserving up FILE` start a service anew",
    "check": "`kvserving validate FILE` checks a file, `kvserving doctor` this machine",
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


class Commands(click.Group):
    """Knows the names and one-line helps of its commands; imports one when it is called.

    ``modules`` names those that are not in the module of their name, ``elsewhere`` what does the work of others.
    """

    def __init__(
        self,
        *args: Any,
        helps: Mapping[str, str],
        modules: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.helps = helps
        self._modules = modules or {}
        self._elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(self.helps)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; ``None`` where there is none of that name."""
        if cmd_name not in self.helps:
            return None
        command = import_module(f".{self._modules.get(cmd_name, cmd_name)}", __name__).command
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; an option before a command's name is told where it belongs."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            told = f"{error.option_name} is no option of `{ctx.command_path}` itself: those of a command come after its"
            raise click.UsageError(
                f"{told} name, as in `{ctx.command_path} status {error.option_name} ...`", ctx
            ) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the way out for a name that there is not: what does it elsewhere, or the nearest name."""
        if args and args[0] not in self.helps:
            if (other := self._elsewhere.get(args[0])) is not None:
                raise click.UsageError(f"there is no command {args[0]!r} here: {other}", ctx)
            from difflib import get_close_matches

            near = [name for name in self.helps if len(args[0]) > 1 and name.startswith(args[0])]
            near = near or get_close_matches(args[0], self.helps, 1, _ALIKE)
            hint = f" Did you mean {near[0]!r}?" if near else f" `{ctx.command_path} --help` lists those that there are"
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write names and helps without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.helps.items()))


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the version and end, where it was asked for."""
    if asked:
        from .version import text

        click.echo(text())
        ctx.exit()


@click.command(
    cls=Commands,
    helps=SUMMARIES,
    elsewhere=_ELSEWHERE,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print the version."
)
def kvserving(debug: bool) -> None:
    """Serve a model by vLLM with prefill and decode apart, and prove that the KV moves."""


def run(arguments: Sequence[str], group: click.Command = kvserving, program: str = "kvserving") -> int:
    """Run the command line; the exit status. No error shows a traceback unless ``--debug`` is given.

    A reader of our output that went away, as `head` does, changes no exit status.
    """
    try:
        result = group.main(list(arguments), prog_name=program, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _tell(error.show)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _tell(lambda: print("interrupted", file=sys.stderr))
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 0
    except SystemExit as error:
        # click takes the same from a command that writes, and ends with 1.
        if error.code != 1:
            raise
        return 0
    except Exception as error:
        if "--debug" in arguments:
            _tell(traceback.print_exc)
        text, status = _explained(error, program)
        _tell(lambda: print(text, file=sys.stderr))
        return status


def _tell(say: Callable[[], None]) -> None:
    """Say something on standard error, unless nobody reads it."""
    if sys.stderr is None:
        return
    try:
        say()
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    """Have the interpreter write nothing more: what is buffered has nowhere to go."""
    sys.stdout = sys.stderr = None


def _explained(error: Exception, program: str) -> tuple[str, int]:
    """What to say of an error, and the exit status."""
    from ..api.faults import InvalidSpec
    from ..local.errors import EnvironmentFault, LocalError
    from ..local.state import folder_fault

    if isinstance(error, OSError) and (problem := folder_fault(error)) is not None:
        error = EnvironmentFault(problem)
    if isinstance(error, InvalidSpec):
        return "\n".join(f"error: {fault}" for fault in error.faults), 1
    if isinstance(error, EnvironmentFault):
        return "\n".join(f"error: {problem}" for problem in error.problems), error.exit_status
    if isinstance(error, LocalError):
        return f"error: {error}", error.exit_status
    return f"error: {type(error).__name__}: {error} (`{program} --debug` shows where)", 1

"""``kvserving logs``: output of engines and routers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from .bounded import Count

_BEGUN = "{key} was started anew: what follows is of the new run"
_OWN_TERMINAL = "; a supervisor in the foreground tells its terminal"


@click.command("logs")
@click.argument("service", metavar="NAME|FILE")
@click.argument("pod", required=False, metavar="[POD|ROLE|supervisor]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option(
    "--previous", is_flag=True, help="Of each, the run that ended last: how an engine that is started again ended."
)
@click.option("--tail", type=Count(min=0), default=50, show_default=True, metavar="N", help="Lines of each log.")
def command(service: str, pod: str | None, follow: bool, previous: bool, tail: int) -> int:
    """Show the last lines of the logs of a service: of all its pods, of one, of a role, or of the `supervisor`.

    `supervisor` is the process that a service brought up with --detach runs in. The logs of a
    stopped service stay until it is brought up again.
    """
    from .platform import require_linux

    require_linux()
    import signal
    import time

    from ..local import follow as following
    from ..local.ages import moment
    from ..local.client import BUSY, UNDER_WAY
    from ..local.errors import UP, LocalError, there_are
    from ..local.state import ServiceDir, logged
    from ..plan import labels
    from .names import service_name

    if follow and previous:
        raise click.UsageError("--previous shows what has ended, to which nothing is added: leave out --follow, or it")
    name = service_name(service)
    directory = ServiceDir(name)
    taken, state = directory.taken, directory.read()
    runs = state is not None and state.supervised
    logs = {path.stem: path for path in sorted(directory.logs.glob("*.log"))}
    pods = [key for key in logs if key.startswith(f"{name}-")]
    chosen = {key: path for key, path in logs.items() if pod is None or pod == key or key.startswith(f"{name}-{pod}-")}
    if taken and not pods and not (runs and chosen):
        raise LocalError(BUSY.format(name=name))
    if not logs:
        cluster = f"of one in a cluster: `kubectl logs -n NAMESPACE -l {labels.NAME}={name} --prefix`"
        raise LocalError(f"no logs of a service {name} on this machine; {there_are(logged())}; {UP}; {cluster}")
    if not chosen:
        roles = dict.fromkeys(key.removeprefix(f"{name}-").rpartition("-")[0] for key in pods)
        there = [("role", tuple(roles)), ("pod", pods), ("other", [key for key in logs if key not in pods])]
        raise LocalError(
            f"{name} has no log of {pod}; there are: "
            + "; ".join(f"{what} {', '.join(names)}" for what, names in there if names)
            + _OWN_TERMINAL * (pod == "supervisor")
        )
    if not runs:
        why = UNDER_WAY.format(name=name) if taken else f"{name} does not run"
        last = moment(max(path.stat().st_mtime for path in chosen.values()), time.time())
        click.echo(f"{why}: this is of an earlier run, whose last line is of {last}", err=True)
    if previous:
        return _previous(name, chosen, tail)
    if follow:
        # Background jobs of a shell inherit SIGINT as ignored; Python then installs no handler, and nothing ends us.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    several = len(chosen) > 1
    silent = tail > 0
    for key, line in following.tail(chosen, tail):
        silent = False
        click.echo(f"{key} | {line}" if several else line)
    for key in chosen if tail else ():
        if (mark := following.end_before(chosen[key], tail)) is not None:
            said = f"{mark}; `kvserving logs {name} {key} --previous` shows the end of that run"
            click.echo(said, err=True)
    if silent:
        click.echo(f"nothing is written yet by {', '.join(chosen)}{_OWN_TERMINAL * ('supervisor' in chosen)}", err=True)
    if follow:
        for key, line in following.follow(chosen, lambda key: click.echo(_BEGUN.format(key=key), err=True)):
            click.echo(f"{key} | {line}" if several else line)
    return 0


def _previous(name: str, chosen: Mapping[str, Path], tail: int) -> int:
    from ..local import follow as following
    from ..local.errors import LocalError

    ended = {key: run for key, path in chosen.items() if (run := following.ended_run(path))}
    if not ended:
        raise LocalError(f"{', '.join(chosen)} {'has' if len(chosen) == 1 else 'have'} not ended: leave out --previous")
    for key, run in ended.items():
        for line in run[-tail:] if tail else ():
            click.echo(f"{key} | {line}" if len(chosen) > 1 else line)
    return 0

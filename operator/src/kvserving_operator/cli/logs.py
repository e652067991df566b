"""``kvserving logs``: output of engines and routers."""

from __future__ import annotations

import click


@click.command("logs")
@click.argument("name")
@click.argument("pod", required=False, metavar="[POD|ROLE]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option(
    "--tail", type=click.IntRange(min=0), default=50, show_default=True, metavar="N", help="Lines of each log."
)
def command(name: str, pod: str | None, follow: bool, tail: int) -> int:
    """Show the last lines of the logs of NAME: of all its pods, of one, or of a role.

    The logs of a stopped service stay until it is brought up again.
    """
    from .platform import require_linux

    require_linux()
    from ..local import follow as following
    from ..local.errors import LocalError
    from ..local.state import ServiceDir

    logs = {path.stem: path for path in sorted(ServiceDir(name).logs.glob("*.log"))}
    chosen = {key: path for key, path in logs.items() if pod is None or pod == key or key.startswith(f"{name}-{pod}-")}
    if not chosen:
        there = ", ".join(logs) or "none"
        raise LocalError(f"no log of {pod or name}; there are: {there}")
    several = len(chosen) > 1
    for key, line in following.tail(chosen, tail):
        click.echo(f"{key} | {line}" if several else line)
    if follow:
        for key, line in following.follow(chosen):
            click.echo(f"{key} | {line}" if several else line)
    return 0

"""``kvserving status``: what runs."""

from __future__ import annotations

import json

import click


@click.command("status")
@click.argument("name", metavar="[NAME|FILE]", required=False)
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", help="Form of the answer."
)
def command(name: str | None, output: str) -> int:
    """Show the services of this user, or the one called NAME or brought up from FILE.

    Of one service, exit status 1 when it has failed or its supervisor was killed, 0 while it starts, serves or is
    degraded; 0 of all.
    """
    from .platform import require_linux

    require_linux()
    from ..local import client
    from ..local.errors import UP, LocalError, NoSuchService
    from ..local.state import FAILED, LOST, starting
    from .names import service_name
    from .summary import print_state

    name = None if name is None else service_name(name)

    try:
        found = client.find(name)
    except NoSuchService as missing:
        raise NoSuchService(f"{missing}. `kubectl kvserving status {name}` shows an object of a cluster") from None
    states = [state for d in found if (state := client.current(d)) is not None]
    if name is not None and not states:
        raise LocalError(f"the state of {name} cannot be read just now; if it runs, it writes a new one within seconds")
    status = 1 if name is not None and states[0].phase in (FAILED, LOST) else 0
    if output == "json":
        data = [state.as_dict() for state in states]
        click.echo(json.dumps(data[0] if name is not None else data, indent=2))
        return status
    begun = starting() if name is None else []
    if not states and not begun:
        click.echo(f"nothing runs on this machine; {UP}, `kubectl kvserving status` shows the objects of a cluster")
    for state in states:
        print_state(state, wide=output == "wide", brief=name is None)
    for directory in begun:
        click.echo(client.BUSY.format(name=directory.name))
    return status

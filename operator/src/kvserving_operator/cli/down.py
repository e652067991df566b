"""``kvserving down``: stop services."""

from __future__ import annotations

import click


@click.command("down")
@click.argument("service", metavar="NAME|FILE", required=False)
@click.option("--all", "every", is_flag=True, help="Stop every service of this user.")
def command(service: str | None, every: bool) -> int:
    """Stop a service in drain order and remove its keys and state; its logs stay, and claims with what it stored.

    What a killed supervisor left running is ended too. Ctrl-C makes it hurry.
    """
    from .platform import require_linux

    require_linux()
    from ..local import client
    from ..local.output import lasting
    from ..local.state import ServiceDir
    from .names import service_name
    from .summary import stopped
    from .view import progress

    if every == (service is not None):
        raise click.UsageError("give the name or file of one service, or --all")
    click.get_current_context().with_resource(lasting())
    name = None if service is None else service_name(service)
    if name is not None and client.is_stopped(ServiceDir(name)):
        click.echo(stopped(ServiceDir(name), (), already=True))
        return 0
    found = client.find(name)
    for directory in found:
        state = directory.read()
        with progress(directory.name) as view:
            view.hurry = "Ctrl-C stops at once"
            client.stop(directory, view.update)
        click.echo(stopped(directory, state.claims if state is not None else ()))
    if not found:
        click.echo("nothing runs")
    return 0

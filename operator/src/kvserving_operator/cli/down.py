"""``kvserving down``: stop services."""

from __future__ import annotations

import click


@click.command("down")
@click.argument("service", metavar="NAME|FILE", required=False)
@click.option("--all", "every", is_flag=True, help="Stop every service of this user.")
def command(service: str | None, every: bool) -> int:
    """Stop a service in drain order and remove its keys and state; its logs stay.

    What a killed supervisor left running is ended too. Ctrl-C makes it hurry.
    """
    from .platform import require_linux

    require_linux()
    from ..local import client
    from ..local.state import ServiceDir
    from . import files
    from .view import progress

    if every == (service is not None):
        raise click.UsageError("give the name or file of one service, or --all")
    name = None if service is None else files.service_name(service)
    if name is not None and client.is_stopped(ServiceDir(name)):
        click.echo(f"{name} is stopped already; its logs stay in {ServiceDir(name).logs}")
        return 0
    found = client.find(name)
    for directory in found:
        with progress(directory.name) as view:
            client.stop(directory, view.update)
        click.echo(f"{directory.name} is stopped; its logs stay in {directory.logs}")
    if not found:
        click.echo("nothing runs")
    return 0
